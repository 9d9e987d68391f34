//! Puts the sample server together: store, kinds, delegated authentication and authorization, TLS.

use std::sync::Arc;
use std::time::Duration;

use aggregated_api::admission::KubeNamespaces;
use aggregated_api::auth::{
    DelegatedAuthenticator, DelegatedConfig, SubjectAccessReviewAuthorizer,
};
use aggregated_api::http::service::{ApiServer, ApiServerBuilder};
use aggregated_api::registry::cache::StoreCache;
use aggregated_api::registry::capability::Object;
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::serving::Serving;
use aggregated_api::schema::declaration::DeclarationError;
use aggregated_api::server::{CatchPanicLayer, Limits, ServingTls, Shutdown, serve};
use aggregated_api::store::Store;
use aggregated_api::store::redb::{Options, RedbStore};
use anyhow::Context as _;
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use kube::Client;
use runtime_kit::clock::{Clock, SystemClock};
use runtime_kit::tls::{KeyPairFiles, ReloadingCertificate};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::{Layer, Service};

use crate::wardle::kinds::{Fischer, Flunder, FlunderV1alpha1};
use crate::wardle::rules::{FlunderRules, Plain};

/// How long requests may take to finish after the stop.
const DRAIN: Duration = Duration::from_secs(5);

/// What the server is given.
pub(crate) struct Setup {
    /// For the authentication settings, token and access reviews, and namespaces.
    pub(crate) client: Client,
    /// Where objects are kept.
    pub(crate) store: Arc<dyn Store>,
    /// Where it listens.
    pub(crate) listener: TcpListener,
    /// What it shows to clients.
    pub(crate) serving: KeyPairFiles,
    /// Ends it.
    pub(crate) stop: CancellationToken,
}

/// What further kinds are made of.
pub(crate) struct Kinds {
    cache: Arc<StoreCache>,
    clock: Arc<dyn Clock>,
}

impl Kinds {
    /// The objects of one kind.
    ///
    /// # Errors
    /// The kind cannot be served.
    pub(crate) fn collection<T: Object>(&self) -> Result<Collection<T>, DeclarationError> {
        Collection::new(&self.cache, Arc::clone(&self.clock))
    }
}

/// A store in memory.
///
/// # Errors
/// None is known.
pub(crate) fn memory() -> anyhow::Result<Arc<dyn Store>> {
    Ok(Arc::new(RedbStore::in_memory(Options::default())?))
}

/// A kind without rules, with everything that can be done to it.
pub(crate) fn plain<T: Object>(collection: Collection<T>) -> Serving<T> {
    let rules = Arc::new(Plain(collection.clone()));
    Serving::new(collection)
        .create(Arc::<Plain<T>>::clone(&rules))
        .update(Arc::<Plain<T>>::clone(&rules))
        .delete(rules)
}

/// [`start_with`] no further kinds.
///
/// # Errors
/// As there.
pub(crate) async fn start<L>(setup: Setup, layer: L) -> anyhow::Result<JoinHandle<()>>
where
    L: Layer<ApiServer>,
    L::Service: Service<Request<Incoming>, Response = Response<Body>, Error = std::convert::Infallible>
        + Clone
        + Send
        + 'static,
    <L::Service as Service<Request<Incoming>>>::Future: Send,
{
    start_with(setup, layer, |builder, _| Ok(builder)).await
}

/// Serves the group, with `layer` around the server, until `setup.stop`; the task is over when the server
/// has stopped. `more` adds kinds.
///
/// # Errors
/// The certificate cannot be read, or the kinds cannot be served.
pub(crate) async fn start_with<L>(
    setup: Setup,
    layer: L,
    more: impl FnOnce(ApiServerBuilder, &Kinds) -> anyhow::Result<ApiServerBuilder>,
) -> anyhow::Result<JoinHandle<()>>
where
    L: Layer<ApiServer>,
    L::Service: Service<Request<Incoming>, Response = Response<Body>, Error = std::convert::Infallible>
        + Clone
        + Send
        + 'static,
    <L::Service as Service<Request<Incoming>>>::Future: Send,
{
    let Setup {
        client,
        store,
        listener,
        serving,
        stop,
    } = setup;
    let clock = SystemClock::shared();
    let cache = StoreCache::start(store)
        .await
        .map_err(|refusal| anyhow::anyhow!("the store cannot be loaded: {refusal}"))?;
    let flunders: Collection<Flunder> =
        Collection::with_versions(&cache, Arc::clone(&clock), |versions| {
            versions.add::<FlunderV1alpha1>()
        })?;
    let kinds = Kinds {
        cache,
        clock: Arc::clone(&clock),
    };
    let fischers: Collection<Fischer> = kinds.collection()?;
    let config = DelegatedConfig::pending(Arc::clone(&clock));
    let namespaces = KubeNamespaces::new(client.clone());
    tokio::spawn({
        let (config, client, stop) = (Arc::clone(&config), client.clone(), stop.clone());
        async move { config.run(client, stop).await }
    });
    tokio::spawn({
        let (namespaces, stop) = (Arc::clone(&namespaces), stop.clone());
        async move { namespaces.run(stop).await }
    });
    let authenticator =
        DelegatedAuthenticator::new(&config, client.clone(), Vec::new(), Arc::clone(&clock));
    let authorizer = SubjectAccessReviewAuthorizer::new(client, Arc::clone(&clock));
    let flunder_rules = Arc::new(FlunderRules {
        flunders: flunders.clone(),
        fischers: fischers.clone(),
    });
    let builder = ApiServer::builder(
        Arc::new(authenticator),
        Arc::new(authorizer),
        namespaces,
        clock,
    )
    .serve(
        Serving::new(flunders)
            .create(Arc::<FlunderRules>::clone(&flunder_rules))
            .update(Arc::<FlunderRules>::clone(&flunder_rules))
            .delete(flunder_rules),
    )
    .serve(plain(fischers));
    let api = more(builder, &kinds)?.build(&prometheus::Registry::new())?;
    config.settled().await;
    let certificate = ReloadingCertificate::load(serving)
        .await
        .context("the serving certificate")?;
    let tls = ServingTls::new(certificate, config)?;
    let service = CatchPanicLayer.layer(layer.layer(api));
    let shutdown = Shutdown { stop, drain: DRAIN };
    Ok(tokio::spawn(async move {
        let report = serve(listener, tls, service, Limits::default(), shutdown).await;
        tracing::debug!(cut = report.cut, "stopped");
    }))
}
