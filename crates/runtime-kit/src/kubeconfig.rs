//! The connection of a long-running process to its API server.
//!
//! Binaries flatten [`KubeArgs`] into their flags and call [`connect`] once at start. It waits for
//! an API server that is not up yet, or for a kubeconfig that is being renewed, instead of ending
//! the process: a crash loop would only add noise. Requests are never retried inside the client,
//! because a retried create is a second object; each caller decides for itself.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio_util::sync::CancellationToken;

use crate::admin::ReadyFlag;
use crate::api_requests::ApiRequests;
use crate::backoff::BackoffPolicy;
use crate::chain::chain;
use crate::class::{Class, Classify};
use crate::clock::Clock;

const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY: BackoffPolicy = BackoffPolicy {
    base: Duration::from_secs(1),
    max: Duration::from_secs(15),
};

/// Flags that say which API server and as whom.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KubeArgs {
    /// The kubeconfig file. Without it: what KUBECONFIG names, ~/.kube/config, or the pod's own
    /// ServiceAccount, whichever is found first.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig to use instead of the current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// Why there is no connection (yet).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: check --kubeconfig, --context and KUBECONFIG")]
    Kubeconfig(#[source] KubeconfigError),
    /// There is neither a kubeconfig nor a pod's ServiceAccount.
    #[error("no kubeconfig was found and this is not a pod: set --kubeconfig or KUBECONFIG")]
    NoConfig(#[source] InferConfigError),
    /// The configuration does not make a client: certificates, keys, credential plugins.
    #[error("the kubeconfig's certificates or credentials cannot be used")]
    BuildClient(#[source] kube::Error),
    /// The API server refuses the credentials.
    #[error("{server} rejects the credentials: renew the kubeconfig, or it is another cluster's")]
    Rejected {
        /// The API server.
        server: String,
        /// What it answered.
        #[source]
        source: kube::Error,
    },
    /// The API server cannot be reached or does not answer properly yet.
    #[error("the API server {server} is not available")]
    Unavailable {
        /// The API server.
        server: String,
        /// What went wrong.
        #[source]
        source: kube::Error,
    },
    /// The API server did not answer.
    #[error("the API server {server} did not answer within {} s", ATTEMPT_TIMEOUT.as_secs())]
    TimedOut {
        /// The API server.
        server: String,
    },
}

impl KubeArgs {
    /// The configuration these flags select, with retries inside the client switched off.
    pub async fn config(&self) -> Result<Config, Error> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..Default::default()
        };
        let mut config = match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let file = Kubeconfig::read_from(path).map_err(Error::Kubeconfig)?;
                Config::from_custom_kubeconfig(file, &options)
                    .await
                    .map_err(Error::Kubeconfig)?
            },
            (None, Some(_)) => Config::from_kubeconfig(&options)
                .await
                .map_err(Error::Kubeconfig)?,
            (None, None) => Config::infer().await.map_err(Error::NoConfig)?,
        };
        config.default_retry = false;
        Ok(config)
    }
}

/// A client and the configuration it was built from.
#[derive(Clone)]
pub struct Connection {
    /// Sends each request once.
    pub client: Client,
    /// What it was built from; the default namespace is in it.
    pub config: Config,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let server = self.config.cluster_url.to_string();
        f.debug_struct("Connection")
            .field("server", &server)
            .finish_non_exhaustive()
    }
}

/// Waits for an API server that answers and accepts the credentials; `None` when `shutdown` came
/// first. The kubeconfig is read anew for each attempt. While waiting, `ready` says why, and each
/// new cause is logged once. All requests of the client are counted in `requests`.
pub async fn connect(
    args: &KubeArgs,
    requests: &ApiRequests,
    clock: &dyn Clock,
    ready: &ReadyFlag,
    shutdown: &CancellationToken,
) -> Option<Connection> {
    let mut cause: Option<String> = None;
    let mut failures = 0;
    loop {
        let error = match shutdown
            .run_until_cancelled(Box::pin(attempt(args, requests, clock)))
            .await?
        {
            Ok(connection) => {
                tracing::info!(server = %connection.config.cluster_url, "connected");
                ready.set_ready();
                return Some(connection);
            },
            Err(error) => chain(&error).to_string(),
        };
        ready.set_unready(&error);
        if cause.as_ref() != Some(&error) {
            tracing::warn!(error, "waiting for the API server");
            cause = Some(error);
        }
        failures += 1;
        shutdown
            .run_until_cancelled(clock.sleep(RETRY.delay(failures)))
            .await?;
    }
}

async fn attempt(
    args: &KubeArgs,
    requests: &ApiRequests,
    clock: &dyn Clock,
) -> Result<Connection, Error> {
    let config = args.config().await?;
    let server = config.cluster_url.to_string();
    let client = requests
        .client(config.clone())
        .map_err(Error::BuildClient)?;
    let answer = tokio::select! {
        answer = client.apiserver_version() => answer,
        () = clock.sleep(ATTEMPT_TIMEOUT) => return Err(Error::TimedOut { server }),
    };
    match answer {
        Ok(_) => Ok(Connection { client, config }),
        Err(source) => match source.class() {
            Class::Unauthenticated => Err(Error::Rejected { server, source }),
            // Why: whoever may not read the version is known to a server that is up.
            Class::Forbidden => Ok(Connection { client, config }),
            Class::NotFound
            | Class::AlreadyExists
            | Class::Quota
            | Class::RateLimited
            | Class::Invalid
            | Class::Conflict
            | Class::Transient => Err(Error::Unavailable { server, source }),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    use axum::Json;
    use axum::http::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::admin::Health;
    use crate::clock::SteppedClock;

    fn kubeconfig(folder: &tempfile::TempDir, server: &str) -> PathBuf {
        let path = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {"token": "t"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(&path, text.to_string()).expect("written");
        path
    }

    /// A counter that nobody reads.
    fn uncounted() -> ApiRequests {
        ApiRequests::register(&prometheus::Registry::new()).expect("registered")
    }

    /// An API server that answers `/version` with the status it is set to.
    async fn api_server() -> (String, Arc<AtomicU16>) {
        let status = Arc::new(AtomicU16::new(200));
        let answer = Arc::clone(&status);
        let router = axum::Router::new().fallback(move || {
            let code = StatusCode::from_u16(answer.load(Ordering::SeqCst)).expect("a status");
            async move {
                let body = if code.is_success() {
                    json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "",
                        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
                        "platform": ""})
                } else {
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "code": code.as_u16(), "reason": "Test", "message": "told to"})
                };
                (code, Json(body))
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(tokio::spawn(
            async move { axum::serve(listener, router).await },
        ));
        (format!("http://{address}"), status)
    }

    #[tokio::test]
    async fn connect_waits_through_rejected_credentials_and_says_so_in_readiness() {
        let folder = tempfile::tempdir().expect("a folder");
        let (server, status) = api_server().await;
        status.store(401, Ordering::SeqCst);
        let path = kubeconfig(&folder, &server);
        let args = KubeArgs {
            kubeconfig: Some(path),
            context: None,
        };
        let (clock, health) = (SteppedClock::default(), Health::new());
        let ready = health.ready_flag("api-server", "not connected yet");
        let stop = CancellationToken::new();
        let connecting = tokio::spawn({
            let (args, clock, stop) = (args.clone(), clock.clone(), stop.clone());
            async move {
                connect(&args, &uncounted(), &clock, &ready, &stop)
                    .await
                    .is_some()
            }
        });
        let says = |wanted: &str| match health.ready() {
            Ok(()) => false,
            Err(failed) => failed.iter().any(|(_, reason)| reason.contains(wanted)),
        };
        let rejected = async {
            while !says("rejects the credentials") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), rejected)
            .await
            .expect("rejected");
        status.store(200, Ordering::SeqCst);
        let connected = async {
            while health.ready().is_err() {
                clock.advance(Duration::from_secs(1));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), connected)
            .await
            .expect("connected");
        assert!(connecting.await.expect("ended"));
    }

    #[tokio::test]
    async fn shutdown_ends_the_waiting() {
        let args = KubeArgs {
            kubeconfig: Some("/nonexistent/kubeconfig".into()),
            context: None,
        };
        let ready = Health::new().ready_flag("api-server", "not connected yet");
        let stop = CancellationToken::new();
        let clock = SteppedClock::default();
        let requests = uncounted();
        let waiting = connect(&args, &requests, &clock, &ready, &stop);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        stop.cancel();
        assert!(waiting.await.is_none());
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_and_an_unknown_context_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = KubeArgs {
            kubeconfig: Some(folder.path().join("none")),
            context: None,
        };
        let error = missing.config().await.expect_err("no such file");
        assert!(
            chain(&error).to_string().contains("none"),
            "{}",
            chain(&error)
        );
        let path = kubeconfig(&folder, "http://127.0.0.1:1");
        let context = Some("elsewhere".to_owned());
        let unknown = KubeArgs {
            kubeconfig: Some(path),
            context,
        };
        let error = unknown.config().await.expect_err("no such context");
        assert!(
            chain(&error).to_string().contains("elsewhere"),
            "{}",
            chain(&error)
        );
    }

    #[tokio::test]
    async fn the_client_does_not_retry_by_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = kubeconfig(&folder, "http://127.0.0.1:1");
        let args = KubeArgs {
            kubeconfig: Some(path),
            context: None,
        };
        assert!(!args.config().await.expect("usable").default_retry);
    }
}
