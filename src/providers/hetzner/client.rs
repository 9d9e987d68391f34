//! One call of Hetzner Cloud's API: the token, a time limit, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, Method, StatusCode};
use reqwest::redirect::Policy;
use runtime_kit::{Class, Clock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::account::HetznerAccount;
use super::error::{self, Failed};
use super::token::Token;
use crate::providers::{Allowance, Error};

/// Where the API is.
const PUBLIC: &str = "https://api.hetzner.cloud";
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer. A page of fifty servers has a few hundred thousand bytes.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// A client of one project.
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    token: Token,
    clock: Arc<dyn Clock>,
    allowance: Allowance,
}

/// What was answered, read whole.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

// === impl Client ===

impl Client {
    /// Reads the token, and calls nobody.
    ///
    /// # Errors
    /// The token cannot be used.
    pub(super) async fn new(
        provider: &str,
        account: &HetznerAccount,
        clock: Arc<dyn Clock>,
        allowance: Allowance,
    ) -> Result<Self, Error> {
        // Why no redirects and no retries: a token goes to the API and nowhere else, and what
        // happens after a failure is the controllers' decision.
        let http = reqwest::Client::builder()
            .user_agent(concat!("proxy-operator/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .build();
        let http = http.map_err(|error| {
            let message = "the HTTP client cannot be built: check the machine's certificates";
            Error::new(Class::Invalid, message).caused_by(error)
        })?;
        let base = account.endpoint.as_ref().map_or(PUBLIC, |url| url.as_str());
        let client = Self {
            http,
            base: format!("{}/v1", base.trim_end_matches('/')),
            token: Token::new(provider, &account.token_file),
            clock,
            allowance,
        };
        client.token.header().await?;
        Ok(client)
    }

    /// Reads something.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, Error> {
        self.call(what, self.request(Method::GET, path).query(query))
            .await
    }

    /// Creates something.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(body).map_err(|error| {
            Error::new(Class::Invalid, format!("cannot {what}: not encodable")).caused_by(error)
        })?;
        let request = self.request(Method::POST, path);
        self.call(
            what,
            request.header(CONTENT_TYPE, "application/json").body(body),
        )
        .await
    }

    /// Deletes something; what is said of it is not read.
    pub(super) async fn delete(&self, what: &str, path: &str) -> Result<(), Error> {
        self.answer(what, self.request(Method::DELETE, path))
            .await
            .map(|_| ())
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}/{path}", self.base))
    }

    async fn call<T: DeserializeOwned>(
        &self,
        what: &str,
        request: reqwest::RequestBuilder,
    ) -> Result<T, Error> {
        let body = self.answer(what, request).await?;
        serde_json::from_slice(&body).map_err(|error| {
            let message = format!("cannot {what}: the answer cannot be understood");
            Error::new(Class::Transient, message).caused_by(error)
        })
    }

    /// The body of a good answer.
    async fn answer(&self, what: &str, request: reqwest::RequestBuilder) -> Result<Vec<u8>, Error> {
        let header = self.token.header().await?;
        self.allowance.take()?;
        let request = request.header(AUTHORIZATION, header);
        let answer = tokio::select! {
            answer = receive(request) => answer,
            () = self.clock.sleep(REQUEST_TIMEOUT) => {
                let seconds = REQUEST_TIMEOUT.as_secs();
                let message = format!("cannot {what}: no answer within {seconds} s");
                return Err(Error::new(Class::Transient, message));
            },
        };
        let Answer {
            status,
            headers,
            body,
        } = answer.map_err(|error| {
            Error::new(Class::Transient, format!("cannot {what}")).caused_by(error)
        })?;
        if let Some(remaining) = remaining(&headers) {
            self.allowance.told(remaining);
        }
        if status.is_success() {
            return Ok(body);
        }
        let now = self.clock.now();
        Err(error::refused(what, status, &headers, &body, now))
    }
}

/// How many requests the project has left.
fn remaining(headers: &HeaderMap) -> Option<u32> {
    let value = headers.get("ratelimit-remaining")?;
    value.to_str().ok()?.parse().ok()
}

async fn receive(request: reqwest::RequestBuilder) -> Result<Answer, Failed> {
    let mut answer = request.send().await.map_err(Failed::Send)?;
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(Failed::Send)? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(Failed::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer {
        status,
        headers,
        body,
    })
}
