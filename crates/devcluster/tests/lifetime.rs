//! Whatever happens to its owner, a cluster ends with it, and no other one does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use devcluster::{Cluster, Options, ProcessGroup, wait_for};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_mins(1);

/// Running, or at least not ended: a process that ended and was not waited for has state `Z`.
fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .starts_with('Z')
    })
}

async fn wait_until_gone(pids: &[i32]) {
    wait_for("the processes to be gone", TIMEOUT, async || {
        Ok((!pids.iter().any(|&pid| is_alive(pid))).then_some(()))
    })
    .await
    .unwrap();
}

fn sleeper() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_live_side_by_side_and_each_ends_with_its_value() {
    let [first, second] = [
        Cluster::start(Options::default()),
        Cluster::start(Options::default().durable()),
    ];
    let (first, second) = tokio::join!(Box::pin(first), Box::pin(second));
    let (first, second) = (first.unwrap(), second.unwrap());
    let namespaces = |client| Api::<Namespace>::all(client);
    let object = serde_json::from_value(json!({ "metadata": { "name": "only-here" } })).unwrap();
    namespaces(first.client().await.unwrap())
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let of_second = namespaces(second.client().await.unwrap());
    assert!(of_second.get_opt("only-here").await.unwrap().is_none());

    let own = first.spawn("own-program", sleeper()).unwrap();
    let mut pids: Vec<i32> = first
        .processes()
        .iter()
        .map(devcluster::Process::pid)
        .collect();
    pids.extend([own.pid(), first.group().id()]);
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    let dir = first.dir().to_owned();
    drop(first);
    wait_until_gone(&pids).await;
    assert!(own.exit_status().unwrap().is_some());
    assert!(!dir.exists());
    assert!(of_second.get_opt("default").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_owner_is_killed_ends_and_its_folder_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("cluster");
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_devcluster"));
        command.arg("--dir").arg(&dir).args(["up", "--foreground"]);
        command.stdout(std::process::Stdio::null());
        command
    };
    let mut owner = start().spawn().unwrap();
    let pids = components(&dir).await;
    assert!(
        pids.len() >= 3 && pids.iter().all(|&pid| is_alive(pid)),
        "{pids:?}"
    );
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until_gone(&pids).await;

    std::fs::remove_file(dir.join("pids")).unwrap();
    let mut owner = start().spawn().unwrap();
    let pids = components(&dir).await;
    let stopped = Command::new(env!("CARGO_BIN_EXE_devcluster"))
        .arg("--dir")
        .arg(&dir)
        .arg("down")
        .output();
    assert!(stopped.unwrap().status.success());
    assert!(owner.wait().unwrap().success());
    wait_until_gone(&pids).await;
}

/// The process ids the owner writes down when its cluster is ready.
async fn components(dir: &Path) -> Vec<i32> {
    wait_for("the list of processes", TIMEOUT, async || {
        Ok(std::fs::read_to_string(dir.join("pids")).ok())
    })
    .await
    .unwrap()
    .lines()
    .map(|line| line.split(' ').next().unwrap().parse().unwrap())
    .collect()
}

#[test]
fn the_command_leaves_a_cluster_running_and_stops_it() {
    let folder = tempfile::tempdir().unwrap();
    let devcluster = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_devcluster"))
            .arg("--dir")
            .arg(folder.path())
            .args(args)
            .output();
        let output = output.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.success(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (failed, _, remedy) = devcluster(&["kubeconfig"]);
    assert!(!failed && remedy.contains("devcluster up"), "{remedy}");

    let (started, how, error) = devcluster(&["up"]);
    assert!(started, "{how}{error}");
    let (again, same, _) = devcluster(&["up"]);
    assert!(again && same.starts_with("Already running"), "{same}");
    let (_, kubeconfig, _) = devcluster(&["kubeconfig"]);
    assert!(
        how.contains(kubeconfig.trim()) && Path::new(kubeconfig.trim()).is_file(),
        "{how}"
    );
    let (_, log, _) = devcluster(&["logs", "kube-apiserver"]);
    assert!(log.contains("Serving securely"), "{log}");
    let (known, _, error) = devcluster(&["logs", "kubelet"]);
    assert!(
        !known && error.contains("kube-controller-manager"),
        "{error}"
    );

    let (stopped, _, error) = devcluster(&["down", "--purge"]);
    assert!(stopped && !folder.path().exists(), "{error}");
    let (nothing_to_do, said, _) = devcluster(&["down"]);
    assert!(
        nothing_to_do && said.starts_with("No control plane runs"),
        "{said}"
    );
}

#[tokio::test]
async fn a_group_that_nobody_holds_any_more_is_killed_and_its_data_removed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let group = ProcessGroup::start(&data.join("logs"), Some(&data)).unwrap();
    let sleeper = group.spawn("sleeper", sleeper()).unwrap();
    drop(group);
    sleeper.wait(TIMEOUT).await.unwrap();
    wait_for("the data to be removed", TIMEOUT, async || {
        Ok((!data.exists()).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_process_ends_by_signal_by_kill_or_says_in_its_log_why_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let group = ProcessGroup::start(folder.path(), None).unwrap();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    };
    let graceful = group.spawn(
        "graceful",
        shell("trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done"),
    );
    let graceful = graceful.unwrap();
    graceful.wait_for_log("up", TIMEOUT).await.unwrap();
    assert_eq!(graceful.terminate().await.unwrap().code(), Some(7));
    assert_eq!(graceful.terminate().await.unwrap().code(), Some(7));

    let stubborn = group.spawn("stubborn", sleeper()).unwrap();
    assert!(!stubborn.kill9().unwrap().success());

    let broken = group
        .spawn("broken", shell("echo no disk; exit 3"))
        .unwrap();
    let failed = broken.wait_for_log("never", TIMEOUT).await.unwrap_err();
    assert!(failed.to_string().contains("no disk"), "{failed}");

    group.end();
    assert!(matches!(
        group.spawn("late", sleeper()),
        Err(devcluster::Error::Ended { .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_cannot_start_is_named_with_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let broken = Options::default()
        .dir(folder.path())
        .apiserver_arg("--no-such-flag");
    let message = Cluster::start(broken).await.unwrap_err().to_string();
    assert!(
        message.starts_with("kube-apiserver exited") && message.contains("no-such-flag"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_shows_the_logs_and_keeps_the_data_of_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let output = Command::new(test)
        .args([
            "--exact",
            "--ignored",
            "--nocapture",
            "panics_with_a_cluster",
        ])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--- end of the log of own-program"), "{said}");
    assert!(
        said.contains("said before the panic") && said.contains("data and logs are kept in"),
        "{said}"
    );
    let kept = std::fs::read_dir(folder.path())
        .unwrap()
        .filter_map(Result::ok)
        .any(|entry| {
            entry.path().join("logs/kube-apiserver.log").is_file()
                && entry.path().join("kubeconfig").is_file()
        });
    assert!(kept);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a process of its own"]
async fn panics_with_a_cluster() {
    let cluster = Cluster::start(Options::default()).await.unwrap();
    let mut command = Command::new("echo");
    command.arg("said before the panic");
    let program = cluster.spawn("own-program", command).unwrap();
    program.wait_for_log("said", TIMEOUT).await.unwrap();
    panic!("as planned");
}
