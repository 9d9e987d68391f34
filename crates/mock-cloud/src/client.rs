//! A typed client of the cloud's API, for whoever manages instances and for tests.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    faults::{Behaviour, FailWith, Fault, FaultRule, Op},
    model::{
        Console, CreateInstance, Created, Deleting, ErrorAnswer, ErrorCode, Instance, InstanceList,
        Labels, ListInstances, Operation,
    },
    records::{Call, EverCreated},
    state::Settings,
};

/// How long a call may take unless [`Client::timeout`] says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Why a call did not succeed. After [`Error::Send`], [`Error::Timeout`] and [`Error::Answer`]
/// nobody knows whether the cloud carried it out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cloud refused.
    #[error("the cloud refused with {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its kind.
        code: ErrorCode,
        /// The cloud's words.
        message: String,
        /// The pause it asks for.
        retry_after: Option<Duration>,
    },
    /// The request was not sent, or its answer did not come.
    #[error("cannot reach the cloud at {base}")]
    Send {
        /// The API's address.
        base: String,
        /// Why.
        #[source]
        source: legacy::Error,
    },
    /// No answer in time.
    #[error("the cloud at {base} did not answer within {after:?}")]
    Timeout {
        /// The API's address.
        base: String,
        /// The limit.
        after: Duration,
    },
    /// The answer broke off or makes no sense.
    #[error("the cloud's answer to {what} cannot be read")]
    Answer {
        /// The request.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request cannot be written: a zone, name or label that does not fit into a URL.
    #[error("the request {what} cannot be written")]
    Request {
        /// The request.
        what: String,
        /// Why.
        #[source]
        source: http::Error,
    },
}

impl Error {
    /// The cloud's code; none when the cloud did not refuse.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Send { .. }
            | Self::Timeout { .. }
            | Self::Answer { .. }
            | Self::Request { .. } => None,
        }
    }
}

/// A client. Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    timeout: Duration,
    http: legacy::Client<HttpConnector, Full<Bytes>>,
}

impl Client {
    /// A client of the API at this address.
    pub fn new(address: SocketAddr) -> Self {
        Self::with_base(format!("http://{address}"))
    }

    /// A client of the API at this URL, `http://host:port` without a path.
    pub fn with_base(base: impl Into<String>) -> Self {
        let base: String = base.into();
        Self {
            base: base.trim_end_matches('/').to_owned(),
            timeout: DEFAULT_TIMEOUT,
            http: legacy::Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// Limits each call to this long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Creates an instance. A name that exists is refused with [`ErrorCode::AlreadyExists`].
    pub async fn create(&self, zone: &str, request: &CreateInstance) -> Result<Created, Error> {
        self.send(
            Method::POST,
            &format!("/v1/zones/{zone}/instances"),
            Some(request),
        )
        .await
    }

    /// Reads an instance by id or name.
    pub async fn get(&self, zone: &str, key: &str) -> Result<Instance, Error> {
        self.read(&format!("/v1/zones/{zone}/instances/{key}"))
            .await
    }

    /// Reads the console of an instance, by id or name.
    pub async fn console(&self, zone: &str, key: &str) -> Result<Console, Error> {
        self.read(&format!("/v1/zones/{zone}/instances/{key}/console"))
            .await
    }

    /// Starts to delete an instance, by id or name.
    pub async fn delete(&self, zone: &str, key: &str) -> Result<Deleting, Error> {
        let path = format!("/v1/zones/{zone}/instances/{key}");
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Lists the instances that match, oldest first.
    pub async fn list(&self, selection: &ListInstances) -> Result<Vec<Instance>, Error> {
        let ListInstances { zone, labels } = selection;
        let query = zone
            .iter()
            .map(|zone| format!("zone={}", escape(zone)))
            .chain(label_query(labels))
            .collect::<Vec<_>>()
            .join("&");
        let list: InstanceList = self.read(&format!("/v1/instances?{query}")).await?;
        Ok(list.items)
    }

    /// Reads an operation.
    pub async fn operation(&self, id: &str) -> Result<Operation, Error> {
        self.read(&format!("/v1/operations/{id}")).await
    }

    /// Every mutating call the cloud received, oldest first.
    pub async fn calls(&self) -> Result<Vec<Call>, Error> {
        self.read("/admin/calls").await
    }

    /// Every instance there ever was with these labels, oldest first.
    pub async fn ever_created(&self, labels: &Labels) -> Result<Vec<EverCreated>, Error> {
        let query = label_query(labels).collect::<Vec<_>>().join("&");
        self.read(&format!("/admin/created?{query}")).await
    }

    /// Adds a fault for calls to come.
    pub async fn add_fault(&self, rule: &FaultRule) -> Result<(), Error> {
        self.send(Method::POST, "/admin/faults", Some(rule)).await
    }

    /// Lets the next creates, in any zone, fail.
    pub async fn fail_next_creates(&self, count: u32, with: FailWith) -> Result<(), Error> {
        let fault = Fault::Fail { with };
        self.add_fault(&FaultRule {
            op: Op::Create,
            zone: None,
            count,
            fault,
        })
        .await
    }

    /// Forgets the faults that still wait.
    pub async fn clear_faults(&self) -> Result<(), Error> {
        self.send(Method::DELETE, "/admin/faults", None::<&()>)
            .await
    }

    /// Sets the delays for creates and deletes to come.
    pub async fn set_settings(&self, settings: &Settings) -> Result<(), Error> {
        self.send(Method::PUT, "/admin/settings", Some(settings))
            .await
    }

    /// Takes a machine away, as clouds do with spot machines.
    pub async fn preempt(&self, zone: &str, key: &str) -> Result<Instance, Error> {
        let path = format!("/admin/zones/{zone}/instances/{key}/preempt");
        self.send(Method::POST, &path, None::<&()>).await
    }

    /// Changes how an instance's proxy behaves; open connections through it are cut.
    pub async fn set_behaviour(
        &self,
        zone: &str,
        key: &str,
        behaviour: &Behaviour,
    ) -> Result<(), Error> {
        let path = format!("/admin/zones/{zone}/instances/{key}/behaviour");
        self.send(Method::PUT, &path, Some(behaviour)).await
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send(Method::GET, path, None::<&()>).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T, Error> {
        let what = format!("{method} {path}");
        let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| Error::Answer {
            what: what.clone(),
            source,
        };
        let body = body
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|e| unreadable(e.into()))?;
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::from(body.unwrap_or_default()))
            .map_err(|source| Error::Request {
                what: what.clone(),
                source,
            })?;
        let exchange = async {
            let answer = self
                .http
                .request(request)
                .await
                .map_err(|source| Error::Send {
                    base: self.base.clone(),
                    source,
                })?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER)
                .collect()
                .await
                .map_err(unreadable)?;
            Ok((head, body.to_bytes()))
        };
        let (head, body) = tokio::time::timeout(self.timeout, exchange)
            .await
            .map_err(|_| Error::Timeout {
                base: self.base.clone(),
                after: self.timeout,
            })??;
        if head.status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|e| unreadable(e.into()));
        }
        let ErrorAnswer { error } =
            serde_json::from_slice(&body).map_err(|e| unreadable(e.into()))?;
        let retry_after = head
            .headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        Err(Error::Refused {
            status: head.status.as_u16(),
            code: error.code,
            message: error.message,
            retry_after,
        })
    }
}

fn label_query(labels: &Labels) -> impl Iterator<Item = String> {
    labels
        .iter()
        .map(|(name, value)| format!("label={}", escape(&format!("{name}={value}"))))
}

/// Percent-encodes all but what is never special in a URL (RFC 3986, 2.3).
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push('%');
            for half in [byte >> 4, byte & 0xf] {
                let digit = char::from_digit(u32::from(half), 16).unwrap_or('0');
                escaped.push(digit.to_ascii_uppercase());
            }
        }
    }
    escaped
}
