//! Calls to etcd: which endpoint is asked, for how long, and what its refusals mean.
//!
//! A call that may be repeated goes to the next endpoint when one does not answer. A transaction is
//! sent once: only when no connection could be made is it known that it was not sent.

use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::wire::{
    CompactionRequest, CompactionResponse, RangeRequest, RangeResponse, ResponseHeader,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use super::{Options, Tls};
use crate::store::Error;

/// A connection that answers no ping for this long is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an open connection is pinged; etcd allows one ping in five seconds.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// What a stream, and a connection, may send ahead of its reader. Why the ratio: watches that are not
/// read must not use up what their connection may send.
const WINDOWS: (u32, u32) = (1 << 20, 256 << 20);
/// Commands that may wait to be sent on a watch.
const WATCH_COMMANDS: usize = 16;

/// Why a call had no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The revision has been compacted.
    Compacted,
    /// The revision has not happened.
    Future,
    /// Anything else.
    Other(Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Compacted => unavailable("etcd compacted meanwhile"),
            Failure::Future => unavailable("etcd has not reached a revision it had reported"),
            Failure::Other(error) => error,
        }
    }
}

pub(super) fn unavailable(message: impl Into<String>) -> Error {
    Error::Unavailable {
        message: message.into(),
        source: None,
    }
}

/// The kinds of unary calls.
pub(super) trait Call: prost::Message + Clone + 'static {
    /// What etcd answers.
    type Answer: prost::Message + Default + Answer + 'static;
    /// Path of the method.
    const PATH: &'static str;
    /// Whether asking again after a lost answer does no harm.
    const REPEATABLE: bool;
}

/// Something with a header.
pub(super) trait Answer {
    fn header(&self) -> Option<ResponseHeader>;
}

macro_rules! calls {
    ($($request:ty => $answer:ty, $path:literal, $repeatable:literal;)+) => {
        $(impl Call for $request {
            type Answer = $answer;
            const PATH: &'static str = $path;
            const REPEATABLE: bool = $repeatable;
        }
        impl Answer for $answer {
            fn header(&self) -> Option<ResponseHeader> {
                self.header
            }
        })+
    };
}

calls! {
    RangeRequest => RangeResponse, "/etcdserverpb.KV/Range", true;
    TxnRequest => TxnResponse, "/etcdserverpb.KV/Txn", false;
    CompactionRequest => CompactionResponse, "/etcdserverpb.KV/Compact", true;
    StatusRequest => StatusResponse, "/etcdserverpb.Maintenance/Status", true;
}

/// Connections to the members of one etcd cluster, made when they are needed.
pub(super) struct Client {
    members: Vec<Member>,
    /// The member that is asked; moves on when it does not answer.
    current: AtomicUsize,
    timeout: Duration,
}

struct Member {
    url: String,
    calls: Channel,
    /// A connection of its own, so that large events do not delay answers.
    watches: Channel,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.members.iter().map(|member| &member.url))
            .finish()
    }
}

/// An open watch.
pub(super) struct WatchLink {
    pub(super) commands: mpsc::Sender<WatchRequest>,
    pub(super) answers: Streaming<WatchResponse>,
}

impl Client {
    /// Reads the TLS files and checks the endpoints; connects to none.
    pub(super) fn new(options: &Options) -> Result<Self, Error> {
        if options.endpoints.is_empty() {
            return Err(unavailable(
                "no etcd endpoint is configured; name at least one",
            ));
        }
        let tls = options.tls.as_ref().map(tls_config).transpose()?;
        let member = |url: &String| {
            let refused = |source: tonic::transport::Error| Error::Unavailable {
                message: format!("the etcd endpoint {url:?} is not usable"),
                source: Some(source.into()),
            };
            let scheme = if tls.is_some() { "https" } else { "http" };
            if url.split_once("://").is_none_or(|(had, _)| had != scheme) {
                return Err(unavailable(format!(
                    "the etcd endpoint {url:?} must begin with {scheme}://, since TLS is {}configured",
                    if tls.is_some() { "" } else { "not " }
                )));
            }
            let mut endpoint = Endpoint::from_shared(url.clone())
                .map_err(refused)?
                .connect_timeout(options.timeout)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(WINDOWS.0)
                .initial_connection_window_size(WINDOWS.1);
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone()).map_err(refused)?;
            }
            Ok(Member {
                url: url.clone(),
                calls: endpoint.connect_lazy(),
                watches: endpoint.connect_lazy(),
            })
        };
        Ok(Self {
            members: options
                .endpoints
                .iter()
                .map(member)
                .collect::<Result<_, _>>()?,
            current: AtomicUsize::new(0),
            timeout: options.timeout,
        })
    }

    /// Longest time a call takes.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn member(&self) -> (usize, Option<&Member>) {
        let index = self.current.load(Ordering::Relaxed);
        (index, self.members.get(index % self.members.len()))
    }

    /// Asks another member from now on, unless somebody has seen to that.
    fn leave(&self, index: usize) {
        self.current.fetch_max(index + 1, Ordering::Relaxed);
    }

    /// Sends a request and waits for the answer, within the timeout.
    pub(super) async fn call<C: Call>(&self, request: C) -> Result<C::Answer, Failure> {
        let tries = self.members.len();
        let patience = if C::REPEATABLE {
            self.timeout / u32::try_from(tries).unwrap_or(1)
        } else {
            self.timeout
        };
        let mut last = None;
        for _ in 0..tries {
            let (index, member) = self.member();
            let Some(member) = member else { break };
            let sent = unary(member.calls.clone(), request.clone());
            let status = match tokio::time::timeout(patience, sent).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded(format!("no answer within {patience:?}")),
            };
            let failed = match classified(status, &member.url) {
                Classified::Final(failure) => return Err(failure),
                Classified::Elsewhere(failed) => failed,
            };
            self.leave(index);
            let unsent = failed.unsent;
            last = Some(failed.error);
            if !C::REPEATABLE && !unsent {
                break;
            }
        }
        Err(Failure::Other(last.unwrap_or_else(|| {
            unavailable("no etcd endpoint is configured")
        })))
    }

    /// Opens a stream for one watch and sends its first command. On an error the next call asks
    /// another member.
    pub(super) async fn watch(&self, first: WatchRequest) -> Result<WatchLink, Error> {
        let (index, member) = self.member();
        let Some(member) = member else {
            return Err(unavailable("no etcd endpoint is configured"));
        };
        let (commands, queue) = mpsc::channel(WATCH_COMMANDS);
        let opening = async {
            // Why ignored: the queue is new, open and empty.
            drop(commands.try_send(first));
            let mut request = Request::new(ReceiverStream::new(queue));
            require_leader(&mut request);
            let mut grpc = Grpc::new(member.watches.clone()).max_decoding_message_size(usize::MAX);
            ready(&mut grpc).await?;
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
            grpc.streaming(request, path, codec).await
        };
        let status = match tokio::time::timeout(self.timeout, opening).await {
            Ok(Ok(response)) => {
                return Ok(WatchLink {
                    commands,
                    answers: response.into_inner(),
                });
            },
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded(format!("no answer within {:?}", self.timeout)),
        };
        self.leave(index);
        Err(match classified(status, &member.url) {
            Classified::Final(failure) => failure.into(),
            Classified::Elsewhere(failed) => failed.error,
        })
    }

    /// A watch has been cut: the next one is opened with another member.
    pub(super) fn watch_cut(&self) {
        self.leave(self.current.load(Ordering::Relaxed));
    }
}

/// Why: without it, a member that has lost its cluster answers from what it has.
fn require_leader<T>(request: &mut Request<T>) {
    request
        .metadata_mut()
        .insert("hasleader", MetadataValue::from_static("true"));
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready()
        .await
        .map_err(|error| Status::from_error(error.into()))
}

async fn unary<C: Call>(channel: Channel, message: C) -> Result<C::Answer, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    ready(&mut grpc).await?;
    let mut request = Request::new(message);
    require_leader(&mut request);
    let codec: ProstCodec<C, C::Answer> = ProstCodec::default();
    let answer = grpc
        .unary(request, PathAndQuery::from_static(C::PATH), codec)
        .await?;
    Ok(answer.into_inner())
}

enum Classified {
    /// Every member would say so, and nothing was changed.
    Final(Failure),
    /// Another member may do better; whether the call had an effect is not known.
    Elsewhere(Failed),
}

struct Failed {
    error: Error,
    /// The request has certainly not been sent.
    unsent: bool,
}

fn classified(status: Status, url: &str) -> Classified {
    let text = status.message();
    let code = status.code();
    let is = |of: Code, says: &str| code == of && text.contains(says);
    if is(Code::OutOfRange, "has been compacted") {
        return Classified::Final(Failure::Compacted);
    }
    if is(Code::OutOfRange, "future revision") {
        return Classified::Final(Failure::Future);
    }
    if is(Code::ResourceExhausted, "database space exceeded") {
        return Classified::Final(Failure::Other(Error::NoSpace));
    }
    if is(Code::InvalidArgument, "too large") || is(Code::InvalidArgument, "too many") {
        let message = format!("{text}; start etcd with at least its default limits");
        return Classified::Final(Failure::Other(Error::Limit(message)));
    }
    if code == Code::DataLoss {
        return Classified::Final(Failure::Other(Error::Corrupt(text.to_owned())));
    }
    let unsent = connect_error(&status);
    let message = if unsent {
        format!("no connection to etcd at {url}")
    } else {
        format!("etcd at {url} did not answer the call")
    };
    Classified::Elsewhere(Failed {
        error: Error::Unavailable {
            message,
            source: Some(status.into()),
        },
        unsent,
    })
}

/// Whether no connection could be made.
fn connect_error(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn tls_config(tls: &Tls) -> Result<ClientTlsConfig, Error> {
    let mut config =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&tls.ca_file)?));
    if let Some((certificate, key)) = &tls.client {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(config)
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Unavailable {
        message: format!(
            "the file {} for TLS to etcd cannot be read",
            Path::display(path)
        ),
        source: Some(source.into()),
    })
}
