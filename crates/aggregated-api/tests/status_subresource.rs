//! `/status`, request by request, against a server in this process. Expected answers are those of
//! CustomResourceDefinitions with the status subresource; upstream's sample has none.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its work fails its test"
)]

#[expect(dead_code, reason = "shared with other tests, which use more of it")]
mod common;

use std::sync::Arc;

use aggregated_api::admission::StaticNamespaces;
use aggregated_api::auth::testing::{HeaderIdentity, ListAuthorizer};
use aggregated_api::http::service::ApiServer;
use aggregated_api::registry::cache::StoreCache;
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::serving::Serving;
use aggregated_api::store::redb::{Options, RedbStore};
use axum::body::Body;
use common::{COLLECTION, Flunder, Rules};
use http::Request;
use http_body_util::BodyExt as _;
use runtime_kit::clock::SystemClock;
use serde_json::{Value, json};
use tower::ServiceExt as _;

const MERGE: &str = "application/merge-patch+json";

struct Server(ApiServer);

impl Server {
    /// With one flunder `a`, and that flunder.
    async fn start() -> (Self, Value) {
        let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        let cache = StoreCache::start(store).await.unwrap();
        let clock = SystemClock::shared();
        let flunders: Collection<Flunder> = Collection::new(&cache, Arc::clone(&clock)).unwrap();
        let rules = Arc::new(Rules);
        let serving = Serving::new(flunders)
            .create(Arc::<Rules>::clone(&rules))
            .update(Arc::<Rules>::clone(&rules))
            .status(rules)
            .unwrap();
        let server = ApiServer::builder(
            Arc::new(HeaderIdentity),
            Arc::new(ListAuthorizer::allow_all()),
            Arc::new(StaticNamespaces::of(["ns"])),
            clock,
        )
        .serve(serving)
        .build(&prometheus::Registry::new())
        .unwrap();
        let server = Self(server);
        let body = json!({
            "metadata": {"name": "a", "labels": {"app": "x"}},
            "spec": {"reference": "r"},
            "status": {"word": "dropped"},
        });
        let (status, created) = server.send("POST", COLLECTION, "", Some(body)).await;
        assert_eq!(status, 201, "{created}");
        assert_eq!(created["status"], Value::Null);
        (server, created)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        media: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-test-user", "bob")
            .header("content-type", media)
            .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
            .unwrap();
        let (head, body) = self.0.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        (head.status.as_u16(), body)
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send("GET", path, "", None).await;
        assert_eq!(status, 200, "{body}");
        body
    }
}

fn status_of(name: &str) -> String {
    format!("{COLLECTION}/{name}/status")
}

/// `object` with the version and the status of `changed`.
fn with_status_of(object: &Value, changed: &Value) -> Value {
    let mut expected = object.clone();
    expected["status"] = changed["status"].clone();
    expected["metadata"]["resourceVersion"] = changed["metadata"]["resourceVersion"].clone();
    expected
}

#[tokio::test]
async fn a_replaced_status_leaves_everything_else_as_it_is() {
    let (server, created) = Server::start().await;
    let mut sent = created.clone();
    sent["spec"]["reference"] = json!("other");
    sent["metadata"]["labels"] = json!({"app": "y"});
    sent["metadata"]["finalizers"] = json!(["example.com/f"]);
    sent["status"] = json!({"word": "up"});
    let (status, changed) = server.send("PUT", &status_of("a"), "", Some(sent)).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(changed["status"], json!({"word": "up"}));
    assert_eq!(changed, with_status_of(&created, &changed));
    let version = |object: &Value| {
        let text = object["metadata"]["resourceVersion"].as_str().unwrap();
        text.parse::<u64>().unwrap()
    };
    assert!(version(&changed) > version(&created));
    for path in [format!("{COLLECTION}/a"), status_of("a")] {
        assert_eq!(server.get(&path).await, changed, "{path}");
    }
}

#[tokio::test]
async fn a_patched_status_leaves_everything_else_as_it_is() {
    let (server, created) = Server::start().await;
    let merge = json!({"spec": {"reference": "other"}, "status": {"word": "up"}});
    let json_patch = json!([
        {"op": "replace", "path": "/spec/reference", "value": "other"},
        {"op": "replace", "path": "/status/word", "value": "down"},
    ]);
    for (media, patch, word) in [
        (MERGE, merge, "up"),
        ("application/json-patch+json", json_patch, "down"),
    ] {
        let (status, changed) = server
            .send("PATCH", &status_of("a"), media, Some(patch))
            .await;
        assert_eq!(status, 200, "{changed}");
        assert_eq!(changed["status"]["word"], word);
        assert_eq!(changed, with_status_of(&created, &changed));
    }
    let (status, main) = server
        .send(
            "PATCH",
            &format!("{COLLECTION}/a"),
            MERGE,
            Some(json!({"spec": {"reference": "s"}, "status": {"word": "main"}})),
        )
        .await;
    assert_eq!(status, 200, "{main}");
    assert_eq!(
        (&main["spec"]["reference"], &main["status"]["word"]),
        (&json!("s"), &json!("down"))
    );
}

#[tokio::test]
async fn a_status_is_written_under_the_lock_and_the_schema_of_the_object() {
    let (server, created) = Server::start().await;
    let object = |metadata: Value, status: Value| {
        let mut object = created.clone();
        json_patch::merge(&mut object["metadata"], &metadata);
        object["status"] = status;
        Some(object)
    };
    let up = json!({"word": "up"});
    let strict = format!("{}?fieldValidation=Strict", status_of("a"));
    let dry = format!("{}?dryRun=All", status_of("a"));
    for (method, path, media, body, code, reason) in [
        (
            "PUT",
            status_of("a"),
            "",
            object(json!({"resourceVersion": "1000"}), up.clone()),
            409,
            "Conflict",
        ),
        (
            "PUT",
            status_of("a"),
            "",
            object(json!({"resourceVersion": null}), up.clone()),
            422,
            "Invalid",
        ),
        (
            "PUT",
            status_of("a"),
            "",
            object(json!({"name": "b"}), up.clone()),
            400,
            "BadRequest",
        ),
        (
            "PUT",
            status_of("a"),
            "",
            object(json!({}), json!({"word": 1})),
            422,
            "Invalid",
        ),
        (
            "PATCH",
            strict,
            MERGE,
            Some(json!({"status": {"nope": 1}})),
            400,
            "BadRequest",
        ),
        (
            "PATCH",
            status_of("b"),
            MERGE,
            Some(json!({"status": up})),
            404,
            "NotFound",
        ),
        (
            "POST",
            status_of("a"),
            "",
            object(json!({}), up.clone()),
            405,
            "MethodNotAllowed",
        ),
        ("DELETE", status_of("a"), "", None, 405, "MethodNotAllowed"),
    ] {
        let (status, answer) = server.send(method, &path, media, body).await;
        assert_eq!(
            (status, answer["reason"].as_str()),
            (code, Some(reason)),
            "{method} {path}: {answer}"
        );
    }
    let (status, tried) = server
        .send("PATCH", &dry, MERGE, Some(json!({"status": up})))
        .await;
    assert_eq!((status, &tried["status"]), (200, &up));
    assert_eq!(server.get(&format!("{COLLECTION}/a")).await, created);
}

#[tokio::test]
async fn discovery_and_openapi_tell_of_the_status() {
    let (server, _) = Server::start().await;
    let resources = server.get("/apis/wardle.example.com/v1alpha1").await;
    assert_eq!(
        resources["resources"][1],
        json!({
            "name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder",
            "verbs": ["get", "patch", "update"],
        })
    );
    let document = server
        .get("/openapi/v3/apis/wardle.example.com/v1alpha1")
        .await;
    let path = "/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders/{name}/status";
    let item = &document["paths"][path];
    for (method, id) in [
        ("get", "readWardleExampleComV1alpha1NamespacedFlunderStatus"),
        (
            "put",
            "replaceWardleExampleComV1alpha1NamespacedFlunderStatus",
        ),
        (
            "patch",
            "patchWardleExampleComV1alpha1NamespacedFlunderStatus",
        ),
    ] {
        assert_eq!(item[method]["operationId"], id);
        assert_eq!(
            item[method]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/com.example.wardle.v1alpha1.Flunder"
        );
    }
    assert_eq!(
        (&item["post"], &item["delete"]),
        (&Value::Null, &Value::Null)
    );
}
