//! Puts the parts of the operator together and runs them until a signal or a failure.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Config as ControllerConfig, Error as ControllerError};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use prometheus::Registry;
use runtime_kit::admin::{AdminServer, Health};
use runtime_kit::api_requests::ApiRequests;
use runtime_kit::kubeconfig::{self, Connection};
use runtime_kit::leader::{Candidate, LeaderConfig};
use runtime_kit::logging;
use runtime_kit::tasks::Spawner;
use runtime_kit::{Clock, Supervisor, SystemClock};
use serde::de::DeserializeOwned;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;

use crate::args::{Args, Command, EchoCommand, OperatorArgs};
use crate::events::Events;
use crate::health::Engine;
use crate::providers::{Providers, Requests, config};
use crate::proxy::{LeaseApi, Polls, Settings};
use crate::views::{self, Views};
use crate::watch::{Change, SharedWatch, Subscription};
use crate::{credentials, echo, gc, metrics, pool, proxy, secrets};

/// The name of the Lease that decides which replica works.
const LEASE_NAME: &str = "proxy-operator";

/// Runs what the command line asks for.
///
/// # Errors
/// It could not start, or a part of it failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        command,
        operator,
        log,
    } = args;
    if let Some(Command::Echo(EchoCommand { echo, log })) = command {
        logging::init(&log)?;
        return echo::run(echo).await;
    }
    logging::init(&log)?;
    Box::pin(run_operator(operator)).await
}

async fn run_operator(args: OperatorArgs) -> anyhow::Result<()> {
    let clock = SystemClock::shared();
    let registry = Registry::new();
    let path = args
        .providers_config
        .as_ref()
        .context("--providers-config is required")?;
    let accounts = config::Config::read(path)?;
    let requests = Requests::register(&registry)?;
    let providers = Providers::build(&accounts, &requests, &clock).await?;
    let supervisor = Supervisor::new();
    let (checked, shutdown) = (providers.clone(), supervisor.spawner().shutdown());
    supervisor.spawn_job("check of providers", async move {
        let _cut_short = shutdown.run_until_cancelled(checked.check()).await;
    });

    let health = Health::new();
    let connected = health.ready_flag("kube-apiserver", "not connected yet");
    let ctx = Arc::new(OnceLock::new());
    let views = Views {
        providers: providers.clone(),
        ctx: Arc::clone(&ctx),
        clock: Arc::clone(&clock),
    };
    let admin = AdminServer::bind(args.bind_address, health.clone(), registry.clone()).await?;
    let admin = admin.with(views::routes(views));
    tracing::info!(address = %admin.address(), "serving /healthz, /readyz and /metrics");
    supervisor.spawn_closing("admin endpoints", admin.serve(supervisor.closing()));

    let grace = args.shutdown_grace;
    let start = Start {
        args,
        clock,
        registry,
        providers,
        health,
        connected,
        ctx,
        tasks: supervisor.spawner(),
    };
    supervisor.spawn_job("start", start.run());
    supervisor.run(grace).await?;
    Ok(())
}

/// What is known before the API server answers.
struct Start {
    args: OperatorArgs,
    clock: Arc<dyn Clock>,
    registry: Registry,
    providers: Providers,
    health: Health,
    connected: runtime_kit::admin::ReadyFlag,
    /// Set as soon as there is one, for the views.
    ctx: Arc<OnceLock<Arc<proxy::Ctx>>>,
    tasks: Spawner,
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct StartError(#[from] anyhow::Error);

impl Start {
    async fn run(self) -> Result<(), StartError> {
        let shutdown = self.tasks.shutdown();
        let requests = ApiRequests::register(&self.registry).map_err(anyhow::Error::from)?;
        let connection = kubeconfig::connect(
            &self.args.kube,
            &requests,
            &self.clock,
            &self.connected,
            &shutdown,
        );
        match Box::pin(connection).await {
            Some(connection) => Ok(Box::pin(self.run_connected(connection)).await?),
            None => Ok(()),
        }
    }

    async fn run_connected(self, connection: Connection) -> anyhow::Result<()> {
        let Self {
            args,
            clock,
            registry,
            providers,
            health,
            connected: _,
            ctx: shown,
            tasks,
        } = self;
        let Connection { client, config } = connection;
        let shutdown = tasks.shutdown();

        let mut proxies = SharedWatch::new(apis(&client, &args.namespaces));
        let mut pools = SharedWatch::new(apis(&client, &args.namespaces));
        let work = Work {
            proxy_changes: proxies.subscribe(|proxy: &Proxy, change| match change {
                Change::Applied => Some(ObjectRef::from_obj(proxy)),
                Change::Deleted => None,
            }),
            withheld: {
                let members = proxies.store();
                pools.subscribe(move |pool: &ProxyPool, _| proxy::withheld_members(&members, pool))
            },
            pool_changes: pools.subscribe(|pool: &ProxyPool, change| match change {
                Change::Applied => Some(ObjectRef::from_obj(pool)),
                Change::Deleted => None,
            }),
            referring: proxies.subscribe(|proxy: &Proxy, _| secrets::referring(proxy)),
            member_changes: proxies.subscribe(|proxy: &Proxy, _| pool::owner(proxy)),
            proxies: proxies.store(),
            pools: pools.store(),
        };
        metrics::register(&registry, proxies.store())?;
        let passes = metrics::Passes::register(&registry, Arc::clone(&clock))?;
        let leases = LeaseApi::new(client.clone());
        let (engine, transitions) = Engine::new(
            Arc::clone(&clock),
            &registry,
            args.health.clone(),
            Arc::new(leases.clone()),
        )?;

        let leader = if args.no_leader_elect {
            None
        } else {
            let namespace = args.leader_elect_namespace.as_ref();
            let namespace = namespace.unwrap_or(&config.default_namespace);
            let config = LeaderConfig::new(namespace, LEASE_NAME, &args.identity);
            Some(Candidate::new(client.clone(), config, Arc::clone(&clock)))
        };
        let cluster_id = shutdown
            .run_until_cancelled(cluster_id(&client, &*clock))
            .await;
        let Some(cluster_id) = cluster_id else {
            return Ok(());
        };
        let listed = health.ready_flag("objects", "Proxies and ProxyPools are not listed yet");
        let (proxies_listed, pools_listed) = (proxies.store(), pools.store());
        let events = Events::new(client.clone(), args.identity.clone());
        let collector = gc::Collector::new(
            client.clone(),
            providers.clone(),
            args.namespaces.clone(),
            cluster_id.clone(),
            Arc::clone(&clock),
            gc::Flags {
                dry_run: args.gc.dry_run || args.dry_run,
                ..args.gc.clone()
            },
            &registry,
        )?;
        let ctx = Arc::new(proxy::Ctx::new(
            client.clone(),
            proxies.store(),
            pools.store(),
            providers.clone(),
            engine.clone(),
            leases,
            events.clone(),
            Arc::clone(&clock),
            settings(&args, cluster_id),
        ));
        let ctx = Arc::clone(shown.get_or_init(|| ctx));
        let forgetful = Arc::clone(&ctx);
        proxies.listen(move |proxy, change| {
            if change == Change::Deleted {
                forgetful.forget(&proxy.uid().unwrap_or_default());
            }
        });
        tasks.spawn("watch of proxies", proxies.run(shutdown.clone()));
        tasks.spawn("watch of pools", pools.run(shutdown.clone()));
        let all_listed = async {
            tokio::join!(
                proxies_listed.wait_until_ready(),
                pools_listed.wait_until_ready()
            )
        };
        match shutdown.run_until_cancelled(all_listed).await {
            Some((Ok(()), Ok(()))) => listed.set_ready(),
            Some(_) => anyhow::bail!("a watch ended before it listed its objects"),
            None => return Ok(()),
        }

        if let Some(candidate) = leader {
            tracing::info!("waiting to lead");
            let Some(leadership) = Box::pin(candidate.campaign(&shutdown)).await else {
                return Ok(());
            };
            tracing::info!("leading");
            tasks.spawn_closing("leadership", leadership.hold(tasks.closing()));
        }
        let secrets_client = client.clone();
        let (lifted, lifted_refusals) = tokio::sync::mpsc::unbounded_channel();
        let credentials = credentials::run(Arc::clone(&ctx), providers, Arc::clone(&clock), lifted);
        let until = shutdown.clone();
        tasks.spawn_job("watch of credentials", async move {
            let _stopped = until.run_until_cancelled(credentials).await;
        });
        let leases = LeaseApi::new(client.clone());
        let pool_ctx = pool::Ctx::new(client, work.proxies.clone(), leases, events, clock);
        let pool_ctx = Arc::new(pool_ctx);
        let (secret_changes, secret_wakes) = tokio::sync::mpsc::unbounded_channel();
        let secrets = secrets::run(
            secrets_client,
            work.proxies.clone(),
            work.referring,
            secret_changes,
        );
        let until = shutdown.clone();
        tasks.spawn("watch of secrets", async move {
            let _stopped = until.run_until_cancelled(secrets).await;
        });
        tasks.spawn("health engine", engine.run(shutdown.clone()));
        let sweeps = collector.run(shutdown.clone());
        tasks.spawn_job("garbage collection of instances", sweeps);
        let concurrency = args.max_concurrent_reconciles;
        tasks.spawn(
            "proxy controller",
            controller(
                work.proxies,
                vec![
                    UnboundedReceiverStream::new(work.proxy_changes).boxed(),
                    UnboundedReceiverStream::new(work.withheld).boxed(),
                    UnboundedReceiverStream::new(secret_wakes).boxed(),
                    UnboundedReceiverStream::new(lifted_refusals).boxed(),
                    ReceiverStream::new(transitions).boxed(),
                ],
                concurrency,
                shutdown.clone(),
            )
            .run(
                counted(passes.clone(), "proxy", proxy::reconcile),
                proxy::error_policy,
                ctx,
            )
            .for_each(log_pass),
        );
        tasks.spawn(
            "pool controller",
            controller(
                work.pools,
                vec![
                    UnboundedReceiverStream::new(work.pool_changes).boxed(),
                    UnboundedReceiverStream::new(work.member_changes).boxed(),
                ],
                concurrency,
                shutdown,
            )
            .run(
                counted(passes, "pool", pool::reconcile),
                pool::error_policy,
                pool_ctx,
            )
            .for_each(log_pass),
        );
        Ok(())
    }
}

/// What the watches bring.
struct Work {
    proxies: Store<Proxy>,
    pools: Store<ProxyPool>,
    proxy_changes: Subscription<Proxy>,
    /// Members for which something is withheld, whose pool has changed.
    withheld: Subscription<Proxy>,
    /// Proxies that refer to Secrets.
    referring: Subscription<Proxy>,
    pool_changes: Subscription<ProxyPool>,
    member_changes: Subscription<ProxyPool>,
}

fn apis<K>(client: &Client, namespaces: &[String]) -> Vec<Api<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    if namespaces.is_empty() {
        return vec![Api::all(client.clone())];
    }
    namespaces
        .iter()
        .map(|namespace| Api::namespaced(client.clone(), namespace))
        .collect()
}

fn settings(args: &OperatorArgs, cluster_id: String) -> Settings {
    Settings {
        cluster_id,
        name_prefix: args.instance_name_prefix.clone(),
        dry_run: args.dry_run,
        polls: Polls {
            provisioning: args.provisioning_poll,
            deletion: args.deletion_poll,
            drift: args.drift_poll,
            quota: args.quota_retry,
        },
    }
}

/// How long to wait before the cluster's identity is asked for again.
const IDENTITY_RETRY: Duration = Duration::from_secs(5);

/// The UID of `kube-system`, which outlives every upgrade and differs between clusters.
async fn cluster_id(client: &Client, clock: &dyn Clock) -> String {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    loop {
        match namespaces.get_metadata("kube-system").await {
            Ok(namespace) => return namespace.uid().unwrap_or_default(),
            Err(error) => {
                let error = runtime_kit::chain(&error).to_string();
                tracing::warn!(error, "cannot read the namespace kube-system, trying again");
            },
        }
        clock.sleep(IDENTITY_RETRY).await;
    }
}

type Wakes<K> = futures::stream::BoxStream<'static, ObjectRef<K>>;

fn controller<K>(
    store: Store<K>,
    wakes: Vec<Wakes<K>>,
    concurrency: u16,
    shutdown: CancellationToken,
) -> Controller<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let nothing = futures::stream::pending();
    let controller = Controller::for_shared_stream(nothing, store)
        .with_config(ControllerConfig::default().concurrency(concurrency))
        .graceful_shutdown_on(shutdown.cancelled_owned());
    wakes.into_iter().fold(controller, Controller::reconcile_on)
}

/// A reconciler whose passes are counted.
fn counted<K, C, E, F>(
    passes: metrics::Passes,
    controller: &'static str,
    reconcile: impl Fn(Arc<K>, Arc<C>) -> F,
) -> impl Fn(Arc<K>, Arc<C>) -> BoxFuture<'static, Result<Action, E>>
where
    F: Future<Output = Result<Action, E>> + Send + 'static,
    E: Send + 'static,
{
    move |object, ctx| {
        let (passes, pass) = (passes.clone(), reconcile(object, ctx));
        async move { passes.count(controller, pass).await }.boxed()
    }
}

type Pass<K, E> = Result<(ObjectRef<K>, Action), ControllerError<E, kube::runtime::watcher::Error>>;

/// Why only at debug: reconcilers log what went wrong themselves, once.
fn log_pass<K, E>(pass: Pass<K, E>) -> impl Future<Output = ()>
where
    K: Resource<DynamicType = ()>,
    E: std::error::Error + 'static,
{
    if let Err(error) = pass {
        tracing::debug!(error = %runtime_kit::chain(&error), "pass ended with an error");
    }
    std::future::ready(())
}
