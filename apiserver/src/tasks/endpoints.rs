//! The projection of proxies: one `ProxyEndpoint` each, written when it changed.
//!
//! This is also the answer to a drain. The record that refuses grants is durable before the view
//! that says so is written, and the view counts every lease whose release is not durable yet: who
//! reads `accepting: false` with `active: 0` knows that nothing holds the proxy and nothing will.
//! Such changes are written at once. So is the first mere change of numbers; further ones are
//! gathered, and written at most every five seconds per proxy.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::registry::capability::Companion;
use aggregated_api::registry::collection::Written;
use aggregated_api::store::{Compare, Op};
use crawl_api::endpoint::{ProxyEndpoint, ProxyEndpointSpec, ProxyEndpointStatus};
use crawl_api::lease::denial;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Desk, Error, PAUSE};
use crate::allocator::record;
use crate::allocator::view::{ProxyView, Viewed, is_report_news};
use crate::status;

/// Least time between two writes of one view that nobody waits for.
const INTERVAL: Duration = Duration::from_secs(5);
/// Views that nobody waits for, written at most per [`WINDOW`].
const PER_WINDOW: usize = 200;
/// The time that [`PER_WINDOW`] is counted in.
const WINDOW: Duration = Duration::from_secs(1);
/// Views whose time comes within this are written together.
const GATHER: Duration = Duration::from_millis(100);

/// Which views are due.
#[derive(Default)]
struct Schedule {
    /// Views that changed; true: somebody waits for it.
    waiting: BTreeMap<Arc<str>, bool>,
    /// When views were last written, those within the last [`INTERVAL`].
    written: HashMap<Arc<str>, Duration>,
    /// When the window began, and what was written in it.
    window: (Duration, usize),
}

/// What became of a view.
enum Shown {
    /// It is up to date.
    Done,
    /// It changed while it was written, or could not be known.
    Again,
}

// === impl Schedule ===

impl Schedule {
    /// Views that have not been written for a while and have nothing to say.
    fn quiet(&mut self, now: Duration) -> Vec<Arc<str>> {
        let (waiting, mut quiet) = (&self.waiting, Vec::new());
        self.written.retain(|uid, at| {
            let recent = *at + INTERVAL > now;
            if !recent && !waiting.contains_key(uid) {
                quiet.push(Arc::clone(uid));
            }
            recent
        });
        quiet
    }

    fn changed(&mut self, views: Vec<(Arc<str>, bool)>) {
        for (uid, urgent) in views {
            *self.waiting.entry(uid).or_default() |= urgent;
        }
    }

    /// Views to be written now.
    fn ready(&mut self, now: Duration) -> Vec<(Arc<str>, bool)> {
        let Self {
            waiting,
            written,
            window: (began, calm),
        } = self;
        if *began + WINDOW <= now {
            (*began, *calm) = (now, 0);
        }
        let mut ready = Vec::new();
        waiting.retain(|uid, urgent| {
            if *urgent || (*calm < PER_WINDOW && !written.contains_key(uid)) {
                *calm += usize::from(!*urgent);
                ready.push((Arc::clone(uid), *urgent));
                return false;
            }
            true
        });
        written.extend(ready.iter().map(|(uid, _)| (Arc::clone(uid), now)));
        ready
    }

    /// When to look again; `None`: when it rings.
    fn next(&self) -> Option<Duration> {
        let interval = self.written.values().min().map(|at| *at + INTERVAL);
        let full = self
            .waiting
            .keys()
            .any(|uid| !self.written.contains_key(uid));
        let window = full.then_some(self.window.0 + WINDOW);
        interval.into_iter().chain(window).min()
    }
}

// === impl Desk ===

impl Desk {
    /// Runs for ever.
    pub(super) async fn project(self) {
        let mut schedule = Schedule::default();
        loop {
            let rung = self.allocator.bells().views.notified();
            let now = self.clock.elapsed();
            // Why: in this order, a change in between is either taken or rings.
            self.allocator.unfollow(&schedule.quiet(now));
            schedule.changed(self.allocator.take_views());
            let ready = schedule.ready(now);
            if ready.is_empty() {
                // Why: views that are followed do not ring, so they are looked at.
                match schedule.next() {
                    None => rung.await,
                    Some(at) => {
                        let pause = at.saturating_sub(self.clock.elapsed()).max(GATHER);
                        tokio::select! {
                            () = rung => {},
                            () = self.clock.sleep(pause) => {},
                        }
                    },
                }
                continue;
            }
            self.each(ready, |desk, (uid, urgent)| async move {
                match desk.show(&uid).await {
                    Ok(Shown::Done) => {},
                    Ok(Shown::Again) => desk.allocator.show(&uid, urgent),
                    Err(error) => {
                        desk.pause("showing a proxy", &error).await;
                        desk.allocator.show(&uid, true);
                    },
                }
            })
            .await;
        }
    }

    /// Makes the record and then the view say what is known of a proxy.
    async fn show(&self, uid: &Arc<str>) -> Result<Shown, Error> {
        let settled = self.allocator.bells().settled.notified();
        tokio::pin!(settled);
        settled.as_mut().enable();
        if let Some(limits) = self.allocator.limits(uid).await?
            && !self.commit(limits).await?
        {
            return Ok(Shown::Again);
        }
        match self.allocator.view(uid) {
            Viewed::Unknown => Ok(Shown::Done),
            Viewed::Behind => {
                tokio::select! {
                    () = settled => {},
                    () = self.clock.sleep(PAUSE) => {},
                }
                Ok(Shown::Again)
            },
            Viewed::View(view) if view.facts.is_none() && view.active == 0 => {
                self.hide(&view).await
            },
            Viewed::View(view) => self.write(&view).await,
        }
    }

    async fn write(&self, view: &ProxyView) -> Result<Shown, Error> {
        let existing = self
            .endpoints
            .get_latest(&view.namespace, &view.name)
            .await?;
        let labels = view.facts.as_ref().map(|facts| facts.labels.clone());
        let mut next = existing.clone().unwrap_or_else(|| {
            let mut new = ProxyEndpoint::new(&view.name, ProxyEndpointSpec::default());
            new.metadata.namespace = Some(view.namespace.to_string());
            new
        });
        // Why: another proxy has this name by now; the lease API shows the one that exists.
        if view.facts.is_none() && next.spec.proxy_uid != *view.uid {
            return Ok(Shown::Done);
        }
        let before = existing.as_ref().filter(|e| e.spec.proxy_uid == *view.uid);
        let before = before.and_then(|existing| existing.status.as_ref());
        next.spec.proxy_uid = view.uid.to_string();
        if let Some(labels) = labels {
            next.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
        }
        next.status = Some(project(view, before));
        if existing
            .as_ref()
            .is_some_and(|existing| is_same(existing, &next))
        {
            return Ok(Shown::Done);
        }
        let written = match existing {
            Some(_) => self.endpoints.replace(next, Companion::default()).await?,
            None => self.endpoints.create(next, Companion::default()).await?,
        };
        match written {
            Written::Committed(_) => Ok(Shown::Done),
            Written::Conflict => Ok(Shown::Again),
        }
    }

    /// Removes the view and the record of a proxy of which nothing is left.
    async fn hide(&self, view: &ProxyView) -> Result<Shown, Error> {
        let Some(version) = self.allocator.leftover(&view.uid) else {
            return Ok(Shown::Again);
        };
        let mut companion = Companion::default();
        if version > 0 {
            let key = record::key(&view.uid);
            companion
                .compares
                .push(Compare::Version(Arc::clone(&key), version));
            companion.ops.push(Op::Delete(key));
        }
        let existing = self
            .endpoints
            .get_latest(&view.namespace, &view.name)
            .await?;
        let ours = existing.filter(|existing| existing.spec.proxy_uid == *view.uid);
        let gone = match ours {
            Some(endpoint) => {
                let removed = self.endpoints.remove(&endpoint, companion).await?;
                matches!(removed, Written::Committed(_))
            },
            None => self.commit(companion).await?,
        };
        if gone {
            self.allocator.erase(&view.uid);
            return Ok(Shown::Done);
        }
        Ok(Shown::Again)
    }

    /// Views whose proxy went away while nobody watched: called when all proxies are known.
    ///
    /// # Errors
    /// The store fails.
    pub async fn drop_stale_endpoints(&self) -> Result<(), Error> {
        for endpoint in self.endpoints.list() {
            if self.allocator.view(&endpoint.spec.proxy_uid) == Viewed::Unknown
                && let Written::Conflict = self
                    .endpoints
                    .remove(&endpoint, Companion::default())
                    .await?
            {
                tracing::debug!(endpoint = ?endpoint.metadata.name, "changed while it was removed");
            }
        }
        Ok(())
    }
}

/// What a view says. `before` is what it said of the same proxy until now: it stays where nothing
/// newer is known, as of a proxy that is gone, or of reports after a restart.
fn project(view: &ProxyView, before: Option<&ProxyEndpointStatus>) -> ProxyEndpointStatus {
    let active = i32::try_from(view.active).unwrap_or(i32::MAX);
    let Some(facts) = &view.facts else {
        return ProxyEndpointStatus {
            reason: Some(denial::DRAINING.to_owned()),
            active,
            observed_proxy_resource_version: before
                .map(|before| before.observed_proxy_resource_version.clone())
                .unwrap_or_default(),
            ..ProxyEndpointStatus::default()
        };
    };
    ProxyEndpointStatus {
        endpoint: status::endpoint(facts),
        url: facts.endpoint.as_ref().map(ToString::to_string),
        healthy: facts.healthy,
        accepting: facts.accepting.is_ok(),
        reason: facts.accepting.err().map(|why| why.reason().to_owned()),
        active,
        max: i32::try_from(facts.max_leases).unwrap_or(i32::MAX),
        latency_bucket_milliseconds: i32::try_from(facts.latency_bucket).unwrap_or(i32::MAX),
        observed_proxy_resource_version: facts.resource_version.to_string(),
        exit_ip: facts.exit_ip.as_ref().map(ToString::to_string),
        last_success_report_time: reported(view, before),
    }
}

/// When a holder last reported success, within a step: never written twice within one.
fn reported(view: &ProxyView, before: Option<&ProxyEndpointStatus>) -> Option<Time> {
    let shown = before.and_then(|before| before.last_success_report_time.clone());
    let known = shown.as_ref().map(|time| time.0);
    match view.worked.filter(|at| is_report_news(known, *at)) {
        Some(at) => Some(status::seconds(at)),
        None => shown,
    }
}

/// Whether a view says nothing new. The observed version alone is news only in a drain.
fn is_same(old: &ProxyEndpoint, new: &ProxyEndpoint) -> bool {
    let (Some(before), Some(after)) = (&old.status, &new.status) else {
        return false;
    };
    let mut after = after.clone();
    if after.accepting && before.accepting {
        after
            .observed_proxy_resource_version
            .clone_from(&before.observed_proxy_resource_version);
    }
    *before == after && old.spec == new.spec && old.metadata.labels == new.metadata.labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn views(count: usize, urgent: bool) -> Vec<(Arc<str>, bool)> {
        (0..count)
            .map(|number| (Arc::from(format!("{number:04}")), urgent))
            .collect()
    }

    #[test]
    fn a_thousand_busy_proxies_cost_at_most_two_hundred_writes_a_second() {
        let mut schedule = Schedule::default();
        for second in 1..60 {
            let mut writes = 0;
            for tenth in 0..10 {
                let now = Duration::from_millis(second * 1000 + tenth * 100);
                assert_eq!(schedule.quiet(now), [], "all are busy");
                schedule.changed(views(1000, false));
                writes += schedule.ready(now).len();
            }
            assert_eq!(writes, 200, "in second {second}");
        }
    }

    #[test]
    fn a_view_that_somebody_waits_for_is_written_at_once() {
        let mut schedule = Schedule::default();
        let now = Duration::from_secs(1);
        schedule.changed(views(1000, false));
        assert_eq!(schedule.ready(now).len(), 200);
        assert_eq!(schedule.next(), Some(Duration::from_secs(2)));
        schedule.changed(views(1000, true));
        assert_eq!(schedule.ready(now).len(), 1000);
    }

    #[test]
    fn the_first_change_is_written_at_once_and_the_next_after_the_interval() {
        let mut schedule = Schedule::default();
        let at = Duration::from_secs;
        assert_eq!(schedule.next(), None);
        schedule.changed(views(1, false));
        assert_eq!(schedule.ready(at(10)), views(1, false));
        schedule.changed(views(1, false));
        assert_eq!(schedule.ready(at(14)), []);
        assert_eq!(schedule.next(), Some(at(15)));
        assert!(schedule.quiet(at(15)).is_empty());
        assert_eq!(schedule.ready(at(15)), views(1, false));
        assert_eq!(schedule.quiet(at(20)), [Arc::from("0000")]);
        assert_eq!(schedule.next(), None);
    }
}
