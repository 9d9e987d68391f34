//! A small group served in process: `flunders.wardle.example.com`, as upstream's sample has it.

#![expect(
    clippy::expect_used,
    reason = "a helper that cannot set up its server fails its test"
)]

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::admission::StaticNamespaces;
use aggregated_api::auth::testing::{HeaderIdentity, ListAuthorizer};
use aggregated_api::http::service::ApiServer;
use aggregated_api::http::status::ApiError;
use aggregated_api::http::status::FieldError;
use aggregated_api::registry::cache::{HistoryLimits, StoreCache};
use aggregated_api::registry::capability::{
    Companion, Create, CreatePlan, CreateSubresource, Delete, SubresourceWrite, Update,
};
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::context::RequestCtx;
use aggregated_api::registry::serving::Serving;
use aggregated_api::store::Store;
use aggregated_api::store::redb::{Options, RedbStore};
use async_trait::async_trait;
use axum::body::Body;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use kube::CustomResource;
use runtime_kit::clock::{Clock, SystemClock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tower::ServiceExt;

/// A flunder.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "wardle.example.com",
    version = "v1alpha1",
    kind = "Flunder",
    plural = "flunders",
    singular = "flunder",
    shortname = "fl",
    category = "all",
    namespaced,
    status = "FlunderStatus"
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FlunderSpec {
    /// What it refers to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 10))]
    pub(crate) reference: String,
    /// How often.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 9))]
    pub(crate) count: i32,
}

fn three() -> i32 {
    3
}

/// What became of it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub(crate) struct FlunderStatus {
    /// A word.
    pub(crate) word: String,
}

/// Body of the subresource.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub(crate) struct FlunderPoke {
    /// New word.
    #[serde(default)]
    #[schemars(length(max = 10))]
    pub(crate) word: String,
    /// How loud.
    #[serde(default)]
    pub(crate) spec: PokeSpec,
}

/// What a poke asks for.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct PokeSpec {
    /// How often.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 9))]
    pub(crate) count: i32,
    /// How loud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<Volume>,
}

impl Default for PokeSpec {
    fn default() -> Self {
        Self {
            count: three(),
            volume: None,
        }
    }
}

/// How loud a poke is.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) enum Volume {
    /// Hardly heard.
    Low,
    /// Heard by all.
    High,
}

/// The least rules: everything is allowed.
pub(crate) struct Rules;

#[async_trait]
impl Create<Flunder> for Rules {
    fn prepare(&self, _: &RequestCtx, _: &mut Flunder) -> Result<(), ApiError> {
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, flunder: &Flunder) -> Vec<FieldError> {
        if flunder.spec.reference == "bad" {
            vec![FieldError::invalid(
                "spec.reference",
                &"bad",
                "must not be bad",
            )]
        } else {
            Vec::new()
        }
    }

    async fn plan(
        &self,
        ctx: &RequestCtx,
        object: Flunder,
        existing: Option<Flunder>,
    ) -> Result<CreatePlan<Flunder>, ApiError> {
        if let Some(existing) = existing {
            let name = existing.metadata.name.unwrap_or_default();
            return Err(ApiError::already_exists(&flunders(), &name));
        }
        if object.spec.reference == "warn" {
            ctx.warn("take \"care\"");
        }
        Ok(CreatePlan::Write {
            object,
            companion: Companion::default(),
        })
    }
}

#[async_trait]
impl Update<Flunder> for Rules {
    fn prepare(&self, _: &RequestCtx, _: &mut Flunder, _: &Flunder) -> Result<(), ApiError> {
        Ok(())
    }

    fn validate(&self, _: &RequestCtx, _: &Flunder, _: &Flunder) -> Vec<FieldError> {
        Vec::new()
    }
}

#[async_trait]
impl Delete<Flunder> for Rules {
    async fn plan(&self, _: &RequestCtx, _: &Flunder) -> Result<Companion, ApiError> {
        Ok(Companion::default())
    }
}

#[async_trait]
impl CreateSubresource<Flunder> for Rules {
    type Body = FlunderPoke;
    const NAME: &'static str = "poke";
    const KIND: &'static str = "FlunderPoke";

    async fn plan(
        &self,
        _: &RequestCtx,
        mut parent: Flunder,
        body: &FlunderPoke,
    ) -> Result<SubresourceWrite<Flunder, FlunderPoke>, ApiError> {
        parent.status = Some(FlunderStatus {
            word: body.word.clone(),
        });
        Ok(SubresourceWrite {
            parent: Some(parent),
            companion: Companion::default(),
            body: body.clone(),
        })
    }
}

/// Name of the resource in errors.
pub(crate) fn flunders() -> aggregated_api::http::status::GroupResource {
    aggregated_api::http::status::GroupResource {
        group: "wardle.example.com".to_owned(),
        resource: "flunders".to_owned(),
    }
}

/// A server in this process.
pub(crate) struct Server {
    api: ApiServer,
    /// Its store.
    pub(crate) store: Arc<dyn Store>,
}

/// Path of the collection in namespace `ns`.
pub(crate) const COLLECTION: &str = "/apis/wardle.example.com/v1alpha1/namespaces/ns/flunders";

impl Server {
    /// Starts on a fresh store in memory.
    pub(crate) async fn start() -> Self {
        let store: Arc<dyn Store> =
            Arc::new(RedbStore::in_memory(Options::default()).expect("a store"));
        Self::on(store).await
    }

    /// Starts on a store.
    pub(crate) async fn on(store: Arc<dyn Store>) -> Self {
        Self::with(store, SystemClock::shared(), HistoryLimits::default()).await
    }

    /// Starts on a store, with a clock and limits on the history.
    pub(crate) async fn with(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        limits: HistoryLimits,
    ) -> Self {
        let cache = StoreCache::start_with(Arc::clone(&store), limits)
            .await
            .expect("a cache");
        let flunders: Collection<Flunder> =
            Collection::new(&cache, Arc::clone(&clock)).expect("a servable kind");
        let rules = Arc::new(Rules);
        let namespaces = StaticNamespaces::of(["ns", "other"]);
        namespaces.set_terminating("going");
        let serving = Serving::new(flunders)
            .create(rules.clone())
            .update(rules.clone())
            .delete(rules.clone())
            .subresource(rules)
            .expect("a structural body");
        let api = ApiServer::builder(
            Arc::new(HeaderIdentity),
            Arc::new(ListAuthorizer::allow_all()),
            Arc::new(namespaces),
            clock,
        )
        .serve(serving)
        .build(&prometheus::Registry::new())
        .expect("a server");
        Self { api, store }
    }

    /// Sends a request built by hand.
    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.api.clone().oneshot(request).await.expect("infallible")
    }

    /// Sends JSON, returns status and body.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-test-user", "bob");
        if method == "PATCH" {
            request = request.header("content-type", "application/merge-patch+json");
        }
        let body = body.map_or_else(Body::empty, |b| Body::from(b.to_string()));
        let response = self.send(request.body(body).expect("a request")).await;
        let status = response.status().as_u16();
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        (
            status,
            serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        )
    }

    /// Reads in the representation that `accept` names.
    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Value {
        let request = Request::builder()
            .uri(path)
            .header("x-test-user", "bob")
            .header("accept", accept)
            .body(Body::empty())
            .expect("a request");
        let body = self
            .send(request)
            .await
            .into_body()
            .collect()
            .await
            .expect("a body");
        serde_json::from_slice(&body.to_bytes()).expect("JSON")
    }

    /// Creates a flunder in `ns`.
    pub(crate) async fn create(&self, name: &str, extra: Value) -> Value {
        let mut object =
            serde_json::json!({"metadata": {"name": name}, "spec": {"reference": "r"}});
        json_patch::merge(&mut object, &extra);
        let (status, body) = self.call("POST", COLLECTION, Some(object)).await;
        assert_eq!(status, 201, "{body}");
        body
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str, accept: &str) -> Events {
        let request = Request::builder()
            .uri(path)
            .header("x-test-user", "bob")
            .header("accept", accept)
            .body(Body::empty())
            .expect("a request");
        let response = self.send(request).await;
        assert_eq!(response.status(), 200);
        Events {
            stream: StreamExt::boxed(response.into_body().into_data_stream()),
            buffer: Vec::new(),
        }
    }
}

/// Events of a watch.
pub(crate) struct Events {
    stream: futures::stream::BoxStream<'static, Result<bytes::Bytes, axum::Error>>,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; `None` when the stream ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event"));
            }
            let chunk = tokio::time::timeout(Duration::from_secs(10), self.stream.next())
                .await
                .expect("an event in time");
            self.buffer.extend_from_slice(&chunk?.expect("no error"));
        }
    }

    /// Type and name of the next event.
    pub(crate) async fn next_summary(&mut self) -> String {
        let event = self.next().await.expect("an event");
        let name = event["object"]["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        format!("{} {name}", event["type"].as_str().unwrap_or_default())
    }
}
