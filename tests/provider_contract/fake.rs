//! A fake of a cloud as a process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use bytes::Bytes;
use fake_clouds::faults::Script;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// A fake as a process; it ends with this value.
pub(crate) struct Fake {
    process: Child,
    cloud: &'static str,
    pub(crate) url: String,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Fake {
    /// Starts `fake-CLOUD`.
    ///
    /// Why built here: cargo builds the binaries of this package for its tests, not those of
    /// others.
    pub(crate) fn start(cloud: &'static str, flags: &[&str]) -> Self {
        static BUILT: OnceLock<()> = OnceLock::new();
        BUILT.get_or_init(|| {
            let built = Command::new(env!("CARGO"))
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .args([
                    "build",
                    "--quiet",
                    "--locked",
                    "-p",
                    "fake-clouds",
                    "--bins",
                ])
                .status()
                .unwrap();
            assert!(built.success(), "the fakes cannot be built");
        });
        let binary = format!("fake-{cloud}");
        let mut process =
            Command::new(Path::new(env!("CARGO_BIN_EXE_proxy-operator")).with_file_name(binary))
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
        Self {
            process,
            cloud,
            url,
        }
    }

    /// Asks for something below `/fake/`.
    pub(crate) async fn call(&self, method: Method, path: &str, body: String) -> Value {
        self.send(method, &format!("fake/{path}"), body).await
    }

    /// Sends a request as anybody.
    pub(crate) async fn send(&self, method: Method, path: &str, body: String) -> Value {
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}/{path}", self.url))
            .header("authorization", "Bearer anybody")
            .body(Full::new(body.into()))
            .unwrap();
        let answer = client.request(request).await.unwrap();
        let ok = answer.status().is_success();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(ok, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Plays a script of `crates/fake-clouds/scripts/CLOUD`.
    pub(crate) async fn play(&self, script: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/fake-clouds/scripts");
        let path = folder.join(self.cloud).join(format!("{script}.yaml"));
        let text = std::fs::read_to_string(path).unwrap();
        self.call(Method::PUT, "script", text).await;
    }

    pub(crate) async fn apply(&self, script: Value) {
        let script: Script = serde_json::from_value(script).unwrap();
        let text = serde_json::to_string(&script).unwrap();
        self.call(Method::PUT, "script", text).await;
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

    /// Requests and responses that were not as the API's description says.
    pub(crate) async fn violations(&self) -> Value {
        self.call(Method::GET, "violations", String::new()).await
    }
}
