//! Builds kubeconfigs. Pure: [`crate::Cluster`] decides who gets which and writes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::pki::CertPair;

/// How a kubeconfig proves who its user is.
pub(crate) enum Credential<'a> {
    Certificate(&'a CertPair),
    Token(&'a str),
}

/// A kubeconfig with one context called `devcluster`. YAML (its JSON subset, one key per line).
pub(crate) fn build_kubeconfig(
    server: &str,
    ca: &str,
    user: &str,
    credential: &Credential<'_>,
    namespace: &str,
) -> String {
    let user_entry = match credential {
        Credential::Certificate(pair) => json!({
            "client-certificate-data": STANDARD.encode(&pair.cert),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    let config: Value = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "devcluster",
        "clusters": [{
            "name": "devcluster",
            "cluster": { "server": server, "certificate-authority-data": STANDARD.encode(ca) },
        }],
        "contexts": [{
            "name": "devcluster",
            "context": { "cluster": "devcluster", "user": user, "namespace": namespace },
        }],
        "users": [{ "name": user, "user": user_entry }],
    });
    format!("{config:#}\n")
}
