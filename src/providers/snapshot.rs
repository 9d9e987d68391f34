//! Answers looks at instances that run from one listing instead of a call each.
//!
//! Held by [`super::Metered`] for each provider. A listing is taken when a second instance is looked at
//! within the time that an answer may be old, so a single one costs no listing, and none is taken
//! when nobody looks. What it does not show, or what was created or deleted through the same
//! provider since, has to be asked for by itself.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use runtime_kit::Clock;

use super::{Error, Instance, Listing};

/// What was seen of an instance, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// The provider was asked for it by itself.
    Asked(Option<Instance>),
    /// It was in a listing that is a few seconds old. Nothing may be changed because of it.
    Listed(Instance),
}

/// The last listing of a provider. Times are monotonic.
#[derive(Default)]
pub(super) struct Snapshot {
    /// Held while a listing is taken, so that those who look meanwhile share it.
    taken: tokio::sync::Mutex<Taken>,
    /// When instances were created or deleted.
    touched: Mutex<HashMap<String, Duration>>,
}

#[derive(Default)]
struct Taken {
    /// When it was begun.
    at: Option<Duration>,
    instances: HashMap<String, Instance>,
    /// The last one that had to be asked for because there was no listing.
    asked: Option<(String, Duration)>,
}

// === impl Snapshot ===

impl Snapshot {
    /// Notes that an instance was created or deleted: listings begun before do not speak of it.
    pub(super) fn touch(&self, id: &str, clock: &dyn Clock) {
        self.touched.lock().insert(id.to_owned(), clock.elapsed());
    }

    /// The instance by a listing that was begun no longer than `age` ago, taken with `list` when
    /// there is none and it pays; `None`: it has to be asked for.
    pub(super) async fn find(
        &self,
        id: &str,
        age: Duration,
        clock: &dyn Clock,
        list: impl Future<Output = Result<Listing, Error>>,
    ) -> Option<Instance> {
        let mut taken = self.taken.lock().await;
        let now = clock.elapsed();
        let recent = |at: Duration| clock.elapsed().saturating_sub(at) <= age;
        if !taken.at.is_some_and(recent) {
            let other = taken.asked.as_ref();
            if other.is_none_or(|(other, at)| other == id || !recent(*at)) {
                taken.asked = Some((id.to_owned(), now));
                return None;
            }
            // Why before it is there: one that fails is not tried again at once.
            taken.at = Some(now);
            // Why now: who waits for the listing may go away, and what was seen before is older.
            taken.instances.clear();
            taken.instances = match list.await {
                Ok(Listing { instances, .. }) => by_id(instances),
                Err(error) => {
                    let error = runtime_kit::chain(&error).to_string();
                    tracing::debug!(error, "no listing, every instance is asked for");
                    HashMap::new()
                },
            };
            self.touched.lock().retain(|_, at| *at >= now);
        }
        let begun = taken.at.filter(|at| recent(*at))?;
        let touched = self.touched.lock().get(id).copied();
        if touched.is_some_and(|at| at >= begun) {
            return None;
        }
        taken.instances.get(id).cloned()
    }
}

fn by_id(instances: Vec<Instance>) -> HashMap<String, Instance> {
    let pair = |instance: Instance| (instance.id.clone(), instance);
    instances.into_iter().map(pair).collect()
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
