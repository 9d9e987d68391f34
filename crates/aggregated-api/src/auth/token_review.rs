//! Bearer tokens, for callers that come to this server's own port: put to the cluster's API
//! server as a TokenReview.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use data_encoding::BASE64URL_NOPAD;
use http::{HeaderMap, header, request};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use runtime_kit::Clock;
use sha2::{Digest, Sha256};

use super::{AuthError, Authenticator, User, cache::AnswerCache, delegated_call};

/// How long an answer holds, good or bad.
const KEEP: Duration = Duration::from_secs(10);
/// Answers remembered.
const CAPACITY: usize = 4096;
/// A browser cannot set headers on a WebSocket, so it brings the token as a subprotocol.
const SUBPROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Authenticates bearer tokens by TokenReview; needs `system:auth-delegator`.
pub struct TokenReviewAuthenticator {
    client: Client,
    audiences: Vec<String>,
    /// Keyed by digest: no token stays in memory.
    cache: AnswerCache<[u8; 32], Result<User, Arc<str>>>,
}

impl TokenReviewAuthenticator {
    /// Asks through `client`, whose own retries should be off. With `audiences`, only tokens
    /// issued for one of them are accepted; without, those of the API server itself.
    pub fn new(client: Client, audiences: Vec<String>, clock: Arc<dyn Clock>) -> Self {
        Self {
            client,
            audiences,
            cache: AnswerCache::new(CAPACITY, clock),
        }
    }
}

#[async_trait]
impl Authenticator for TokenReviewAuthenticator {
    async fn authenticate(&self, req: &request::Parts) -> Result<Option<User>, AuthError> {
        let Some(token) = bearer_token(&req.headers) else {
            return Ok(None);
        };
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let verdict = self
            .cache
            .get_or_ask(
                &digest,
                |asked| *asked == digest,
                || digest,
                |_| ask(self.client.clone(), token, self.audiences.clone()),
            )
            .await?;
        verdict.map(Some).map_err(AuthError::Unauthenticated)
    }
}

type Verdict = Result<User, Arc<str>>;

async fn ask(
    client: Client,
    token: String,
    audiences: Vec<String>,
) -> Result<(Verdict, Option<Duration>), AuthError> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token,
            audiences: (!audiences.is_empty()).then(|| audiences.clone()),
        },
        ..Default::default()
    };
    let status = delegated_call::post(client, "TokenReview", &review)
        .await?
        .status
        .ok_or_else(|| AuthError::Unavailable {
            review: "TokenReview",
            cause: "the answer has no status".into(),
        })?;
    if !status.authenticated.unwrap_or(false) {
        let why = status.error.filter(|error| !error.is_empty());
        let why = why.map_or_else(|| "the token is not valid".into(), Arc::from);
        return Ok((Err(why), Some(KEEP)));
    }
    // Why: an API server that knows no audiences leaves the list empty and has checked none, so
    // any token of the cluster would pass for one of ours.
    let meant_for_us = audiences.is_empty()
        || status
            .audiences
            .iter()
            .flatten()
            .any(|audience| audiences.contains(audience));
    if !meant_for_us {
        return Ok((Err("the token is for another audience".into()), Some(KEEP)));
    }
    let info = status.user.unwrap_or_default();
    let user = User {
        name: info.username.unwrap_or_default(),
        uid: info.uid.unwrap_or_default(),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    };
    if user.name.is_empty() {
        return Ok((Err("the TokenReview names no user".into()), Some(KEEP)));
    }
    Ok((Ok(user), Some(KEEP)))
}

/// The token of the request; `None` when it brings none. A scheme other than Bearer is somebody
/// else's business.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
        let token = token.trim_start().split(' ').next().unwrap_or_default();
        return (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
            .then(|| token.to_owned());
    }
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|protocol| protocol.trim().strip_prefix(SUBPROTOCOL))
        .find_map(|encoded| {
            let bytes = BASE64URL_NOPAD.decode(encoded.as_bytes()).ok()?;
            String::from_utf8(bytes)
                .ok()
                .filter(|token| !token.is_empty())
        })
}

#[cfg(test)]
mod tests;
