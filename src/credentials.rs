//! Wakes the Proxies that a provider refused when its credentials change.
//!
//! Providers read their files by themselves with each call; what waits for the next try is what is
//! remembered of a refusal. Files are compared by content at an interval: mounted Secrets are swapped
//! by a symlink, which notifications of the file itself miss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crawl_api::proxy::Proxy;
use kube::runtime::reflector::ObjectRef;
use runtime_kit::Clock;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::providers::Providers;
use crate::proxy::Ctx;

/// How often the files are compared.
const INTERVAL: Duration = Duration::from_secs(2);

/// Compares until nobody listens. Ends at once when no provider has a file.
pub async fn run(
    ctx: Arc<Ctx>,
    providers: Providers,
    clock: Arc<dyn Clock>,
    wake: mpsc::UnboundedSender<ObjectRef<Proxy>>,
) {
    let mut known = BTreeMap::new();
    while let Some(changed) = changed(&providers, &mut known).await {
        for proxy in changed.iter().flat_map(|name| ctx.lift_refusals(name)) {
            if wake.send(proxy).is_err() {
                return;
            }
        }
        clock.sleep(INTERVAL).await;
    }
}

/// The providers whose file is not as it was; none has one: `None`.
///
/// Why a first look counts as a change: the file may have changed since the provider read it, and
/// lifting a refusal too much costs one call.
async fn changed(
    providers: &Providers,
    known: &mut BTreeMap<String, [u8; 32]>,
) -> Option<Vec<String>> {
    let mut any = false;
    let mut changed = Vec::new();
    for (name, provider) in providers.iter() {
        let Some(file) = provider.credentials_file() else {
            continue;
        };
        any = true;
        // Why nothing is said: the provider does, with the next call; a Secret that is being
        // replaced is away for a moment.
        let Ok(content) = tokio::fs::read(file).await else {
            continue;
        };
        let digest = Sha256::digest(content).into();
        if known.insert(name.to_owned(), digest) != Some(digest) {
            changed.push(name.to_owned());
        }
    }
    any.then_some(changed)
}
