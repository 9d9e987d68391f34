//! The identity of a request that brings no credentials; last in the chain, so that it never
//! hides bad ones.

use async_trait::async_trait;
use http::request;

use super::{AuthError, Authenticator, User};

/// Authenticates every request as `system:anonymous`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous;

#[async_trait]
impl Authenticator for Anonymous {
    async fn authenticate(&self, _req: &request::Parts) -> Result<Option<User>, AuthError> {
        Ok(Some(User::anonymous()))
    }
}
