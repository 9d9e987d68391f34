//! The control probe: the same URL without the proxy, to tell a bad proxy from a bad target.
//!
//! Asked only after a probe failed in a way that the target or our own network may explain, and for
//! the address that the echo target sees of ourselves. One answer serves all proxies for a while, and
//! a URL is never asked twice at once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crawl_api::proxy::{HealthCheck, Proxy};
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use runtime_kit::Clock;
use url::Url;

use super::failure::Failure;
use super::probe::{Direct, Learnt, Prober};

/// How long an answer explains other failures.
const FRESH: Duration = Duration::from_secs(10);
/// How long the address that the echo target sees of ourselves is believed.
const OWN_FRESH: Duration = Duration::from_mins(5);
/// When it is asked for again after it could not be learnt.
const OWN_RETRY: Duration = Duration::from_mins(1);
/// Answers of URLs that are kept; beyond that, old ones are dropped.
const KEPT: usize = 256;

/// What a failed probe says of its proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// It fails.
    Proxy,
    /// It fails as it would without the proxy, and no target is left that could tell more.
    Unknown,
    /// Nothing: the target itself fails.
    Target,
}

/// Makes control probes.
pub(super) struct Control {
    prober: Prober,
    clock: Arc<dyn Clock>,
    seen: Mutex<HashMap<Url, Arc<Place>>>,
}

/// What is known of one URL; the lock is held while it is asked.
type Place = tokio::sync::Mutex<Option<Seen>>;

struct Seen {
    at: Duration,
    answer: Direct,
}

// === impl Control ===

impl Control {
    pub(super) fn new(prober: Prober, clock: Arc<dyn Clock>) -> Self {
        Self {
            prober,
            clock,
            seen: Mutex::default(),
        }
    }

    /// Who is to blame for a failed probe of one of these URLs.
    pub(super) async fn blame(
        &self,
        failure: &Failure,
        url: &Url,
        check: &HealthCheck,
        proxy: &ObjectRef<Proxy>,
    ) -> Blame {
        if !failure.may_be_the_targets() {
            return Blame::Proxy;
        }
        let asked = self.ask(url, check, |age, _| age < FRESH).await;
        let Err(direct) = asked else {
            return Blame::Proxy;
        };
        tracing::debug!(%proxy, %url, %direct, "the target fails without the proxy too");
        // Why: the same answer came through, so traffic goes through.
        if failure.is_answer() && direct == *failure {
            return Blame::Target;
        }
        let urls = self.prober.urls(check).unwrap_or_default();
        let turns = u32::try_from(urls.len()).unwrap_or(u32::MAX);
        let recent = check.interval().saturating_mul(turns.saturating_mul(2));
        for other in urls.iter().filter(|other| *other != url) {
            if !self.is_known_to_fail(other, check, recent).await {
                return Blame::Target;
            }
        }
        Blame::Unknown
    }

    /// The address that an echo target sees of ourselves, if it can be learnt.
    pub(super) async fn own_ip(&self, echo: &Url, check: &HealthCheck) -> Option<IpAddr> {
        let asked = self.ask(echo, check, |age, answered| {
            age < if answered { OWN_FRESH } else { OWN_RETRY }
        });
        asked.await.ok()?.exit_ip
    }

    async fn ask(
        &self,
        url: &Url,
        check: &HealthCheck,
        is_fresh: impl Fn(Duration, bool) -> bool,
    ) -> Result<Learnt, Failure> {
        let place = self.place(url);
        let mut seen = place.lock().await;
        if let Some(Seen { at, answer }) = &*seen {
            let judged = self.prober.judge_direct(answer, url, check);
            let age = self.clock.elapsed().saturating_sub(*at);
            if is_fresh(age, judged.is_ok()) {
                return judged;
            }
        }
        let answer = self.prober.ask_directly(url, check.timeout()).await;
        let judged = self.prober.judge_direct(&answer, url, check);
        *seen = Some(Seen {
            at: self.clock.elapsed(),
            answer,
        });
        judged
    }

    async fn is_known_to_fail(&self, url: &Url, check: &HealthCheck, recent: Duration) -> bool {
        let place = self.place(url);
        let seen = place.lock().await;
        seen.as_ref().is_some_and(|Seen { at, answer }| {
            self.clock.elapsed().saturating_sub(*at) <= recent
                && self.prober.judge_direct(answer, url, check).is_err()
        })
    }

    fn place(&self, url: &Url) -> Arc<Place> {
        let mut seen = self.seen.lock();
        if seen.len() >= KEPT && !seen.contains_key(url) {
            let now = self.clock.elapsed();
            let in_use = |place: &Arc<Place>| match place.try_lock() {
                Ok(seen) => seen
                    .as_ref()
                    .is_some_and(|seen| now.saturating_sub(seen.at) < OWN_FRESH),
                Err(_) => true,
            };
            seen.retain(|_, place| Arc::strong_count(place) > 1 || in_use(place));
        }
        Arc::clone(seen.entry(url.clone()).or_default())
    }
}
