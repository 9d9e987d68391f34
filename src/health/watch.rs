//! The life of one proxy within the engine: wait, probe, record, wait.
//!
//! Each proxy has a task of its own, so one that hangs delays nobody, and no proxy is ever probed
//! twice at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::failure::Failure;
use super::probe::Learnt;
use super::standing::Finding;
use super::{Probed, Shared, Target, Todo};

/// A proxy nobody knows anything about is first probed within this time.
const PROMPT: Duration = Duration::from_secs(1);
/// A change that found the channel full is told again after this time.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// What wakes and ends a watch.
#[derive(Clone, Default)]
pub(super) struct Signals {
    /// The target is gone.
    pub(super) stop: CancellationToken,
    /// The target has changed.
    pub(super) wake: Arc<Notify>,
}

/// Probes one proxy until it is removed.
pub(super) async fn watch(shared: Arc<Shared>, uid: String, signals: Signals) {
    let Signals { stop, wake } = signals;
    let _ended = stop
        .run_until_cancelled(async {
            let clock = Arc::clone(&shared.clock);
            let mut due = clock.elapsed() + jittered(first_delay(&shared, &uid));
            loop {
                let untold = !shared.tell(&uid);
                let mut wait = due.saturating_sub(clock.elapsed());
                if untold {
                    wait = wait.min(TELL_AGAIN);
                }
                tokio::select! {
                    () = wake.notified() => {
                        due = clock.elapsed();
                        continue;
                    },
                    () = clock.sleep(wait) => {},
                }
                if clock.elapsed() < due {
                    continue;
                }
                let place = shared.lanes.enter(shared.is_healthy(&uid)).await;
                let started = clock.elapsed();
                let Some(Todo {
                    target,
                    revision,
                    url,
                }) = shared.todo(&uid)
                else {
                    return;
                };
                shared.metrics.started(started.saturating_sub(due));
                let probed = match url {
                    Ok(url) => {
                        let result = shared.prober.probe(&target, &url).await;
                        let took = clock.elapsed().saturating_sub(started);
                        drop(place);
                        Box::pin(judge(&shared, &target, url, result, took)).await
                    },
                    Err(failure) => Probed {
                        url: None,
                        finding: Finding::Fails(failure),
                        hold: None,
                        at: shared.moment(),
                    },
                };
                shared.record(&uid, revision, &probed);
                let Some(pause) = shared.pause(&uid, &probed.finding) else {
                    return;
                };
                // From when it was due, so that a late start does not shift all later ones; but
                // never two in a hurry to catch up.
                due = (due + pause).max(clock.elapsed());
            }
        })
        .await;
}

/// What a probe's result says in the end: who is to blame for a failure, and whether clients
/// contradict it.
async fn judge(
    shared: &Shared,
    target: &Target,
    url: Url,
    result: Result<Learnt, Failure>,
    took: Duration,
) -> Probed {
    let (finding, hold) = shared.weigh(target, &url, result, took).await;
    let at = shared.moment();
    let finding = match finding {
        Finding::Fails(failure) => shared.ask_clients(&target.uid, &url, failure, at).await,
        finding @ (Finding::Works(_) | Finding::Disputed(..) | Finding::TargetFails(_)) => finding,
    };
    Probed {
        url: Some(url),
        finding,
        hold,
        at,
    }
}

/// A known proxy can wait for its turn; after a change of leaders that spreads the load.
fn first_delay(shared: &Shared, uid: &str) -> Duration {
    match shared.interval_if_known(uid) {
        Some(interval) => interval,
        None => PROMPT,
    }
}

fn jittered(most: Duration) -> Duration {
    most.mul_f64(rand::random::<f64>())
}
