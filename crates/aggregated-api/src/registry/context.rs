//! What hooks may know about the request they serve.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use runtime_kit::clock::Clock;

use crate::auth::{Attributes, Authorizer, Decision, User};
use crate::http::status::ApiError;

/// The request on whose behalf a hook runs.
pub struct RequestCtx {
    /// Who asks.
    pub user: Arc<User>,
    /// Namespace of the path, empty at cluster scope.
    pub namespace: String,
    /// Nothing may be changed or reserved: `plan` runs, `commit` does not.
    pub dry_run: bool,
    /// Time of the request.
    pub now: Timestamp,
    /// The server's clock.
    pub clock: Arc<dyn Clock>,
    /// Monotonic reading of `clock` after which the client no longer waits.
    pub deadline: Duration,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) warnings: Arc<Mutex<Vec<String>>>,
}

impl RequestCtx {
    /// Shows a warning to the caller (`Warning` header, code 299); the request goes on.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// Asks the authorizer whether the caller may do something beyond the request itself.
    pub async fn may(&self, attributes: &Attributes) -> Result<bool, ApiError> {
        match self.authorizer.authorize(&self.user, attributes).await {
            Ok(Decision::Allow) => Ok(true),
            Ok(Decision::Deny(_)) => Ok(false),
            Err(error) => Err(ApiError::internal(
                "the authorizer could not be asked",
                error,
            )),
        }
    }
}
