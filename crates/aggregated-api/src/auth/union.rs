//! The authenticators of a server in order: front proxy, client certificate, bearer token,
//! anonymous. The first that knows the caller wins. An error is remembered while the others are
//! tried, so bad credentials never make a request anonymous.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, header, request};
use kube::Client;
use runtime_kit::Clock;

use super::{
    Anonymous, AuthError, Authenticator, ClientCertificate, DelegatedConfig, FrontProxy,
    GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED, TokenReviewAuthenticator, User, is_always_allowed,
};

/// Asks several authenticators, and puts those that are known into `system:authenticated`.
pub struct DelegatedAuthenticator {
    chain: Vec<Box<dyn Authenticator>>,
    anonymous: Option<Anonymous>,
    /// What the chain trusts by; until it is known, nobody is a stranger.
    trust: Option<Arc<DelegatedConfig>>,
}

impl DelegatedAuthenticator {
    /// What an aggregated API server needs: the cluster's own ways to authenticate. `audiences`
    /// as for [`TokenReviewAuthenticator::new`].
    pub fn new(
        config: &Arc<DelegatedConfig>,
        client: Client,
        audiences: Vec<String>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let chain = Self::of(vec![
            Box::new(FrontProxy::new(Arc::clone(config))),
            Box::new(ClientCertificate::new(Arc::clone(config))),
            Box::new(TokenReviewAuthenticator::new(client, audiences, clock)),
        ]);
        Self {
            trust: Some(Arc::clone(config)),
            ..chain
        }
    }

    /// Asks `chain` in order; a request without credentials is anonymous.
    pub fn of(chain: Vec<Box<dyn Authenticator>>) -> Self {
        Self {
            chain,
            anonymous: Some(Anonymous),
            trust: None,
        }
    }

    /// Gives `None` for requests without credentials, which the server then answers with 401.
    pub fn without_anonymous(mut self) -> Self {
        self.anonymous = None;
        self
    }

    /// Why the chain could not judge by certificates yet; `None`: it could.
    fn unsettled(&self) -> Option<AuthError> {
        let state = self.trust.as_ref()?.state();
        (!state.is_settled()).then(|| AuthError::Unavailable {
            review: "the cluster's certificate authorities",
            cause: format!(
                "ConfigMap kube-system/extension-apiserver-authentication has not been read ({state:?})"
            )
            .into(),
        })
    }
}

#[async_trait]
impl Authenticator for DelegatedAuthenticator {
    async fn authenticate(&self, req: &request::Parts) -> Result<Option<User>, AuthError> {
        let mut failed: Option<AuthError> = None;
        for authenticator in &self.chain {
            match authenticator.authenticate(req).await {
                Ok(Some(user)) => return Ok(Some(with_authenticated_group(user))),
                Ok(None) => {},
                // Why: one that could not be asked might have known the caller, so it decides
                // over those that did not.
                Err(err) => match (&failed, &err) {
                    (None, _) | (Some(_), AuthError::Unavailable { .. }) => failed = Some(err),
                    (Some(_), AuthError::Unauthenticated(_)) => {},
                },
            }
        }
        // Why: a valid client would be told 403 as system:anonymous, or 401, and give up. Probes
        // bring no credentials that could have been meant.
        if !is_always_allowed(req.uri.path())
            && let Some(unsettled) = self.unsettled()
        {
            return Err(unsettled);
        }
        match (failed, self.anonymous) {
            (Some(err), _) => Err(err),
            (None, Some(anonymous)) => anonymous.authenticate(req).await,
            (None, None) => Ok(None),
        }
    }

    fn strip_credentials(&self, headers: &mut HeaderMap) {
        headers.remove(header::AUTHORIZATION);
        for authenticator in &self.chain {
            authenticator.strip_credentials(headers);
        }
    }
}

fn with_authenticated_group(mut user: User) -> User {
    let settled = user.is_anonymous()
        || user.in_group(GROUP_AUTHENTICATED)
        || user.in_group(GROUP_UNAUTHENTICATED);
    if !settled {
        user.groups.push(GROUP_AUTHENTICATED.to_owned());
    }
    user
}

#[cfg(test)]
mod tests;
