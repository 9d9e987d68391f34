//! The token of a project, read from its file for each call.

use std::path::{Path, PathBuf};

use http::HeaderValue;
use parking_lot::Mutex;
use runtime_kit::Class;

use crate::providers::Error;

/// Where the token comes from.
pub(super) struct Token {
    file: PathBuf,
    /// The last one that could be used, as a header that is never printed.
    last: Mutex<Option<HeaderValue>>,
    /// Whose it is, to log a change.
    provider: String,
}

// === impl Token ===

impl Token {
    pub(super) fn new(provider: &str, file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            last: Mutex::default(),
            provider: provider.into(),
        }
    }

    /// The header `Authorization` with the token as it is now.
    ///
    /// Why the file is read for each call: a mounted Secret changes under the process, and a read
    /// costs nothing beside the call.
    ///
    /// # Errors
    /// There is no token: [`Class::Unauthenticated`], with the remedy.
    pub(super) async fn header(&self) -> Result<HeaderValue, Error> {
        let text = match tokio::fs::read_to_string(&self.file).await {
            Ok(text) => text,
            Err(error) => return self.unreadable(error),
        };
        let token = text.trim();
        let fits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
        let header = HeaderValue::try_from(format!("Bearer {token}"));
        let (true, Ok(mut header)) = (fits, header) else {
            let message = format!(
                "the token file {} does not hold a token: store there what the console shows when \
                 the token is made, and nothing else",
                self.file.display()
            );
            return Err(Error::new(Class::Unauthenticated, message));
        };
        header.set_sensitive(true);
        let earlier = self.last.lock().replace(header.clone());
        if earlier.is_some_and(|earlier| earlier != header) {
            tracing::info!(
                provider = self.provider,
                "the token changed, and is used from now on"
            );
        }
        Ok(header)
    }

    /// Why the token is kept: a Secret that is being replaced is no reason to stop.
    fn unreadable(&self, error: std::io::Error) -> Result<HeaderValue, Error> {
        if let Some(last) = &*self.last.lock() {
            return Ok(last.clone());
        }
        let message = format!(
            "cannot read the token file {}: mount the Secret there, or correct hetzner.tokenFile",
            self.file.display()
        );
        Err(Error::new(Class::Unauthenticated, message).caused_by(error))
    }
}
