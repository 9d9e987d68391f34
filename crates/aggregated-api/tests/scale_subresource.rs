//! `/scale`, request by request, against a server in this process. Expected answers are those of
//! CustomResourceDefinitions with the scale subresource; upstream's sample has none.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its work fails its test"
)]

use std::sync::Arc;

use aggregated_api::admission::StaticNamespaces;
use aggregated_api::auth::testing::{HeaderIdentity, ListAuthorizer};
use aggregated_api::http::service::ApiServer;
use aggregated_api::http::status::{ApiError, FieldError};
use aggregated_api::registry::cache::StoreCache;
use aggregated_api::registry::capability::{Companion, Create, CreatePlan, Update};
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::context::RequestCtx;
use aggregated_api::registry::serving::Serving;
use aggregated_api::store::redb::{Options, RedbStore};
use async_trait::async_trait;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use kube::CustomResource;
use runtime_kit::clock::SystemClock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Workers that come in numbers.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "wardle.example.com",
    version = "v1alpha1",
    kind = "Gang",
    namespaced,
    status = "GangStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    )
)]
struct GangSpec {
    /// How many there shall be.
    #[serde(default)]
    #[schemars(range(min = 0))]
    replicas: i32,
    /// What they do.
    #[serde(default)]
    task: String,
}

/// What there is.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
struct GangStatus {
    /// How many there are.
    replicas: i32,
    /// Which pods they are.
    selector: String,
}

struct Rules;

#[async_trait]
impl Create<Gang> for Rules {
    fn prepare(&self, _: &RequestCtx, _: &mut Gang) -> Result<(), ApiError> {
        Ok(())
    }

    async fn plan(
        &self,
        _: &RequestCtx,
        object: Gang,
        _: Option<Gang>,
    ) -> Result<CreatePlan<Gang>, ApiError> {
        Ok(CreatePlan::Write {
            object,
            companion: Companion::default(),
        })
    }
}

#[async_trait]
impl Update<Gang> for Rules {
    fn prepare(&self, _: &RequestCtx, _: &mut Gang, _: &Gang) -> Result<(), ApiError> {
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, _: &Gang, _: &Gang) -> Vec<FieldError> {
        Vec::new()
    }
}

const GANGS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/ns/gangs";
const SCALE: &str = "/apis/wardle.example.com/v1alpha1/namespaces/ns/gangs/a/scale";
const MERGE: &str = "application/merge-patch+json";

struct Server(ApiServer);

impl Server {
    /// With one gang `a` that wants three replicas and has two.
    async fn start() -> Self {
        let store = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
        let cache = StoreCache::start(store).await.unwrap();
        let clock = SystemClock::shared();
        let gangs: Collection<Gang> = Collection::new(&cache, Arc::clone(&clock)).unwrap();
        let rules = Arc::new(Rules);
        let serving = Serving::new(gangs)
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
        let gang = json!({"metadata": {"name": "a"}, "spec": {"replicas": 3, "task": "dig"}});
        server.ok("POST", GANGS, "", gang).await;
        let status = json!({"status": {"replicas": 2, "selector": "app=a"}});
        server
            .ok("PATCH", &format!("{GANGS}/a/status"), MERGE, status)
            .await;
        server
    }

    async fn send(&self, method: &str, path: &str, media: &str, body: Value) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-test-user", "bob")
            .header("content-type", media)
            .body(Body::from(body.to_string()))
            .unwrap();
        let (head, body) = self.0.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        (head.status.as_u16(), body)
    }

    async fn ok(&self, method: &str, path: &str, media: &str, body: Value) -> Value {
        let (status, answer) = self.send(method, path, media, body).await;
        assert!(status < 300, "{method} {path}: {answer}");
        answer
    }

    async fn get(&self, path: &str) -> Value {
        self.ok("GET", path, "", Value::Null).await
    }
}

#[tokio::test]
async fn a_scale_shows_and_sets_how_many_there_shall_be() {
    let server = Server::start().await;
    let object = server.get(&format!("{GANGS}/a")).await;
    let metadata = |object: &Value| {
        json!({
            "name": "a", "namespace": "ns",
            "uid": object["metadata"]["uid"],
            "resourceVersion": object["metadata"]["resourceVersion"],
            "creationTimestamp": object["metadata"]["creationTimestamp"],
        })
    };
    let mut scale = server.get(SCALE).await;
    assert_eq!(
        scale,
        json!({
            "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata(&object),
            "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "app=a"},
        })
    );
    scale["spec"]["replicas"] = json!(5);
    scale["status"]["replicas"] = json!(9);
    let scaled = server.ok("PUT", SCALE, "", scale.clone()).await;
    let object = server.get(&format!("{GANGS}/a")).await;
    assert_eq!(scaled["metadata"], metadata(&object));
    assert_eq!(
        (&scaled["spec"], &scaled["status"]["replicas"]),
        (&json!({"replicas": 5}), &json!(2))
    );
    assert_eq!(object["spec"], json!({"replicas": 5, "task": "dig"}));
    assert_eq!(object["metadata"]["generation"], 2);
    // What kubectl scale sends.
    let patched = server
        .ok("PATCH", SCALE, MERGE, json!({"spec": {"replicas": 0}}))
        .await;
    assert_eq!(patched["spec"], json!({}), "zero is left out, as by Go");
    // Without a version it is no less wanted.
    let unlocked = json!({"metadata": {"name": "a", "namespace": "ns"}, "spec": {"replicas": 1}});
    assert_eq!(
        server.ok("PUT", SCALE, "", unlocked).await["spec"]["replicas"],
        1
    );
    for (method, media, body, code) in [
        ("PUT", "", scale, 409),
        ("PUT", "", json!({"kind": "Gang"}), 400),
        ("PATCH", MERGE, json!({"spec": {"replicas": "x"}}), 400),
        ("PATCH", MERGE, json!({"spec": {"replicas": -1}}), 422),
        ("POST", "", json!({}), 405),
    ] {
        let (status, answer) = server.send(method, SCALE, media, body).await;
        assert_eq!(status, code, "{method}: {answer}");
    }
}

#[tokio::test]
async fn discovery_and_openapi_name_the_kind_of_another_group() {
    let server = Server::start().await;
    let resources = server.get("/apis/wardle.example.com/v1alpha1").await;
    assert_eq!(
        resources["resources"][1],
        json!({
            "name": "gangs/scale", "singularName": "", "namespaced": true,
            "group": "autoscaling", "version": "v1", "kind": "Scale",
            "verbs": ["get", "patch", "update"],
        })
    );
    let v2 = server.get("/openapi/v2").await;
    let path = "/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/gangs/{name}/scale";
    let put = &v2["paths"][path]["put"];
    assert_eq!(
        put["operationId"],
        "replaceWardleExampleComV1alpha1NamespacedGangScale"
    );
    assert_eq!(
        put["x-kubernetes-group-version-kind"],
        json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    );
    let name = "io.k8s.api.autoscaling.v1.Scale";
    assert_eq!(
        put["responses"]["200"]["schema"]["$ref"],
        format!("#/definitions/{name}")
    );
    assert_eq!(
        v2["definitions"][name]["x-kubernetes-group-version-kind"],
        json!([{"group": "autoscaling", "version": "v1", "kind": "Scale"}])
    );
}
