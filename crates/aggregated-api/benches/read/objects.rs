//! The objects that are read, and how they get into the stores without passing a server: the same bytes
//! for all.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

use aggregated_api::store::{Compare, Op, Outcome, Store};
use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::subjects::Who;

/// Group of the objects.
pub(crate) const GROUP: &str = devcluster::SAMPLE_GROUP;
/// Namespace of everything that is read.
pub(crate) const NAMESPACE: &str = "bench";
/// Annotation that says when an object was written: `<number> <nanoseconds>`. Sorted before the others, so
/// that it is found soon.
pub(crate) const WRITTEN: &str = "a.bench.example.com/written";

/// What makes an object as large as a lease is, 1.7 kB: so many pieces of 27 bytes.
const FILLINGS: u32 = 44;
/// Transactions of ours in flight.
const IN_FLIGHT: usize = 256;
/// Objects in one transaction of etcd, which takes 128 operations.
const AT_ONCE: u32 = 100;

/// Name of the object with a number.
pub(crate) fn name(number: u32) -> String {
    format!("object-{number:06}")
}

/// An object as a client writes it: the same in every version.
pub(crate) fn object(name: &str, version: &str, written: &str) -> Value {
    // Half of it repeats, as it does in real objects.
    let filling: Vec<String> = (0..FILLINGS)
        .map(|at| {
            let mut hasher = DefaultHasher::new();
            (name, at).hash(&mut hasher);
            format!("proxy.example.com={:08x}", hasher.finish() >> 32)
        })
        .collect();
    json!({
        "apiVersion": format!("{GROUP}/{version}"),
        "kind": "Flunder",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": { "app": "crawler", "pool": "eu" },
            "annotations": { WRITTEN: written, "bench.example.com/filling": filling.join(",") },
        },
        "spec": {},
        "status": {},
    })
}

fn stored(who: Who, number: u32) -> (String, Bytes) {
    let name = name(number);
    let mut object = object(&name, who.version(), "-");
    if let Some(metadata) = object.get_mut("metadata") {
        metadata["uid"] = json!(format!("00000000-0000-4000-8000-{number:012x}"));
        metadata["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        metadata["generation"] = json!(1);
    }
    (name, object.to_string().into())
}

/// Puts objects into a store of ours, in transactions of one each, as a server would.
pub(crate) async fn fill(store: &Arc<dyn Store>, count: u32) -> Result<()> {
    stream::iter(0..count)
        .map(|number| async move {
            let (name, value) = stored(Who::Redb, number);
            let key: Arc<str> = Arc::from(format!("/registry/{GROUP}/flunders/{NAMESPACE}/{name}"));
            let absent = vec![Compare::ModRevision(Arc::clone(&key), 0)];
            let outcome = store.txn(absent, vec![Op::Put(key, value)]).await?;
            ensure!(
                matches!(outcome, Outcome::Committed(_)),
                "{name} is there already"
            );
            Ok(())
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await
}

/// Puts the same objects where the Go sample-apiserver with `--etcd-prefix=<prefix>` looks for them,
/// through etcd's JSON gateway.
pub(crate) async fn fill_peer(etcd: &str, prefix: &str, count: u32) -> Result<()> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut from = 0;
    while from < count {
        let until = count.min(from + AT_ONCE);
        let puts: Vec<Value> = (from..until)
            .map(|number| {
                let (name, value) = stored(Who::Sample, number);
                let key = format!("{prefix}/{GROUP}/flunders/{NAMESPACE}/{name}");
                json!({ "requestPut": { "key": STANDARD.encode(key), "value": STANDARD.encode(value) } })
            })
            .collect();
        let body = json!({ "success": puts }).to_string();
        let request = Request::post(format!("{etcd}/v3/kv/txn")).body(Full::from(body))?;
        let answer = client
            .request(request)
            .await
            .context("etcd does not answer")?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(
            status.is_success(),
            "etcd: {status}: {}",
            String::from_utf8_lossy(&body)
        );
        from = until;
    }
    Ok(())
}
