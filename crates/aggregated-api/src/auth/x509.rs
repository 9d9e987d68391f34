//! Client certificates of the cluster's users, for callers that come to this server's own port.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use http::request;

use super::{AuthError, Authenticator, DelegatedConfig, PeerCertificates, User};

/// Extra attribute that names the credential, for audit.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Authenticates by a certificate that the cluster's client CA signed: the common name is the
/// user, the organizations are the groups.
#[derive(Debug)]
pub struct ClientCertificate {
    config: Arc<DelegatedConfig>,
}

impl ClientCertificate {
    /// Trusts the client CA that `config` holds at the time of each request.
    pub fn new(config: Arc<DelegatedConfig>) -> Self {
        Self { config }
    }
}

#[async_trait]
impl Authenticator for ClientCertificate {
    async fn authenticate(&self, req: &request::Parts) -> Result<Option<User>, AuthError> {
        let Some(peer) = req.extensions.get::<PeerCertificates>() else {
            return Ok(None);
        };
        let trust = self.config.trust();
        let Some(ca) = trust.client_ca.as_deref() else {
            return Ok(None);
        };
        let subject = ca.verify(peer).map_err(AuthError::Unauthenticated)?;
        if subject.common_name.is_empty() {
            return Ok(None);
        }
        Ok(Some(User {
            name: subject.common_name.clone(),
            uid: subject.uid.clone(),
            groups: subject.organizations.clone(),
            extra: BTreeMap::from([(
                CREDENTIAL_ID.to_owned(),
                vec![format!("X509SHA256={}", subject.sha256)],
            )]),
        }))
    }
}

#[cfg(test)]
mod tests;
