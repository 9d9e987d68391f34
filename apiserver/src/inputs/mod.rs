//! What lease-apiserver watches in the cluster: proxies and pools ([`fleet`]), pods ([`pods`]),
//! and what it asks for live ([`live`]).
//!
//! Everything here is told to the allocator and to [`crate::known`]; nothing here decides on a
//! lease. A kind that is not installed, or an API server that is away, is waited for.

mod fleet;
mod live;
mod pods;

use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use runtime_kit::admin::ReadyFlag;

pub use self::fleet::{PoolInput, ProxyInput};
pub use self::live::LiveCluster;
pub use self::pods::{PodInput, PodSweep};
use crate::known::Watched;

/// Pause before a watch is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The same pause always: a kind that gets installed should be seen soon.
struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(PAUSE)
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

/// Who is told of a kind.
trait Input<K> {
    /// Plural name, for logs.
    const WHAT: &'static str;

    /// An object as it is.
    async fn seen(&mut self, object: K);

    /// An object is gone.
    async fn gone(&mut self, object: K);

    /// A list begins: what is not seen before [`Input::listed`] is gone.
    fn listing(&mut self);

    /// A list is complete.
    async fn listed(&mut self);

    /// How far the watch is.
    fn watched(&self, watched: Watched);
}

/// Follows a kind for ever. `ready` is set once everything was seen, or nothing can be.
async fn follow<K: Debug, I: Input<K>>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    mut input: I,
    ready: ReadyFlag,
) {
    let mut events = std::pin::pin!(events.backoff(Steady));
    let mut problem: Option<String> = None;
    let mut settled = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => input.seen(object).await,
            Ok(Event::Delete(object)) => input.gone(object).await,
            Ok(Event::Init) => input.listing(),
            Ok(Event::InitDone) => {
                input.listed().await;
                input.watched(Watched::Synced);
                ready.set_ready();
                settled = true;
                if problem.take().is_some() {
                    tracing::info!("{} are watched again", I::WHAT);
                }
            },
            Err(error) => {
                let missing = is_missing(&error);
                let text = runtime_kit::chain(&error).to_string();
                if missing && !settled {
                    input.watched(Watched::NotInstalled);
                    ready.set_ready();
                    settled = true;
                } else if !settled {
                    ready.set_unready(format!("{} cannot be read: {text}", I::WHAT));
                }
                if problem.as_ref() != Some(&text) {
                    if missing {
                        tracing::warn!("{} are not installed in this cluster, waiting", I::WHAT);
                    } else {
                        tracing::warn!(error = text, "{} cannot be watched, trying again", I::WHAT);
                    }
                    problem = Some(text);
                }
            },
        }
    }
}

/// Whether the API server does not know the kind.
fn is_missing(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}
