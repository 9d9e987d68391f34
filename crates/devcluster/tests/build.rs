//! Building the binaries, with a `go` of our own making in the place of the real one: what is said when it
//! cannot work, and that it is done once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// `devcluster build` with nothing but `go` (a shell script, if given) on PATH and an empty cache.
fn build(folder: &Path, go: Option<&str>) -> Command {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    if let Some(script) = go {
        let path = bin.join("go");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_devcluster"));
    command
        .arg("build")
        .env("PATH", &bin)
        .env("PROXY_OPERATOR_CACHE", folder.join("cache"))
        .env_remove("KUBEBUILDER_ASSETS");
    command
}

fn failure(go: Option<&str>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = build(folder.path(), go).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A `go` of a good version, whose `go build` does `build` with `$out` as the file to write.
fn good_go(build: &str) -> String {
    format!(
        r#"if [ "$1" = env ]; then echo go1.26.8; exit; fi
while [ "$1" != -o ]; do shift; done
out=$2
{build}"#
    )
}

#[test]
fn without_go_the_error_names_the_version_needed_the_binaries_and_the_other_way() {
    let said = failure(None);
    for part in [
        "Go 1.26",
        "kube-apiserver",
        "https://go.dev/dl/",
        "KUBEBUILDER_ASSETS",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn an_old_go_is_refused_with_what_was_found() {
    let said = failure(Some("echo go1.22.4"));
    assert!(
        said.contains("Go 1.26 or newer") && said.contains("found go1.22.4"),
        "{said}"
    );
}

#[test]
fn an_old_go_that_may_not_fetch_a_newer_one_is_quoted() {
    let said = failure(Some(
        "echo 'go.mod requires go >= 1.26.0 (running go 1.24)' >&2; exit 1",
    ));
    assert!(
        said.contains("Go 1.26 or newer") && said.contains("running go 1.24"),
        "{said}"
    );
}

#[test]
fn without_a_network_the_error_says_so_and_names_goproxy() {
    let said = failure(Some(&good_go(
        "echo 'dial tcp: lookup proxy: no such host' >&2; exit 1",
    )));
    assert!(
        said.contains("building etcd needs Go modules") && said.contains("GOPROXY"),
        "{said}"
    );
}

#[test]
fn another_failure_of_go_is_quoted() {
    let said = failure(Some(&good_go("echo 'x.go:1: syntax error' >&2; exit 1")));
    assert!(
        said.contains("building etcd failed") && said.contains("syntax error"),
        "{said}"
    );
}

#[test]
fn several_processes_at_once_build_each_binary_once_and_say_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let built = folder.path().join("built");
    let script = good_go(&format!(
        "echo \"$out\" >> {}; echo binary > \"$out\"",
        built.display()
    ));
    let mut running: Vec<_> = Vec::new();
    for _ in 0..3 {
        let mut command = build(folder.path(), running.is_empty().then_some(script.as_str()));
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        running.push(command.spawn().unwrap());
    }
    let outputs: Vec<Output> = running
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect();
    assert!(
        outputs.iter().all(|output| output.status.success()),
        "{outputs:?}"
    );
    let all = devcluster::binaries::Binary::ALL.len();
    assert_eq!(fs::read_to_string(&built).unwrap().lines().count(), all);
    let said: String = outputs
        .iter()
        .map(|output| String::from_utf8_lossy(&output.stderr))
        .collect();
    let first = format!("[1/{all}] building etcd with go1.26.8");
    assert!(said.contains(&first), "{said}");
    for path in String::from_utf8_lossy(&outputs[2].stdout).lines() {
        assert!(Path::new(path).is_file(), "{path}");
    }
}
