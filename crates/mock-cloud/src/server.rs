//! The cloud's HTTP API: routes, JSON in and out, and connections that drop when a reply is to be
//! lost. What a call decides is in [`crate::state`].
//!
//! `/v1/…` is what an operator of the cloud uses; `/admin/…` is for tests and demonstrations.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, Query, Request, State as Shared},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use bytes::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use runtime_kit::{Clock, chain};
use serde::de::DeserializeOwned;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tower::ServiceExt;

use crate::{
    client::Client,
    cloud::{Cloud, Config, Outcome},
    disk,
    faults::{Behaviour, FaultRule},
    model::{CreateInstance, ErrorAnswer, ErrorBody, ErrorCode, Labels, ListInstances},
    state::Settings,
};

const MAX_BODY: usize = 1024 * 1024;
/// A pause after a failed accept, as when the process has no descriptors left.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// A cloud that runs within this process. It stops when this is dropped; [`Running::stop`] waits
/// for it.
#[derive(Debug)]
pub struct Running {
    /// Where the API listens.
    pub address: SocketAddr,
    /// The cloud itself, for its records.
    pub cloud: Arc<Cloud>,
    serving: JoinHandle<()>,
    stop: DropGuard,
}

impl Running {
    /// A client of its API.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Stops the API and every proxy, and returns once all ports are closed. The state stays.
    pub async fn stop(self) {
        let Self {
            address: _,
            cloud,
            serving,
            stop,
        } = self;
        drop(stop);
        drop(cloud);
        if let Err(error) = serving.await {
            tracing::error!(%error, "the mock cloud ended badly");
        }
    }
}

/// Why an embedded cloud did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its state was not opened.
    #[error("cannot open the mock cloud's state")]
    Open(#[source] disk::Error),
    /// Its address is taken.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Starts a cloud within this process, its API on `address` (port 0: any free one).
pub async fn start(
    config: Config,
    address: SocketAddr,
    clock: Arc<dyn Clock>,
) -> Result<Running, StartError> {
    let cloud = Cloud::open(config, clock).map_err(StartError::Open)?;
    let listen = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, Arc::clone(&cloud), stop.clone()));
    Ok(Running {
        address,
        cloud,
        serving,
        stop: stop.drop_guard(),
    })
}

/// Serves the API and runs the proxies until `stop`.
pub async fn serve(listener: TcpListener, cloud: Arc<Cloud>, stop: CancellationToken) {
    let api = router(Arc::clone(&cloud));
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let serving = serve_connection(TokioIo::new(stream), api.clone());
                    let stop = stop.clone();
                    connections.spawn(async move {
                        let _finished = stop.run_until_cancelled(serving).await;
                    });
                },
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                },
            }
        }
    };
    tokio::join!(cloud.run(stop.clone()), stop.run_until_cancelled(accepting));
    connections.close();
    connections.wait().await;
}

/// Marks an answer that must not arrive: its connection is closed instead.
#[derive(Clone, Copy)]
struct Unanswered;

#[derive(Debug, thiserror::Error)]
#[error("the reply is lost, as asked for")]
struct LostReply;

async fn serve_connection(stream: TokioIo<tokio::net::TcpStream>, api: Router) {
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let api = api.clone();
        async move {
            let answer = api.oneshot(request.map(axum::body::Body::new)).await;
            let answer = answer.unwrap_or_else(|never| match never {});
            match answer.extensions().get::<Unanswered>() {
                Some(Unanswered) => Err(LostReply),
                None => Ok(answer),
            }
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(stream, service)
        .await;
    if let Err(error) = served {
        tracing::debug!(
            error = %chain(&error),
            "API connection ended"
        );
    }
}

fn router(cloud: Arc<Cloud>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/v1/zones/{zone}/instances", post(create))
        .route("/v1/zones/{zone}/instances/{key}", get(read).delete(remove))
        .route("/v1/zones/{zone}/instances/{key}/console", get(console))
        .route("/v1/instances", get(list))
        .route("/v1/operations/{id}", get(operation))
        .route("/admin/calls", get(calls))
        .route("/admin/created", get(created))
        .route(
            "/admin/faults",
            get(faults).post(add_fault).delete(clear_faults),
        )
        .route("/admin/settings", put(set_settings))
        .route("/admin/zones/{zone}/instances/{key}/preempt", post(preempt))
        .route(
            "/admin/zones/{zone}/instances/{key}/behaviour",
            put(set_behaviour),
        )
        .fallback(async |request: Request| -> Response {
            let message = format!("no {} {}", request.method(), request.uri().path());
            refuse(ErrorBody {
                code: ErrorCode::NotFound,
                message,
            })
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(cloud)
}

type Pairs = Query<Vec<(String, String)>>;

async fn create(
    Shared(cloud): Shared<Arc<Cloud>>,
    Path(zone): Path<String>,
    body: Bytes,
) -> Response {
    match parse::<CreateInstance>(&body) {
        Ok(request) => answer(cloud.create(&zone, request).await).await,
        Err(error) => refuse(error),
    }
}

async fn read(
    Shared(cloud): Shared<Arc<Cloud>>,
    Path((zone, key)): Path<(String, String)>,
) -> Response {
    answer(cloud.get(&zone, &key).await).await
}

async fn console(
    Shared(cloud): Shared<Arc<Cloud>>,
    Path((zone, key)): Path<(String, String)>,
) -> Response {
    answer(cloud.console(&zone, &key).await).await
}

async fn remove(
    Shared(cloud): Shared<Arc<Cloud>>,
    Path((zone, key)): Path<(String, String)>,
) -> Response {
    answer(cloud.delete(&zone, &key).await).await
}

async fn list(Shared(cloud): Shared<Arc<Cloud>>, Query(pairs): Pairs) -> Response {
    match selection(pairs) {
        Ok(selection) => answer(cloud.list(&selection).await).await,
        Err(error) => refuse(error),
    }
}

async fn operation(Shared(cloud): Shared<Arc<Cloud>>, Path(id): Path<String>) -> Response {
    answer(cloud.operation(&id).await).await
}

async fn calls(Shared(cloud): Shared<Arc<Cloud>>) -> Response {
    Json(cloud.calls()).into_response()
}

async fn created(Shared(cloud): Shared<Arc<Cloud>>, Query(pairs): Pairs) -> Response {
    match selection(pairs) {
        Ok(selection) => Json(cloud.ever_created(&selection.labels)).into_response(),
        Err(error) => refuse(error),
    }
}

async fn faults(Shared(cloud): Shared<Arc<Cloud>>) -> Response {
    Json(cloud.faults()).into_response()
}

async fn add_fault(Shared(cloud): Shared<Arc<Cloud>>, body: Bytes) -> Response {
    let added = match parse::<FaultRule>(&body) {
        Ok(rule) => {
            cloud
                .administer(|state, _| {
                    if !rule.fault.fits(rule.op) {
                        return Err(invalid(format!(
                            "fault {:?} happens to creates only, not to {:?}",
                            rule.fault, rule.op
                        )));
                    }
                    state.faults.push(rule);
                    Ok(())
                })
                .await
        },
        Err(error) => Err(error),
    };
    answer(Outcome::Answer(added)).await
}

async fn clear_faults(Shared(cloud): Shared<Arc<Cloud>>) -> Response {
    let cleared = cloud.administer(|state, _| {
        state.faults.clear();
        Ok(())
    });
    answer(Outcome::Answer(cleared.await)).await
}

async fn set_settings(Shared(cloud): Shared<Arc<Cloud>>, body: Bytes) -> Response {
    let set = match parse::<Settings>(&body) {
        Ok(settings) => {
            cloud
                .administer(|state, _| {
                    state.settings = settings;
                    Ok(())
                })
                .await
        },
        Err(error) => Err(error),
    };
    answer(Outcome::Answer(set)).await
}

async fn preempt(
    Shared(cloud): Shared<Arc<Cloud>>,
    Path((zone, key)): Path<(String, String)>,
) -> Response {
    let preempted = cloud.administer(|state, now| state.preempt(now, &zone, &key));
    answer(Outcome::Answer(preempted.await)).await
}

async fn set_behaviour(
    Shared(cloud): Shared<Arc<Cloud>>,
    Path((zone, key)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let set = match parse::<Behaviour>(&body) {
        Ok(wanted) => {
            cloud
                .administer(|state, now| state.misbehave(now, &zone, &key, wanted))
                .await
        },
        Err(error) => Err(error),
    };
    answer(Outcome::Answer(set)).await
}

fn selection(pairs: Vec<(String, String)>) -> Result<ListInstances, ErrorBody> {
    let mut zone = None;
    let mut labels = Labels::new();
    for (name, value) in pairs {
        match (name.as_str(), value.split_once('=')) {
            ("zone", _) => zone = Some(value),
            ("label", Some((label, wanted))) => {
                labels.insert(label.to_owned(), wanted.to_owned());
            },
            _ => {
                return Err(invalid(format!(
                    "query {name}={value:?} is not known; use zone=NAME and label=NAME=VALUE"
                )));
            },
        }
    }
    Ok(ListInstances { zone, labels })
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ErrorBody> {
    serde_json::from_slice(body).map_err(|error| invalid(format!("the body: {error}")))
}

fn invalid(message: String) -> ErrorBody {
    ErrorBody {
        code: ErrorCode::Invalid,
        message,
    }
}

async fn answer<T: serde::Serialize>(outcome: Outcome<T>) -> Response {
    match outcome {
        Outcome::Answer(Ok(value)) => Json(value).into_response(),
        Outcome::Answer(Err(error)) => refuse(error),
        Outcome::Lost => {
            let mut response = StatusCode::NO_CONTENT.into_response();
            response.extensions_mut().insert(Unanswered);
            response
        },
        Outcome::Never => std::future::pending().await,
    }
}

fn refuse(error: ErrorBody) -> Response {
    let status = StatusCode::from_u16(error.code.status());
    let retry = error.code == ErrorCode::RateLimited;
    let mut response = Json(ErrorAnswer { error }).into_response();
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if retry {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
