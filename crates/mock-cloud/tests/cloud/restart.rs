//! The process: what survives its death.

use std::{path::Path, process::Stdio, time::Duration};

use crate::common::{DEADLINE, ZONE, connect, exchange, request, running, start, until, with_auth};
use mock_cloud::{
    Config, StartError, StateError,
    client::Client,
    faults::{Behaviour, FailWith},
    model::{ErrorCode, Labels},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

async fn spawn(state: &Path) -> (Child, Client) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mock-cloud"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--provision-delay",
            "0s",
        ])
        .args(["--delete-delay", "0s", "--state"])
        .arg(state)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let line = timeout(DEADLINE, lines.next_line())
        .await
        .expect("in time")
        .expect("reads");
    let line = line.expect("says where it listens");
    let base = line
        .strip_prefix("listening on ")
        .expect("an address")
        .to_owned();
    (child, Client::with_base(base))
}

#[tokio::test]
async fn instances_and_their_proxies_survive_kill_9_on_the_same_addresses() {
    let state = tempfile::tempdir().expect("a directory");
    let (mut child, client) = spawn(state.path()).await;
    let (plain, proxy) = running(&client, &request("plain")).await;
    let (locked, _) = running(&client, &with_auth("locked")).await;
    client
        .create(ZONE, &request("gone"))
        .await
        .expect("created");
    client.delete(ZONE, "gone").await.expect("deleted");
    client
        .set_behaviour(ZONE, "locked", &Behaviour::RejectAuth)
        .await
        .expect("set");
    client
        .fail_next_creates(1, FailWith::Quota)
        .await
        .expect("asked");
    let calls = client.calls().await.expect("books");

    child.kill().await.expect("killed");
    tokio::net::TcpStream::connect(proxy)
        .await
        .expect_err("its proxies died with it");

    let (mut child, client) = spawn(state.path()).await;
    assert_eq!(client.get(ZONE, "plain").await.expect("found"), plain);
    assert_eq!(client.get(ZONE, "locked").await.expect("found"), locked);
    let gone = client.get(ZONE, "gone").await.expect_err("stays deleted");
    assert_eq!(gone.code(), Some(ErrorCode::NotFound));
    let target = crate::common::target().await;
    let get = format!("GET http://{target}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = exchange(proxy, &get).await;
    assert!(
        answer.contains(&plain.ip.expect("address").to_string()),
        "{answer}"
    );
    let refused = client
        .create(ZONE, &request("new"))
        .await
        .expect_err("the fault waited");
    assert_eq!(refused.code(), Some(ErrorCode::QuotaExceeded));
    assert_eq!(client.calls().await.expect("books")[..4], calls);
    let created = client.create(ZONE, &request("new")).await.expect("created");
    assert_ne!(created.instance.id, plain.id, "ids are never used twice");
    assert_eq!(
        client
            .ever_created(&Labels::new())
            .await
            .expect("books")
            .len(),
        4
    );
    child.kill().await.expect("killed");
}

#[tokio::test]
async fn a_process_that_is_told_to_stop_closes_its_ports() {
    let state = tempfile::tempdir().expect("a directory");
    let (mut child, client) = spawn(state.path()).await;
    let (_, proxy) = running(&client, &request("one")).await;
    let _open = connect(proxy).await;
    let id = child.id().expect("runs").to_string();
    let told = Command::new("kill")
        .args(["-TERM", &id])
        .status()
        .await
        .expect("kill runs");
    assert!(told.success());
    let status = timeout(DEADLINE, child.wait())
        .await
        .expect("in time")
        .expect("waits");
    assert!(status.success(), "{status}");
    tokio::net::TcpStream::connect(proxy)
        .await
        .expect_err("refuses");
}

#[tokio::test]
async fn creates_that_were_answered_are_there_after_kill_9_under_load() {
    let state = tempfile::tempdir().expect("a directory");
    let (mut child, client) = spawn(state.path()).await;
    let (done, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let (client, done) = (client.clone(), done.clone());
        tasks.spawn(async move {
            for index in 0.. {
                let name = format!("w{worker}-{index}");
                if client.create(ZONE, &request(&name)).await.is_err() {
                    break;
                }
                done.send(name).expect("the test listens");
            }
        });
    }
    drop(done);
    let mut names = Vec::new();
    for _ in 0..40 {
        names.push(answered.recv().await.expect("creates go on"));
    }
    child.kill().await.expect("killed");
    tasks.join_all().await;
    while let Some(name) = answered.recv().await {
        names.push(name);
    }
    let (mut child, client) = spawn(state.path()).await;
    for name in names {
        client
            .get(ZONE, &name)
            .await
            .expect("an answered create is kept");
    }
    child.kill().await.expect("killed");
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_of_a_call_does_not_spoil_the_next_write() {
    let state = tempfile::tempdir().expect("a directory");
    let (mut child, client) = spawn(state.path()).await;
    for index in 0..100 {
        let hasty = client
            .clone()
            .timeout(Duration::from_micros(100 * (index % 20)));
        // Whether it was carried out, nobody knows: that is the point.
        drop(
            hasty
                .create(ZONE, &request(&format!("hasty-{index}")))
                .await,
        );
        let name = format!("patient-{index}");
        client.create(ZONE, &request(&name)).await.expect("created");
    }
    child.kill().await.expect("killed");
    let (mut child, client) = spawn(state.path()).await;
    for index in 0..100 {
        let name = format!("patient-{index}");
        client
            .get(ZONE, &name)
            .await
            .expect("an answered create is kept");
    }
    child.kill().await.expect("killed");
}

#[tokio::test]
async fn a_directory_serves_one_cloud_at_a_time() {
    let state = tempfile::tempdir().expect("a directory");
    let config = || Config {
        directory: Some(state.path().to_owned()),
        ..Config::default()
    };
    let cloud = start(config()).await;
    let any = ([127, 0, 0, 1], 0).into();
    let clock = runtime_kit::SystemClock::shared();
    let second = mock_cloud::start(config(), any, clock.clone())
        .await
        .expect_err("in use");
    assert!(
        matches!(second, StartError::Open(StateError::InUse(_))),
        "{second:?}"
    );
    cloud.stop().await;
    until(async || mock_cloud::start(config(), any, clock.clone()).await.ok())
        .await
        .stop()
        .await;
}

#[tokio::test]
async fn a_broken_state_is_reported_with_its_path_and_left_alone() {
    let state = tempfile::tempdir().expect("a directory");
    let path = state.path().join("state.json");
    std::fs::write(&path, b"{\"half\":").expect("written");
    let config = Config {
        directory: Some(state.path().to_owned()),
        ..Config::default()
    };
    let clock = runtime_kit::SystemClock::shared();
    let any = ([127, 0, 0, 1], 0).into();
    let error = mock_cloud::start(config, any, clock)
        .await
        .expect_err("unreadable");
    assert!(
        runtime_kit::chain(&error)
            .to_string()
            .contains("state.json"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).expect("reads"), b"{\"half\":");
}
