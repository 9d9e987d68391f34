//! Informers of client-go, with lists and with streamed lists, and with the detector that panics when what
//! was streamed is not what a list gives.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use devcluster::Options;
use kube::api::ListParams;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::churn::churn;
use crate::site::{Site, file, run};

const NAMESPACE: &str = "client-go";
/// Longer than the program waits itself.
const ANSWER: Duration = Duration::from_mins(2);

/// The program with the informers, running.
struct Informers {
    process: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Informers {
    fn start(program: &Path, site: &Site, streams: bool) -> Self {
        let mut process = Command::new(program)
            .arg(NAMESPACE)
            .env("KUBECONFIG", site.cluster.kubeconfig_path())
            .env("KUBE_FEATURE_WatchListClient", streams.to_string())
            .env("KUBE_WATCHLIST_INCONSISTENCY_DETECTOR", "true")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, answers }
    }

    async fn answer(&mut self) -> String {
        let line = tokio::time::timeout(ANSWER, self.answers.next_line()).await;
        match line.expect("an answer in time").unwrap() {
            Some(line) => line,
            None => unreachable!("it ended: {}", self.log().await),
        }
    }

    async fn log(&mut self) -> String {
        let mut log = String::new();
        let stderr = self.process.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).await.unwrap();
        log
    }

    /// Waits until all informers agree with the server, whose counts these are.
    async fn agree(&mut self, site: &Site) {
        let stdin = self.process.stdin.as_mut().unwrap();
        stdin.write_all(b"check\n").await.unwrap();
        let api = site.flunders(NAMESPACE);
        let all = api.list(&ListParams::default()).await.unwrap().items.len();
        let selected = ListParams::default().labels("app=x");
        let selected = api.list(&selected).await.unwrap().items.len();
        assert!(0 < selected && selected < all, "{selected} of {all}");
        assert_eq!(
            self.answer().await,
            format!("same {all} {selected} {all} {selected}")
        );
    }

    /// Ends the program, and tells what it logged.
    async fn end(mut self) -> String {
        drop(self.process.stdin.take());
        let log = self.log().await;
        let status = self.process.wait().await.unwrap();
        assert!(status.success(), "{status}: {log}");
        log
    }
}

/// Builds the program; packages that the control plane has too come from Go's cache.
async fn build(folder: &Path) -> PathBuf {
    let program = folder.join("informers");
    let output = Command::new("go")
        .args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(file("go"))
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        .env("CGO_ENABLED", "0")
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

#[test]
fn informers_have_what_the_server_has_after_restarts_and_a_forgotten_past() {
    run(async {
        let site = Site::start(Options::default()).await;
        site.namespace(NAMESPACE).await;
        let api = site.flunders(NAMESPACE);
        let program = build(site.cluster.dir()).await;
        churn(&api, "seed", 40).await;
        let mut programs = [true, false].map(|streams| Informers::start(&program, &site, streams));
        for informers in &mut programs {
            assert_eq!(informers.answer().await, "synchronised");
        }
        for forgets in [false, true] {
            tokio::join!(
                churn(&api, "a", 100),
                churn(&api, "b", 100),
                site.restart(async {
                    if forgets {
                        site.forget().await;
                    }
                })
            );
            for informers in &mut programs {
                informers.agree(&site).await;
            }
        }
        let [streams, lists] = programs;
        let (streams, lists) = (streams.end().await, lists.end().await);
        assert!(streams.contains("data consistency check for "), "{streams}");
        assert!(!lists.contains("data consistency check for "), "{lists}");
    });
}
