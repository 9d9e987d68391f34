//! A control plane with the custom resources, the RBAC of `config/` and lease-apiserver registered
//! and running as its own ServiceAccount.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    unreachable_pub,
    reason = "helpers of tests; not every test file uses all of them"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use devcluster::{Cluster, Options, Process};
use serde_json::{Value, json};

pub const GROUP: &str = "leases.crawl.example.com";
pub const VERSION: &str = "v1alpha1";
const DEADLINE: Duration = Duration::from_secs(30);

pub struct Stage {
    pub cluster: Cluster,
    server: Option<Process>,
    arguments: Vec<String>,
    starts: u32,
}

impl Stage {
    /// With the custom resources, one ready server, and the namespaces `fleet` and `crawlers`.
    pub async fn start() -> Self {
        let mut stage = Self::without_crds().await;
        stage.install_crds();
        stage.serve();
        stage.available().await;
        stage
    }

    /// Without the custom resources and with no server yet.
    pub async fn without_crds() -> Self {
        let cluster = Cluster::start(Options::default().kwok()).await.unwrap();
        let port = cluster.free_port().unwrap();
        let registered = cluster
            .register_apiservice(GROUP, VERSION, port)
            .await
            .unwrap();
        let mut stage = Self {
            cluster,
            server: None,
            arguments: Vec::new(),
            starts: 0,
        };
        for namespace in ["proxy-operator", "fleet", "crawlers"] {
            stage.kubectl(&["create", "namespace", namespace]);
        }
        stage.apply_file("config/rbac/lease-apiserver.yaml");
        stage.kubectl(&["-n", "crawlers", "create", "serviceaccount", "crawler"]);
        stage.kubectl(&[
            "-n",
            "crawlers",
            "create",
            "rolebinding",
            "crawler",
            "--clusterrole=crawl-leaser",
            "--serviceaccount=crawlers:crawler",
        ]);
        let kubeconfig = stage
            .cluster
            .service_account_kubeconfig("proxy-operator", "lease-apiserver")
            .await
            .unwrap();
        let admin = stage.cluster.free_port().unwrap();
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        stage.arguments = [
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--kubeconfig={}", path(&kubeconfig)),
            format!("--tls-cert-file={}", path(&registered.files.cert)),
            format!("--tls-private-key-file={}", path(&registered.files.key)),
            format!(
                "--store=redb://{}",
                path(&stage.cluster.dir().join("leases.redb"))
            ),
            "--shutdown-grace=3s".to_owned(),
        ]
        .into();
        stage
    }

    pub fn install_crds(&self) {
        self.apply_file("config/crd");
        self.kubectl(&[
            "wait",
            "--for=condition=Established",
            "crd",
            "--all",
            "--timeout=30s",
        ]);
    }

    /// Starts the server; it may take a moment to be ready.
    pub fn serve(&mut self) {
        self.starts += 1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_lease-apiserver"));
        command.args(&self.arguments);
        let name = format!("lease-apiserver-{}", self.starts);
        self.server = Some(self.cluster.spawn(&name, command).unwrap());
    }

    /// Starts the server with other flags in the place of those of the same name.
    pub fn serve_with(&mut self, flags: &[&str]) {
        for flag in flags {
            let name = flag.split('=').next().unwrap();
            self.arguments
                .retain(|argument| argument.split('=').next() != Some(name));
            self.arguments.push((*flag).to_owned());
        }
        self.serve();
    }

    pub fn is_running(&self) -> bool {
        self.server
            .as_ref()
            .is_some_and(|server| server.check_running().is_ok())
    }

    pub async fn available(&self) {
        if let Err(error) = self.cluster.wait_apiservice_available(GROUP, VERSION).await {
            panic!("{error}\n{}", self.log());
        }
        self.until("the lease API answers", || {
            self.try_kubectl(&["get", "proxyleases", "-A"])
                .status
                .success()
                .then_some(())
        })
        .await;
    }

    pub fn log(&self) -> String {
        self.server.as_ref().map(Process::log).unwrap_or_default()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.server.take().unwrap().kill9().unwrap();
    }

    /// Starts another server, with other flags in the place of those of the same name.
    pub fn spawn_with(&self, name: &str, flags: &[String]) -> Process {
        let name_of = |flag: &str| flag.split('=').next().unwrap().to_owned();
        let replaced: Vec<_> = flags.iter().map(|flag| name_of(flag)).collect();
        let kept = self.arguments.iter();
        let kept = kept.filter(|argument| !replaced.contains(&name_of(argument)));
        let mut command = Command::new(env!("CARGO_BIN_EXE_lease-apiserver"));
        command.args(kept).args(flags);
        self.cluster.spawn(name, command).unwrap()
    }

    /// Whether a fresh `/readyz` on the admin address is green, with its text.
    pub fn ready(&self) -> Option<(bool, String)> {
        let address = self
            .arguments
            .iter()
            .find_map(|a| a.strip_prefix("--admin-address="))?;
        ready_at(address)
    }

    pub fn metrics(&self) -> String {
        let address = self
            .arguments
            .iter()
            .find_map(|a| a.strip_prefix("--admin-address="))
            .unwrap();
        let output = Command::new("curl")
            .args(["-s", &format!("http://{address}/metrics")])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    // --- kubectl ---

    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        self.cluster.kubectl(arguments).unwrap()
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.expect_success(self.try_kubectl(arguments), arguments)
    }

    /// As somebody else.
    pub fn kubectl_as(&self, kubeconfig: &Path, arguments: &[&str]) -> String {
        self.expect_success(
            self.cluster.kubectl_as(kubeconfig, arguments).unwrap(),
            arguments,
        )
    }

    /// What is printed to stderr by a command that must fail.
    pub fn kubectl_fails(&self, kubeconfig: &Path, arguments: &[&str]) -> String {
        let output = self.cluster.kubectl_as(kubeconfig, arguments).unwrap();
        assert!(
            !output.status.success(),
            "kubectl {arguments:?} succeeded: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8(output.stderr).unwrap()
    }

    fn expect_success(&self, output: Output, arguments: &[&str]) -> String {
        assert!(
            output.status.success(),
            "kubectl {arguments:?}: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn apply_file(&self, path: &str) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let path = root.join(path);
        self.kubectl(&["apply", "--server-side", "-f", path.to_str().unwrap()]);
    }

    /// Creates or changes an object.
    pub fn apply(&self, object: &Value) -> String {
        self.kubectl(&["apply", "-f", self.file(object).to_str().unwrap()])
    }

    /// A file with an object.
    pub fn file(&self, object: &Value) -> PathBuf {
        let name = object["metadata"]["name"].as_str().unwrap_or("unnamed");
        let kind = object["kind"].as_str().unwrap();
        let path = self.cluster.dir().join(format!("{kind}-{name}.json"));
        std::fs::write(&path, object.to_string()).unwrap();
        path
    }

    /// Tries until something is there.
    pub async fn until<T>(&self, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        match devcluster::wait_for(what, DEADLINE, async || Ok(probe())).await {
            Ok(value) => value,
            Err(error) => panic!("{error}\n{}", self.log()),
        }
    }

    // --- objects ---

    /// A healthy external proxy in `fleet`, as the operator would show it.
    pub fn proxy(&self, name: &str, max_leases: u32, exit_ip: &str, labels: &Value) {
        self.apply(&json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy",
            "metadata": {"name": name, "namespace": "crawlers", "labels": labels},
            "spec": {
                "mode": "External", "maxLeases": max_leases,
                "endpoint": {"host": exit_ip, "port": 3128},
            },
        }));
        self.set_health(name, exit_ip, true);
    }

    pub fn set_health(&self, name: &str, exit_ip: &str, healthy: bool) {
        let status = json!({"status": {
            "phase": "Ready",
            "endpoint": {"scheme": "http", "host": exit_ip, "port": 3128},
            "exitIP": exit_ip,
            "conditions": [{
                "type": "Healthy", "status": if healthy { "True" } else { "False" },
                "reason": "ProbeSucceeded", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        self.kubectl(&[
            "-n",
            "crawlers",
            "patch",
            "proxy",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status.to_string(),
        ]);
    }

    /// Waits until the lease API shows a proxy as accepting.
    pub async fn accepting(&self, name: &str) {
        self.until("the proxy to accept leases", || {
            let output = self.try_kubectl(&[
                "-n",
                "crawlers",
                "get",
                "pxe",
                name,
                "-o",
                "jsonpath={.status.accepting}",
            ]);
            (output.stdout == b"true").then_some(())
        })
        .await;
    }

    /// A lease, as JSON.
    pub fn lease(&self, name: &str) -> Option<Value> {
        let output = self.try_kubectl(&["-n", "crawlers", "get", "proxylease", name, "-o", "json"]);
        output
            .status
            .success()
            .then(|| serde_json::from_slice(&output.stdout).unwrap())
    }
}

/// Whether a fresh `/readyz` at an admin address is green, with its text.
pub fn ready_at(address: &str) -> Option<(bool, String)> {
    let output = Command::new("curl")
        .args([
            "-s",
            "-o",
            "-",
            "-w",
            "\n%{http_code}",
            &format!("http://{address}/readyz"),
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, code) = text.rsplit_once('\n')?;
    (code != "000").then(|| (code == "200", body.to_owned()))
}

/// A lease object of the namespace `crawlers`.
pub fn lease(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ProxyLease",
        "metadata": {"name": name, "namespace": "crawlers"}, "spec": spec,
    })
}
