//! Waiting for a condition with a deadline, instead of sleeping and hoping. Used by this crate and by tests.

use std::time::Duration;

use crate::error::{Error, Result};

const INTERVAL: Duration = Duration::from_millis(20);

/// Asks `probe` every 20 ms until it gives a value. An error ends the waiting at once; after `timeout`
/// the error says what (`what`) was waited for.
pub async fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let waiting = async {
        loop {
            if let Some(value) = probe().await? {
                return Ok(value);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    match tokio::time::timeout(timeout, waiting).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Timeout {
            what: what.to_owned(),
            waited: timeout,
            detail: String::new(),
        }),
    }
}
