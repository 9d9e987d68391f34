//! kubectl as old as the control plane, and one that is some versions older.

use std::path::PathBuf;
use std::process::Stdio;

use devcluster::binaries::{Binaries, Binary};
use devcluster::wait_for;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::site::{PATIENCE, Site, run, shared};

/// One kubectl in one namespace.
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
    namespace: String,
}

/// A kubectl that keeps printing.
struct Watching {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Kubectl {
    async fn new(site: &Site, binary: Binary) -> Self {
        let binaries = tokio::task::spawn_blocking(move || Binaries::ensure(&[binary]));
        let binaries = binaries.await.unwrap().unwrap();
        let namespace = binary.name().replace('.', "-");
        site.namespace(&namespace).await;
        let home = site.cluster.dir().join(&namespace);
        std::fs::create_dir(&home).unwrap();
        Self {
            program: binaries.get(binary).unwrap().to_owned(),
            kubeconfig: site.cluster.kubeconfig_path().to_owned(),
            home,
            namespace,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .args(["--namespace", &self.namespace])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env("KUBE_EDITOR", "sed -i s/before/after/")
            .current_dir(&self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Exit code, standard output and standard error.
    async fn outcome(&self, args: &[&str], input: &str) -> (Option<i32>, String, String) {
        let mut process = self.command(args).spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = tokio::time::timeout(PATIENCE, process.wait_with_output()).await;
        let output = output.expect("kubectl ends").unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }

    /// Standard output of a command that has to succeed.
    async fn run(&self, args: &[&str]) -> String {
        self.run_with(args, "").await
    }

    async fn run_with(&self, args: &[&str], input: &str) -> String {
        let (code, stdout, stderr) = self.outcome(args, input).await;
        assert_eq!(
            code,
            Some(0),
            "{} {args:?}: {stdout}{stderr}",
            self.namespace
        );
        stdout
    }

    /// Standard error of a command that has to fail.
    async fn refused(&self, args: &[&str], input: &str) -> String {
        let (code, stdout, stderr) = self.outcome(args, input).await;
        assert_eq!(
            code,
            Some(1),
            "{} {args:?}: {stdout}{stderr}",
            self.namespace
        );
        stderr
    }

    async fn reference(&self, name: &str) -> String {
        let args = [
            "get",
            "flunder",
            name,
            "-o",
            "jsonpath={.spec.flunderReference}",
        ];
        self.run(&args).await
    }

    fn watch(&self, args: &[&str]) -> Watching {
        let mut process = self.command(args).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Watching { process, lines }
    }
}

impl Watching {
    /// The next line.
    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        line.expect("a line in time")
            .unwrap()
            .expect("the watch goes on")
    }

    /// The next line that starts with `start`.
    async fn line_of(&mut self, start: &str) -> String {
        loop {
            let line = self.line().await;
            if line.starts_with(start) {
                return line;
            }
        }
    }

    async fn end(mut self) {
        self.process.kill().await.unwrap();
    }
}

fn manifest(name: &str, reference: &str) -> String {
    format!(
        "apiVersion: wardle.example.com/v1beta1\nkind: Flunder\nmetadata: {{name: {name}}}\nspec: {{referenceType: Flunder, flunderReference: {reference}}}\n"
    )
}

async fn discovers_and_explains(kubectl: &Kubectl) {
    let resources = [
        "api-resources",
        "--api-group=wardle.example.com",
        "-o",
        "name",
    ];
    let listed = kubectl.run(&resources).await;
    assert!(
        listed
            .lines()
            .any(|line| line == "flunders.wardle.example.com"),
        "{listed}"
    );
    // kube-apiserver takes over schemas of aggregated APIs in the background.
    let explain = [
        "explain",
        "flunders.spec.flunderReference",
        "--api-version=wardle.example.com/v1beta1",
    ];
    let explained = wait_for("the schema", PATIENCE, async || {
        let (code, stdout, _) = kubectl.outcome(&explain, "").await;
        Ok((code == Some(0)).then_some(stdout))
    });
    let explained = explained.await.unwrap();
    assert!(
        explained.contains("Name of another flunder."),
        "{explained}"
    );
}

async fn creates_changes_and_deletes(kubectl: &Kubectl) {
    let from_input = |verb| [verb, "-f", "-"];
    let created = kubectl
        .run_with(&from_input("create"), &manifest("a", "before"))
        .await;
    assert_eq!(created, "flunder.wardle.example.com/a created\n");
    let again = kubectl
        .refused(&from_input("create"), &manifest("a", "before"))
        .await;
    assert!(
        again.contains("(AlreadyExists)") && again.contains("\"a\" already exists"),
        "{again}"
    );
    let unknown = manifest("b", "r") + "unknown: 1\n";
    let unknown = kubectl.refused(&from_input("create"), &unknown).await;
    assert!(unknown.contains("unknown field \"unknown\""), "{unknown}");
    let dry = kubectl
        .run_with(
            &["create", "--dry-run=server", "-f", "-"],
            &manifest("b", "r"),
        )
        .await;
    assert_eq!(
        dry,
        "flunder.wardle.example.com/b created (server dry run)\n"
    );
    let missing = kubectl.refused(&["get", "flunder", "b"], "").await;
    assert!(
        missing.contains("flunders.wardle.example.com \"b\" not found"),
        "{missing}"
    );

    kubectl.run(&["edit", "flunder", "a"]).await;
    assert_eq!(kubectl.reference("a").await, "after");
    for (kind, patch, gives) in [
        (
            "merge",
            r#"{"spec":{"flunderReference":"merged"}}"#,
            "merged",
        ),
        (
            "json",
            r#"[{"op":"replace","path":"/spec/flunderReference","value":"tested"}]"#,
            "tested",
        ),
    ] {
        kubectl
            .run(&["patch", "flunder", "a", "--type", kind, "-p", patch])
            .await;
        assert_eq!(kubectl.reference("a").await, gives);
    }
    kubectl
        .run(&["label", "flunder", "a", "app=x", "tier=y"])
        .await;
    let taken = kubectl
        .refused(&["label", "flunder", "a", "app=z"], "")
        .await;
    assert!(taken.contains("--overwrite"), "{taken}");
    kubectl
        .run(&["label", "flunder", "a", "app=z", "tier-", "--overwrite"])
        .await;
    kubectl
        .run(&["annotate", "flunders", "--all", "note=some text"])
        .await;
    let metadata = kubectl
        .run(&[
            "get",
            "flunder",
            "a",
            "-o",
            "jsonpath={.metadata.labels} {.metadata.annotations.note}",
        ])
        .await;
    assert_eq!(metadata, r#"{"app":"z"} some text"#);
    let described = kubectl.run(&["describe", "flunder", "a"]).await;
    assert!(
        described.contains("note: some text") && described.contains("tested"),
        "{described}"
    );

    kubectl
        .run_with(&from_input("replace"), &manifest("a", "replaced"))
        .await;
    let labels = kubectl
        .run(&["get", "flunder", "a", "-o", "jsonpath={.metadata.labels}"])
        .await;
    assert_eq!(
        (kubectl.reference("a").await.as_str(), labels.as_str()),
        ("replaced", "")
    );
    let stale = kubectl.run(&["get", "flunder", "a", "-o", "yaml"]).await;
    kubectl.run(&["label", "flunder", "a", "app=x"]).await;
    let stale = kubectl.refused(&from_input("replace"), &stale).await;
    assert!(stale.contains("(Conflict)"), "{stale}");

    let deleted = kubectl.run(&["delete", "flunder", "a"]).await;
    assert!(
        deleted.starts_with("flunder.wardle.example.com \"a\" deleted"),
        "{deleted}"
    );
    let gone = kubectl.refused(&["delete", "flunder", "a"], "").await;
    assert!(gone.contains("(NotFound)"), "{gone}");
    kubectl
        .run(&["delete", "flunder", "a", "--ignore-not-found"])
        .await;
}

async fn applies(kubectl: &Kubectl) {
    let apply = ["apply", "-f", "-"];
    for (reference, outcome) in [("r", "created"), ("r", "unchanged"), ("s", "configured")] {
        let said = kubectl
            .run_with(&apply, &manifest("applied", reference))
            .await;
        assert_eq!(
            said,
            format!("flunder.wardle.example.com/applied {outcome}\n")
        );
    }
    // What somebody else set stays, what is no longer in the manifest goes.
    kubectl
        .run(&["label", "flunder", "applied", "by=another"])
        .await;
    let without =
        "apiVersion: wardle.example.com/v1beta1\nkind: Flunder\nmetadata: {name: applied}\n";
    let differs = kubectl.outcome(&["diff", "-f", "-"], without).await;
    assert_eq!(differs.0, Some(1), "{differs:?}");
    assert!(differs.1.contains("-  flunderReference: s"), "{differs:?}");
    kubectl.run_with(&apply, without).await;
    let now = [
        "get",
        "flunder",
        "applied",
        "-o",
        "jsonpath={.metadata.labels.by} {.spec.flunderReference}",
    ];
    assert_eq!(kubectl.run(&now).await, "another ");
    assert_eq!(kubectl.run_with(&["diff", "-f", "-"], without).await, "");
    kubectl.run(&["delete", "flunder", "applied"]).await;
}

async fn lists(kubectl: &Kubectl) {
    let (code, stdout, stderr) = kubectl.outcome(&["get", "flunders"], "").await;
    let none = format!("No resources found in {} namespace.\n", kubectl.namespace);
    assert_eq!((code, stdout, stderr), (Some(0), String::new(), none));
    let all: String = (0..7)
        .map(|n| manifest(&format!("n{n}"), "r") + "---\n")
        .collect();
    kubectl.run_with(&["create", "-f", "-"], &all).await;
    for output in [
        ["--chunk-size=2", "--output=name"],
        ["--chunk-size=0", "--output=name"],
    ] {
        let names = kubectl.run(&[["get", "flunders"], output].concat()).await;
        let expected: Vec<_> = (0..7)
            .map(|n| format!("flunder.wardle.example.com/n{n}"))
            .collect();
        assert_eq!(names.lines().collect::<Vec<_>>(), expected);
    }
    for output in ["", "--output=wide", "--show-labels", "--chunk-size=3"] {
        let args = ["get", "flunders", "--sort-by=.metadata.name", output];
        let table = kubectl.run(args.strip_suffix(&[""]).unwrap_or(&args)).await;
        let names: Vec<_> = table
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(
            names,
            ["NAME", "n0", "n1", "n2", "n3", "n4", "n5", "n6"],
            "{table}"
        );
    }
    kubectl
        .run(&["label", "flunder", "n1", "n2", "app=x"])
        .await;
    let selected = kubectl
        .run(&["get", "flunders", "-l", "app in (x)", "-o", "name"])
        .await;
    assert_eq!(selected.lines().count(), 2, "{selected}");
    kubectl.run(&["delete", "flunders", "-l", "app=x"]).await;
    let deleted = kubectl.run(&["delete", "flunders", "--all"]).await;
    assert_eq!(deleted.lines().count(), 5, "{deleted}");
    assert_eq!(kubectl.run(&["get", "flunders", "-o", "name"]).await, "");
}

async fn watches_and_waits(kubectl: &Kubectl) {
    let create = ["create", "-f", "-"];
    kubectl.run_with(&create, &manifest("first", "r")).await;
    let mut table = kubectl.watch(&["get", "flunders", "-w", "--output-watch-events"]);
    let mut yaml = kubectl.watch(&["get", "flunders", "-w", "-o", "yaml"]);
    let mut changes = kubectl.watch(&[
        "get",
        "flunders",
        "--watch-only",
        "-l",
        "app=x",
        "-o",
        "name",
    ]);
    assert!(table.line().await.starts_with("EVENT "));
    table.line_of("ADDED      first ").await;
    yaml.line_of("  name: first").await;

    let for_value = [
        "wait",
        "--for=jsonpath={.spec.flunderReference}=awaited",
        "flunder/second",
        "--timeout=60s",
    ];
    let for_create = ["wait", "--for=create", "flunder/second", "--timeout=60s"];
    let for_delete = ["wait", "--for=delete", "flunder/first", "--timeout=60s"];
    let write = async {
        kubectl.run_with(&create, &manifest("second", "r")).await;
        table.line_of("ADDED      second ").await;
        kubectl.run(&["label", "flunder", "second", "app=x"]).await;
        table.line_of("MODIFIED   second ").await;
        kubectl.run(&["delete", "flunder", "first"]).await;
        table.line_of("DELETED    first ").await;
    };
    let (created, deleted, ()) =
        tokio::join!(kubectl.run(&for_create), kubectl.run(&for_delete), write);
    for (said, name) in [(created, "second"), (deleted, "first")] {
        assert_eq!(
            said,
            format!("flunder.wardle.example.com/{name} condition met\n")
        );
    }
    let patch = [
        "patch",
        "flunder",
        "second",
        "--type=merge",
        "-p",
        r#"{"spec":{"flunderReference":"awaited"}}"#,
    ];
    let (value, _) = tokio::join!(kubectl.run(&for_value), kubectl.run(&patch));
    assert_eq!(value, "flunder.wardle.example.com/second condition met\n");
    assert_eq!(changes.line().await, "flunder.wardle.example.com/second");
    yaml.line_of("  name: second").await;
    yaml.line_of("  flunderReference: awaited").await;
    for watching in [table, yaml, changes] {
        watching.end().await;
    }
    let no_condition = [
        "wait",
        "--for=condition=Ready",
        "flunder/second",
        "--timeout=1s",
    ];
    let said = kubectl.refused(&no_condition, "").await;
    assert!(
        said.contains("timed out waiting for the condition on flunders/second"),
        "{said}"
    );
    kubectl.run(&["delete", "flunders", "--all"]).await;
}

async fn everything(binary: Binary) {
    let kubectl = Kubectl::new(shared().await, binary).await;
    discovers_and_explains(&kubectl).await;
    creates_changes_and_deletes(&kubectl).await;
    applies(&kubectl).await;
    lists(&kubectl).await;
    watches_and_waits(&kubectl).await;
}

#[test]
fn kubectl_does_its_work() {
    run(everything(Binary::Kubectl));
}

#[test]
fn an_older_kubectl_does_its_work() {
    run(everything(Binary::OlderKubectl));
}
