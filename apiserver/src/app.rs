//! Puts the process together: store, allocator, watches, tasks, server; and takes it apart again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aggregated_api::admission::{KubeNamespaces, NamespaceLifecycle};
use aggregated_api::auth::{
    Authenticator, Authorizer, DelegatedAuthenticator, DelegatedConfig,
    SubjectAccessReviewAuthorizer,
};
use aggregated_api::http::service::ApiServer;
use aggregated_api::registry::cache::StoreCache;
use aggregated_api::registry::collection::Collection;
use aggregated_api::registry::serving::Serving;
use aggregated_api::server::{self, CatchPanicLayer, Limits, ServingTls, Shutdown};
use aggregated_api::store::Store;
use aggregated_api::store::compactor::Compactor;
use aggregated_api::store::transform::TransformedStore;
use anyhow::Context;
use kube::Client;
use prometheus::Registry;
use runtime_kit::admin::{AdminServer, Health, ReadyFlag};
use runtime_kit::api_requests::ApiRequests;
use runtime_kit::clock::{Clock, SystemClock};
use runtime_kit::kubeconfig::{KubeArgs, connect};
use runtime_kit::tasks::{Spawner, Supervisor};
use runtime_kit::tls::{KeyPairFiles, ReloadingCertificate, install_default_provider};
use tokio::net::TcpListener;
use tower::Layer;

use crate::allocator::Allocator;
use crate::args::Args;
use crate::ended::Ended;
use crate::inputs::{LiveCluster, PodInput, PodSweep, PoolInput, ProxyInput};
use crate::known::{Cluster, Known};
use crate::metrics::{self, Metrics};
use crate::role::{self, Candidate, Gate};
use crate::rules::{LeaseRules, ReportRules};
use crate::storage::{self, Opened};
use crate::tasks::Desk;

/// The check that fails while another replica decides.
const ROLE: &str = "allocator";

/// How often certificate files are compared with those in use.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(10);

/// The parts that answer requests, without a network.
pub struct Parts {
    /// What the tasks work with.
    pub desk: Desk,
    /// What is known of the cluster.
    pub known: Arc<Known>,
    /// The server.
    pub server: ApiServer,
}

/// Who callers are and what they may do.
pub struct Trust {
    /// Finds out who calls.
    pub authenticator: Arc<dyn Authenticator>,
    /// Decides what they may do.
    pub authorizer: Arc<dyn Authorizer>,
    /// Which namespaces exist.
    pub namespaces: Arc<dyn NamespaceLifecycle>,
    /// Live questions about the cluster.
    pub cluster: Arc<dyn Cluster>,
}

/// [`assemble`]s a server that decides.
///
/// # Errors
/// The store cannot be read, or a metric is registered twice.
pub async fn build(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    trust: Trust,
    registry: &Registry,
    health: &Health,
    max_ttl: Duration,
) -> anyhow::Result<Parts> {
    let parts = assemble(store, clock, trust, registry, health, max_ttl).await?;
    parts.desk.load().await.context("grants cannot be loaded")?;
    Ok(parts)
}

/// Builds the server on a store. It can read; grants must be loaded before it may decide.
///
/// # Errors
/// The store cannot be read, or a metric is registered twice.
async fn assemble(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    trust: Trust,
    registry: &Registry,
    health: &Health,
    max_ttl: Duration,
) -> anyhow::Result<Parts> {
    let cache = StoreCache::start(Arc::clone(&store))
        .await
        .context("the store cannot be loaded")?;
    let leases = Collection::new(&cache, Arc::clone(&clock)).context("proxyleases")?;
    let endpoints = Collection::new(&cache, Arc::clone(&clock)).context("proxyendpoints")?;
    let allocator = Allocator::new(Arc::clone(&clock));
    let metrics = Metrics::new(registry)?;
    metrics::register_gauges(registry, Arc::clone(&allocator), Arc::clone(&store))?;
    let desk = Desk {
        allocator: Arc::clone(&allocator),
        leases: leases.clone(),
        endpoints: endpoints.clone(),
        ended: Ended::new(Arc::clone(&clock)),
        store,
        cache,
        clock: Arc::clone(&clock),
    };
    let known = Arc::new(Known::default());
    let rules = Arc::new(LeaseRules {
        allocator,
        leases: leases.clone(),
        known: Arc::clone(&known),
        cluster: trust.cluster,
        ended: Arc::clone(&desk.ended),
        metrics,
        max_ttl,
    });
    let health = health.clone();
    let server = ApiServer::builder(
        trust.authenticator,
        trust.authorizer,
        trust.namespaces,
        clock,
    )
    .serve(
        Serving::new(leases)
            .create(Arc::<LeaseRules>::clone(&rules))
            .update(Arc::<LeaseRules>::clone(&rules))
            .delete(Arc::<LeaseRules>::clone(&rules))
            .subresource(Arc::<LeaseRules>::clone(&rules))?
            .subresource(Arc::new(ReportRules(rules)))?,
    )
    .serve(Serving::new(endpoints))
    .ready_check("inputs", failing(health.clone(), |name| name != ROLE))
    .role_check(ROLE, failing(health, |name| name == ROLE))
    .build(registry)?;
    Ok(Parts {
        desk,
        known,
        server,
    })
}

/// The causes why those of the process's checks fail that are `asked` for.
fn failing(
    health: Health,
    asked: fn(&str) -> bool,
) -> Arc<dyn Fn() -> Result<(), String> + Send + Sync> {
    Arc::new(move || {
        let failed = health.ready().err().unwrap_or_default();
        let causes: Vec<_> = failed
            .iter()
            .filter(|(name, _)| asked(name))
            .map(|(name, why)| format!("{name}: {why}"))
            .collect();
        if causes.is_empty() {
            Ok(())
        } else {
            Err(causes.join("; "))
        }
    })
}

/// Runs the process until it is told to stop.
///
/// # Errors
/// Files, ports or the store cannot be used, or a part of the process failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    install_default_provider();
    let clock = SystemClock::shared();
    let supervisor = Supervisor::new();
    let health = Health::new();
    let registry = Registry::new();
    let certificate = ReloadingCertificate::load(KeyPairFiles {
        certificate: args.tls_cert_file.clone(),
        key: args.tls_private_key_file.clone(),
    })
    .await
    .context("--tls-cert-file, --tls-private-key-file")?;
    let address = SocketAddr::new(args.bind_address, args.secure_port);
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}: choose another --secure-port"))?;
    let admin = AdminServer::bind(args.admin_address, health.clone(), registry.clone()).await?;
    tracing::info!(address = %admin.address(), "admin endpoints");
    supervisor.spawn_closing("admin endpoints", admin.serve(supervisor.closing()));

    let opened = health.ready_flag("store", "the store is being opened");
    let started = health.ready_flag("start", "starting");
    let spawner = supervisor.spawner();
    let grace = args.shutdown_grace + args.shutdown_delay_duration;
    supervisor.spawn_job("start", async move {
        // Why here: a check may take long, and meanwhile the process answers its platform.
        let stop = spawner.shutdown();
        let store = tokio::select! {
            store = storage::open(args.store.clone(), opened, &*clock) => store,
            () = stop.cancelled() => return Ok(()),
        };
        let opened = store.map_err(anyhow::Error::into_boxed_dyn_error)?;
        let process = Process {
            args,
            clock,
            health,
            registry,
            certificate,
            opened,
            listener,
        };
        let started = Box::pin(process.start(spawner))
            .await
            .map(|()| started.set_ready());
        started.map_err(anyhow::Error::into_boxed_dyn_error)
    });
    supervisor.run(grace + Duration::from_secs(5)).await?;
    Ok(())
}

struct Process {
    args: Args,
    clock: Arc<dyn Clock>,
    health: Health,
    registry: Registry,
    certificate: Arc<ReloadingCertificate>,
    opened: Opened,
    listener: TcpListener,
}

impl Process {
    /// Waits for the API server, then starts everything. Returns when all is started, or the
    /// process is to stop.
    async fn start(self, spawner: Spawner) -> anyhow::Result<()> {
        let Self {
            args,
            clock,
            health,
            registry,
            certificate,
            opened,
            listener,
        } = self;
        let stop = spawner.shutdown();
        let requests = ApiRequests::register(&registry)?;
        let Some(clients) = Clients::connect(&args, &requests, &*clock, &health, &spawner).await
        else {
            return Ok(());
        };
        let config = DelegatedConfig::pending(Arc::clone(&clock));
        let namespaces = KubeNamespaces::new(clients.main.clone());
        let trust = Trust {
            authenticator: Arc::new(DelegatedAuthenticator::new(
                &config,
                clients.authentication.clone(),
                args.api_audiences.clone(),
                Arc::clone(&clock),
            )),
            authorizer: Arc::new(SubjectAccessReviewAuthorizer::new(
                clients.authorization,
                Arc::clone(&clock),
            )),
            namespaces: Arc::<KubeNamespaces>::clone(&namespaces),
            cluster: Arc::new(LiveCluster::new(clients.main.clone())),
        };
        let values = opened.store;
        let whole: Arc<dyn Store> = Arc::<TransformedStore>::clone(&values);
        let (store, candidate): (Arc<dyn Store>, _) = if opened.shared {
            let (fenced, candidate) = role::fence(whole, &args.identity, Arc::clone(&clock));
            (fenced, Some(candidate))
        } else {
            (whole, None)
        };
        let Parts {
            desk,
            known,
            server,
        } = assemble(
            store,
            Arc::clone(&clock),
            trust,
            &registry,
            &health,
            args.max_lease_ttl,
        )
        .await?;

        let (follow, follow_stop) = (Arc::clone(&config), stop.clone());
        let authentication = clients.authentication;
        spawner.spawn("authentication settings", async move {
            follow.run(authentication, follow_stop).await;
        });
        let (settings, asked) = (Arc::clone(&config), Arc::clone(&config));
        health.ready_check("authentication", move || {
            let state = asked.state();
            if state.is_settled() {
                Ok(())
            } else {
                Err(format!("{state:?}"))
            }
        });
        let follow_stop = stop.clone();
        let known_namespaces = Arc::clone(&namespaces);
        health.ready_check("namespaces", move || {
            if known_namespaces.is_synced() {
                Ok(())
            } else {
                Err("not read yet".to_owned())
            }
        });
        spawner.spawn(
            "namespaces",
            async move { namespaces.run(follow_stop).await },
        );
        let open = Arc::new(AtomicBool::new(false));
        let deciding = Deciding {
            values,
            desk: desk.clone(),
            known,
            client: clients.main,
            health: health.clone(),
            spawner: spawner.clone(),
            open: Arc::clone(&open),
        };
        match candidate {
            None => deciding.begin().await?,
            Some(candidate) => {
                let ready = health.ready_flag(ROLE, "who decides is not known yet");
                let end = stop.clone();
                spawner.spawn("allocator", async move {
                    let deciding = async {
                        deciding.in_turn(candidate, ready).await?;
                        std::future::pending::<anyhow::Result<()>>().await
                    };
                    let ended = tokio::select! {
                        ended = deciding => ended,
                        () = end.cancelled() => Ok(()),
                    };
                    ended.map_err(anyhow::Error::into_boxed_dyn_error)
                });
            },
        }

        let cache = Arc::clone(&desk.cache);
        let lost = stop.clone();
        spawner.spawn("watch cache", async move {
            tokio::select! {
                cause = cache.failed() => Err(anyhow::anyhow!(cause).into_boxed_dyn_error()),
                () = lost.cancelled() => Ok(()),
            }
        });
        let compactor = Compactor::new(
            Arc::clone(&desk.store),
            args.store_history,
            Arc::clone(&clock),
        );
        let end = stop.clone();
        spawner.spawn("compaction", async move {
            tokio::select! {
                error = compactor.run() => Err(error),
                () = end.cancelled() => Ok(()),
            }
        });
        let reloading = Arc::clone(&certificate);
        spawner.spawn(
            "certificate",
            reloading.watch(CERTIFICATE_INTERVAL, Arc::clone(&clock), stop.clone()),
        );

        let tls = ServingTls::new(certificate, config)?;
        let (following, end) = (Arc::clone(&tls), stop.clone());
        spawner.spawn(
            "client authorities",
            async move { following.run(end).await },
        );
        // Why: before the authorities are known, valid certificates are those of strangers.
        let trusted = tokio::select! {
            () = settings.settled() => true,
            () = stop.cancelled() => false,
        };
        if !trusted {
            return Ok(());
        }
        let service = CatchPanicLayer.layer(Gate::new(server, open));
        let address = listener.local_addr()?;
        tracing::info!(%address, "serving");
        let (delay, drain) = (args.shutdown_delay_duration, args.shutdown_grace);
        let close = tokio_util::sync::CancellationToken::new();
        let closing = close.clone();
        let stopping = stop.clone();
        health.ready_check("not stopping", move || {
            if stopping.is_cancelled() {
                Err("the process is stopping".to_owned())
            } else {
                Ok(())
            }
        });
        spawner.spawn("stop of the port", async move {
            stop.cancelled().await;
            clock.sleep(delay).await;
            closing.cancel();
        });
        spawner.spawn("api", async move {
            let shutdown = Shutdown { stop: close, drain };
            let report = server::serve(listener, tls, service, Limits::default(), shutdown).await;
            if report.cut > 0 {
                tracing::warn!(connections = report.cut, "cut while stopping");
            }
        });
        Ok(())
    }
}

/// What a replica needs for deciding.
struct Deciding {
    values: Arc<TransformedStore>,
    desk: Desk,
    known: Arc<Known>,
    client: Client,
    health: Health,
    spawner: Spawner,
    open: Arc<AtomicBool>,
}

impl Deciding {
    /// Loads grants, follows the cluster, and lets writes through.
    async fn begin(self) -> anyhow::Result<()> {
        // Why first: afterwards the allocator knows the versions of what it writes.
        let renewed = self.values.renew().await;
        let renewed = renewed.context("values cannot be written in the configured form")?;
        if renewed > 0 {
            tracing::info!(renewed, "values were encrypted anew");
        }
        let cache = &self.desk.cache;
        cache.consistent().await.context("the store is not read")?;
        self.desk.load().await.context("grants cannot be loaded")?;
        watch_cluster(
            &self.spawner,
            &self.health,
            &self.client,
            &self.desk,
            &self.known,
        );
        self.desk.spawn(&self.spawner);
        self.open.store(true, Ordering::Release);
        Ok(())
    }

    /// Begins when no other replica decides. Losing the role ends the process: what was decided in
    /// memory is not kept up any more.
    async fn in_turn(self, candidate: Candidate, ready: ReadyFlag) -> anyhow::Result<()> {
        candidate.campaign(&ready).await;
        tracing::info!("this replica decides");
        let closing = self.spawner.closing();
        self.spawner.spawn_closing("sign of life", async move {
            tokio::select! {
                deposed = candidate.hold() => Err(deposed),
                () = closing.cancelled() => {
                    candidate.resign().await;
                    Ok(())
                },
            }
        });
        self.begin().await?;
        ready.set_ready();
        Ok(())
    }
}

fn watch_cluster(
    spawner: &Spawner,
    health: &Health,
    client: &Client,
    desk: &Desk,
    known: &Arc<Known>,
) {
    let run = |name: &str, task: futures::future::BoxFuture<'static, ()>| {
        let stop = spawner.shutdown();
        spawner.spawn(name, async move {
            tokio::select! {
                () = task => {},
                () = stop.cancelled() => {},
            }
        });
    };
    let unread = "not read yet";
    let pools = PoolInput::new(Arc::clone(&desk.allocator), Arc::clone(known));
    run(
        "proxypools",
        Box::pin(pools.run(client.clone(), health.ready_flag("proxypools", unread))),
    );
    let proxies = ProxyInput::new(desk.clone(), Arc::clone(known));
    run(
        "proxies",
        Box::pin(proxies.run(client.clone(), health.ready_flag("proxies", unread))),
    );
    let pods = PodInput::new(desk.clone(), Arc::clone(known));
    run(
        "pods",
        Box::pin(pods.run(client.clone(), health.ready_flag("pods", unread))),
    );
    run(
        "pod sweep",
        Box::pin(PodSweep::new(desk.clone(), Arc::clone(known)).run()),
    );
}

/// One client per purpose; they may be the same identity.
struct Clients {
    main: Client,
    authentication: Client,
    authorization: Client,
}

impl Clients {
    /// Waits until the API server accepts all of them; `None`: the process is to stop.
    async fn connect(
        args: &Args,
        requests: &ApiRequests,
        clock: &dyn Clock,
        health: &Health,
        spawner: &Spawner,
    ) -> Option<Self> {
        let stop = spawner.shutdown();
        let ready = health.ready_flag("api server", "not asked yet");
        let main = connect(&args.kube, requests, clock, &ready, &stop)
            .await?
            .client;
        let mut others = Vec::new();
        for file in [
            &args.authentication_kubeconfig,
            &args.authorization_kubeconfig,
        ] {
            let client = match file {
                None => main.clone(),
                Some(file) => {
                    let kube = KubeArgs {
                        kubeconfig: Some(file.clone()),
                        context: None,
                    };
                    connect(&kube, requests, clock, &ready, &stop).await?.client
                },
            };
            others.push(client);
        }
        let mut others = others.into_iter();
        Some(Self {
            authentication: others.next()?,
            authorization: others.next()?,
            main,
        })
    }
}
