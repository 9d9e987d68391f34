//! Who is calling, and may they: the traits the server is given, and their delegated
//! implementations.
//!
//! The HTTP layer asks an [`Authenticator`] first and an [`Authorizer`] for every request that is
//! not short-circuited. The delegated implementations trust what the cluster's own API server
//! says: its front proxy certificate ([`front_proxy`]), its client CA ([`x509`]), its
//! TokenReviews ([`token_review`]) and its SubjectAccessReviews ([`subject_access_review`]).

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use http::{HeaderMap, request};
use thiserror::Error;

pub mod anonymous;
pub mod ca;
pub(crate) mod cache;
pub mod config_map;
mod delegated_call;
pub mod front_proxy;
pub mod peer;
pub mod subject_access_review;
pub mod testing;
pub mod token_review;
pub mod trust;
pub mod union;
pub mod x509;

#[cfg(test)]
pub(crate) mod test_client;
#[cfg(test)]
pub(crate) mod test_pki;

pub use self::{
    anonymous::Anonymous,
    config_map::{ConfigState, DelegatedConfig},
    front_proxy::FrontProxy,
    peer::PeerCertificates,
    subject_access_review::SubjectAccessReviewAuthorizer,
    token_review::TokenReviewAuthenticator,
    trust::{RequestHeaderConfig, Trust},
    union::DelegatedAuthenticator,
    x509::ClientCertificate,
};

/// Group of callers that hold every permission; never asked about (bootstrap, probes).
pub const GROUP_MASTERS: &str = "system:masters";
/// Group every authenticated caller is in.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// Group of callers that presented no credentials.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Name of a caller that presented no credentials.
pub const USER_ANONYMOUS: &str = "system:anonymous";

/// An authenticated identity, as Kubernetes describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// Login name, such as `system:serviceaccount:<ns>:<name>`.
    pub name: String,
    /// Unique id, empty when the authenticator knows none.
    pub uid: String,
    /// Group names, in order.
    pub groups: Vec<String>,
    /// Further attributes; keys are lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The identity of a request without credentials.
    pub fn anonymous() -> Self {
        Self {
            name: USER_ANONYMOUS.to_owned(),
            groups: vec![GROUP_UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// Whether the request came without credentials. Such a caller's HTTP/2 connection is closed
    /// after the answer.
    pub fn is_anonymous(&self) -> bool {
        self.name == USER_ANONYMOUS
    }

    /// Whether the user is a member of `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|member| member == group)
    }
}

/// What an [`Authorizer`] decides on: one request, as RBAC sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A request for an API object or collection.
    Resource {
        /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or a
        /// verb of the API's own.
        verb: String,
        /// API group.
        group: String,
        /// API version.
        version: String,
        /// Plural resource name.
        resource: String,
        /// Subresource, empty for the main resource.
        subresource: String,
        /// Namespace, empty at cluster scope.
        namespace: String,
        /// Object name, empty for a collection.
        name: String,
    },
    /// A request for any other path.
    NonResource {
        /// Lower-case HTTP method.
        verb: String,
        /// Request path.
        path: String,
    },
}

/// Result of an authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request may proceed.
    Allow,
    /// The request is refused, with the authorizer's reason (may be empty).
    Deny(String),
}

/// Why no answer, or no favourable one, could be given.
#[derive(Clone, Debug, Error)]
pub enum AuthError {
    /// Credentials were presented and are not good: answer 401. The text is for the log; the
    /// caller is told nothing but `Unauthorized`.
    #[error("credentials refused: {0}")]
    Unauthenticated(Arc<str>),
    /// The cluster's API server could not be asked: answer 5xx, never 401 or 403, or clients
    /// throw away credentials that are fine.
    #[error("{review} could not be asked for: {cause}")]
    Unavailable {
        /// What was to be asked: `TokenReview` or `SubjectAccessReview`.
        review: &'static str,
        /// Why it failed, for the log and for the 500 of an authorizer.
        cause: Arc<str>,
    },
}

impl AuthError {
    /// Credentials that were presented and refused.
    pub(crate) fn unauthenticated(why: impl Into<Arc<str>>) -> Self {
        Self::Unauthenticated(why.into())
    }
}

/// Finds out who sends a request.
#[async_trait]
pub trait Authenticator: Send + Sync {
    /// The caller; `None` when the request carries no credentials that this authenticator knows.
    ///
    /// The certificates of the TLS peer arrive in the extensions of `req` as
    /// [`PeerCertificates`], unverified.
    ///
    /// # Errors
    /// [`AuthError::Unauthenticated`] for credentials that are wrong,
    /// [`AuthError::Unavailable`] when they could not be judged.
    async fn authenticate(&self, req: &request::Parts) -> Result<Option<User>, AuthError>;

    /// Removes the headers that carry credentials, so that nothing behind the authenticator can
    /// read them, log them, or mistake them for something that was checked.
    fn strip_credentials(&self, headers: &mut HeaderMap) {
        headers.remove(http::header::AUTHORIZATION);
    }
}

/// Decides whether a request may proceed.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Allows or refuses `attrs` for `user`.
    ///
    /// # Errors
    /// [`AuthError::Unavailable`] when no decision could be had.
    async fn authorize(&self, user: &User, attrs: &Attributes) -> Result<Decision, AuthError>;
}

/// Paths that are served to everybody, also while the cluster's API server is down, so that a
/// kubelet can probe.
pub fn is_always_allowed(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/livez")
}
