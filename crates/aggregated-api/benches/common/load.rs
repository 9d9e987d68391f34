//! The load generator: clients in a closed loop, each sending its next create when the last is answered.
//!
//! Connections are HTTP/2 over TLS, kept open, as client-go and kube-rs have them. The clients of one
//! [`Target`] either have a connection each, like separate crawlers, or share a few, like the requests that
//! the aggregator forwards. A measurement in which any request failed has no figure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use runtime_kit::Clock;

use crate::connect::{Server, send};
use crate::machine::percentile;

/// Clients that clean up at once.
const CLEANERS: usize = 32;

/// How many connections the clients have.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Connections {
    /// One each.
    PerClient,
    /// This many for all.
    Shared(usize),
}

/// What is created, where, and as whom.
#[derive(Clone)]
pub(crate) struct Target {
    /// Where requests go.
    pub(crate) server: Server,
    /// How.
    pub(crate) connections: Connections,
    /// Path of the collection.
    pub(crate) path: String,
    /// Sent with every request: credentials.
    pub(crate) headers: HeaderMap,
    /// Values of `X-Remote-User` that requests take in turn; empty: what `headers` say.
    pub(crate) identities: Vec<HeaderValue>,
    /// The object, with [`NAME`] where the name goes.
    pub(crate) body: String,
}

/// Stands for the name in [`Target::body`].
pub(crate) const NAME: &str = "$NAME";

/// How long and how much.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Requests in flight.
    pub(crate) clients: usize,
    /// Not counted.
    pub(crate) warm_up: Duration,
    /// Counted.
    pub(crate) measured: Duration,
    /// Creates at most, warm-up included.
    pub(crate) limit: usize,
    /// What all names begin with; unique per measurement.
    pub(crate) prefix: String,
}

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Creates per second.
    pub(crate) rate: f64,
    /// Milliseconds that half of the creates took at most.
    pub(crate) p50: f64,
    /// Milliseconds that 99 of 100 creates took at most.
    pub(crate) p99: f64,
}

/// A measurement, and what it left behind.
pub(crate) struct Outcome {
    /// The figure, or why there is none.
    pub(crate) sample: Result<Sample>,
    /// Names of everything that may have been created.
    pub(crate) names: Vec<String>,
}

struct Client {
    sender: SendRequest<Full<Bytes>>,
    target: Arc<Target>,
    uri: Uri,
    before: String,
    after: String,
}

#[derive(Default)]
struct Tally {
    sent: usize,
    /// When each counted create was answered, and how long it took.
    answered: Vec<(Duration, Duration)>,
    failed: usize,
    first_failure: Option<anyhow::Error>,
}

// === impl Client ===

impl Client {
    fn new(sender: SendRequest<Full<Bytes>>, target: &Arc<Target>) -> Result<Self> {
        let port = target.server.port;
        let uri = format!("https://localhost:{port}{}", target.path).parse()?;
        let (before, after) = target
            .body
            .split_once(NAME)
            .context("the body has no name")?;
        Ok(Self {
            sender,
            target: Arc::clone(target),
            uri,
            before: before.to_owned(),
            after: after.to_owned(),
        })
    }

    async fn create(&mut self, name: &str, number: usize) -> Result<Bytes> {
        let Self {
            sender,
            target,
            uri,
            before,
            after,
        } = self;
        let body = [before.as_str(), name, after.as_str()].concat();
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        request.headers_mut().clone_from(&target.headers);
        let headers = request.headers_mut();
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        headers.insert(
            http::header::ACCEPT,
            HeaderValue::from_static("application/json"),
        );
        if !target.identities.is_empty() {
            let identity = target.identities.get(number % target.identities.len());
            if let Some(identity) = identity {
                headers.insert("x-remote-user", identity.clone());
            }
        }
        send(sender, request, &[StatusCode::CREATED]).await
    }
}

/// Sends one request on a connection of its own; anything but 200 is an error.
pub(crate) async fn ask(server: &Server, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
    let mut sender = server.connect().await?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = format!("https://localhost:{}{path}", server.port).parse()?;
    send(&mut sender, request, &[StatusCode::OK]).await
}

/// Creates one object and returns the answer.
pub(crate) async fn create_one(target: &Target, name: &str) -> Result<Bytes> {
    let target = Arc::new(target.clone());
    let sender = target.server.connect().await?;
    Client::new(sender, &target)?.create(name, 0).await
}

/// Measures one target.
pub(crate) async fn run(target: &Target, load: &Load, clock: &Arc<dyn Clock>) -> Result<Outcome> {
    let target = Arc::new(target.clone());
    let connections = match target.connections {
        Connections::PerClient => load.clients,
        Connections::Shared(number) => number.min(load.clients),
    };
    let senders = try_join_all((0..connections).map(|_| target.server.connect())).await?;
    let begin = clock.elapsed();
    let (counted_from, end) = (begin + load.warm_up, begin + load.warm_up + load.measured);
    let budget = Arc::new(AtomicUsize::new(load.limit));
    let clients = senders
        .iter()
        .cycle()
        .take(load.clients)
        .enumerate()
        .map(|(index, sender)| {
            let client = Client::new(sender.clone(), &target);
            let (clock, budget, load) = (Arc::clone(clock), Arc::clone(&budget), load.clone());
            async move {
                let client = client?;
                let running = tokio::spawn(async move {
                    one_client(client, index, &load, counted_from, end, &clock, &budget).await
                });
                running.await.context("a client panicked")
            }
        });
    let tallies = try_join_all(clients).await?;
    let names = tallies.iter().enumerate().flat_map(|(index, tally)| {
        (0..tally.sent).map(move |number| name_of(&load.prefix, index, number))
    });
    let names = names.collect();
    Ok(Outcome {
        sample: sample_of(tallies, counted_from),
        names,
    })
}

fn name_of(prefix: &str, client: usize, number: usize) -> String {
    format!("{prefix}-{client}-{number}")
}

async fn one_client(
    mut client: Client,
    index: usize,
    load: &Load,
    counted_from: Duration,
    end: Duration,
    clock: &Arc<dyn Clock>,
    budget: &AtomicUsize,
) -> Tally {
    let mut tally = Tally::default();
    loop {
        let sent_at = clock.elapsed();
        let spent = |left: usize| left.checked_sub(1);
        if sent_at >= end
            || budget
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent)
                .is_err()
        {
            return tally;
        }
        let name = name_of(&load.prefix, index, tally.sent);
        let number = index + tally.sent * load.clients;
        tally.sent += 1;
        match client.create(&name, number).await {
            Ok(_) => {
                let answered_at = clock.elapsed();
                if sent_at >= counted_from {
                    tally
                        .answered
                        .push((answered_at, answered_at.saturating_sub(sent_at)));
                }
            },
            Err(error) => {
                tally.failed += 1;
                tally.first_failure.get_or_insert(error);
                // Why: a broken subject must not spin, and its measurement is void already.
                return tally;
            },
        }
    }
}

fn sample_of(tallies: Vec<Tally>, counted_from: Duration) -> Result<Sample> {
    let failed: usize = tallies.iter().map(|tally| tally.failed).sum();
    let mut answered = Vec::new();
    for tally in tallies {
        if let Some(error) = tally.first_failure {
            return Err(error.context(format!("{failed} creates failed, the first")));
        }
        answered.extend(tally.answered);
    }
    ensure!(
        answered.len() >= 20,
        "only {} creates were counted",
        answered.len()
    );
    let last = answered.iter().map(|(at, _)| *at).max().unwrap_or_default();
    let took = last.saturating_sub(counted_from);
    ensure!(
        took >= Duration::from_millis(100),
        "measured for {took:?} only: enlarge the fleet"
    );
    let mut times: Vec<f64> = answered
        .iter()
        .map(|(_, took)| took.as_secs_f64() * 1000.0)
        .collect();
    times.sort_by(f64::total_cmp);
    Ok(Sample {
        rate: f64::from(u32::try_from(times.len())?) / took.as_secs_f64(),
        p50: percentile(&times, 50),
        p99: percentile(&times, 99),
    })
}

/// Deletes `names` from the collection `target.path` with the credentials of `target`; what is not there
/// is fine.
pub(crate) async fn clean(target: &Target, names: Vec<String>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let connections = match target.connections {
        Connections::PerClient => 4,
        Connections::Shared(number) => number,
    };
    let senders = try_join_all((0..connections).map(|_| target.server.connect())).await?;
    let names = Arc::new(parking_lot::Mutex::new(names));
    let cleaners = senders.iter().cycle().take(CLEANERS).map(|sender| {
        let (mut sender, names) = (sender.clone(), Arc::clone(&names));
        async move {
            loop {
                let next = names.lock().pop();
                let Some(name) = next else {
                    return Ok::<_, anyhow::Error>(());
                };
                let uri = format!(
                    "https://localhost:{}{}/{name}",
                    target.server.port, target.path
                );
                let mut request = Request::new(Full::default());
                *request.method_mut() = Method::DELETE;
                *request.uri_mut() = uri.parse()?;
                request.headers_mut().clone_from(&target.headers);
                let good = [StatusCode::OK, StatusCode::ACCEPTED, StatusCode::NOT_FOUND];
                send(&mut sender, request, &good)
                    .await
                    .with_context(|| format!("cannot delete {name}"))?;
            }
        }
    });
    try_join_all(cleaners).await.map(drop)
}
