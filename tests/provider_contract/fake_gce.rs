//! The fake Compute Engine, and credentials that it accepts.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::OnceLock;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::json;

use crate::fake::Fake;

/// A fake Compute Engine as a process.
pub(crate) struct FakeGce(Fake);

impl Deref for FakeGce {
    type Target = Fake;

    fn deref(&self) -> &Fake {
        &self.0
    }
}

impl FakeGce {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self(Fake::start("gce", flags))
    }

    /// Accepts only tokens that keys of these ids signed.
    pub(crate) async fn accept_keys(&self, ids: &[&str]) {
        let text = serde_json::to_string(ids).unwrap();
        self.call(Method::PUT, "keys", text).await;
    }

    /// Puts a machine in, as somebody else does.
    pub(crate) async fn insert(
        &self,
        project: &str,
        zone: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) {
        let body = json!({
            "name": name,
            "labels": labels,
            "machineType": format!("zones/{zone}/machineTypes/e2-micro"),
            "disks": [{"boot": true, "initializeParams": {
                "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
            }}],
            "networkInterfaces": [{"network": "global/networks/default"}],
        });
        let path = format!("compute/v1/projects/{project}/zones/{zone}/instances");
        self.send(Method::POST, &path, body.to_string()).await;
    }

    pub(crate) async fn write_console(&self, project: &str, zone: &str, name: &str, text: &str) {
        let path = format!("console?project={project}&zone={zone}&instance={name}");
        self.call(Method::PUT, &path, text.to_owned()).await;
    }

    pub(crate) async fn preempt(&self, project: &str, zone: &str, instance: &str) {
        let path = format!("preempt?project={project}&zone={zone}&instance={instance}");
        self.call(Method::POST, &path, String::new()).await;
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
