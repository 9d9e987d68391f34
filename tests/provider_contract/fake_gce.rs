//! The fake Compute Engine as a process, and credentials that it accepts.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fake_clouds::faults::Script;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// A fake as a process; it ends with this value.
pub(crate) struct FakeGce {
    process: Child,
    pub(crate) url: String,
}

impl Drop for FakeGce {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl FakeGce {
    pub(crate) fn start(flags: &[&str]) -> Self {
        static BINARY: OnceLock<std::path::PathBuf> = OnceLock::new();
        // Why built here: cargo builds the binaries of this package for its tests, not those of
        // others.
        let binary = BINARY.get_or_init(|| {
            let built = Command::new(env!("CARGO"))
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .args([
                    "build",
                    "--quiet",
                    "--locked",
                    "-p",
                    "fake-clouds",
                    "--bin",
                    "fake-gce",
                ])
                .status()
                .unwrap();
            assert!(built.success(), "fake-gce cannot be built");
            Path::new(env!("CARGO_BIN_EXE_proxy-operator")).with_file_name("fake-gce")
        });
        let mut process = Command::new(binary)
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let url = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Self { process, url }
    }

    async fn call(&self, method: Method, path: &str, body: String) -> Value {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}/fake/{path}", self.url))
            .body(Full::new(body.into()))
            .unwrap();
        let answer = client.request(request).await.unwrap();
        let ok = answer.status().is_success();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(ok, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Plays a script of `crates/fake-clouds/scripts/gce`.
    pub(crate) async fn play(&self, script: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/fake-clouds/scripts/gce");
        let text = std::fs::read_to_string(folder.join(format!("{script}.yaml"))).unwrap();
        self.call(Method::PUT, "script", text).await;
    }

    pub(crate) async fn apply(&self, script: Value) {
        let script: Script = serde_json::from_value(script).unwrap();
        let text = serde_json::to_string(&script).unwrap();
        self.call(Method::PUT, "script", text).await;
    }

    /// Accepts only tokens that keys of these ids signed.
    pub(crate) async fn accept_keys(&self, ids: &[&str]) {
        let text = serde_json::to_string(ids).unwrap();
        self.call(Method::PUT, "keys", text).await;
    }

    pub(crate) async fn preempt(&self, project: &str, zone: &str, instance: &str) {
        let path = format!("preempt?project={project}&zone={zone}&instance={instance}");
        self.call(Method::POST, &path, String::new()).await;
    }

    pub(crate) async fn created(&self) -> Vec<Value> {
        let created = self.call(Method::GET, "created", String::new()).await;
        created.as_array().unwrap().clone()
    }

    /// How often a method was called.
    pub(crate) async fn calls(&self, method: &str) -> u64 {
        let calls = self.call(Method::GET, "calls", String::new()).await;
        calls[method].as_u64().unwrap_or_default()
    }

    /// Requests and responses that were not as the discovery document says.
    pub(crate) async fn violations(&self) -> Value {
        self.call(Method::GET, "violations", String::new()).await
    }
}

/// A key file of a service account.
pub(crate) fn key_file(id: &str) -> String {
    static KEY: OnceLock<String> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).unwrap();
        let text = STANDARD.encode(der.as_ref());
        let lines: Vec<_> = text
            .as_bytes()
            .chunks(64)
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect();
        let label = "PRIVATE KEY";
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            lines.join("\n")
        )
    });
    let file = json!({
        "type": "service_account",
        "project_id": "p-1",
        "private_key_id": id,
        "private_key": key,
        "client_email": "operator@p-1.iam.gserviceaccount.com",
        "client_id": "1",
        "universe_domain": "googleapis.com",
    });
    file.to_string()
}
