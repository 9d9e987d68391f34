//! The projection of proxies: one `ProxyEndpoint` each, written when it changed.
//!
//! This is also the answer to a drain. The record that refuses grants is durable before the view
//! that says so is written, and the view counts every lease whose release is not durable yet: who
//! reads `accepting: false` with `active: 0` knows that nothing holds the proxy and nothing will.
//! Such changes are written at once; a mere change of numbers at most every five seconds per proxy.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::registry::capability::Companion;
use aggregated_api::registry::collection::Written;
use aggregated_api::store::{Compare, Op};
use crawl_api::endpoint::{ProxyEndpoint, ProxyEndpointSpec, ProxyEndpointStatus};
use crawl_api::lease::denial;

use super::{Desk, Error, PAUSE};
use crate::allocator::record;
use crate::allocator::view::{ProxyView, Viewed};
use crate::status;

/// Least time between two writes of one view that nobody waits for.
const INTERVAL: Duration = Duration::from_secs(5);
/// How often views that nobody waits for are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Views that nobody waits for, written in one go.
const BATCH: usize = 200;

/// What became of a view.
enum Shown {
    /// It is up to date.
    Done,
    /// It changed while it was written, or could not be known.
    Again,
}

// === impl Desk ===

impl Desk {
    /// Runs for ever.
    pub(super) async fn project(self) {
        let mut waiting: BTreeMap<Arc<str>, bool> = BTreeMap::new();
        let mut written: HashMap<Arc<str>, Duration> = HashMap::new();
        loop {
            let rung = self.allocator.bells().views.notified();
            for (uid, urgent) in self.allocator.take_views() {
                *waiting.entry(uid).or_default() |= urgent;
            }
            let now = self.clock.elapsed();
            written.retain(|_, at| *at + INTERVAL > now);
            let (mut ready, mut calm) = (Vec::new(), 0);
            waiting.retain(|uid, urgent| {
                if *urgent || (calm < BATCH && !written.contains_key(uid)) {
                    calm += usize::from(!*urgent);
                    ready.push((Arc::clone(uid), *urgent));
                    return false;
                }
                true
            });
            if ready.is_empty() {
                // Why: nobody rings for a mere change of numbers, so they are looked for.
                tokio::select! {
                    () = rung => {},
                    () = self.clock.sleep(LOOK) => {},
                }
                continue;
            }
            written.extend(ready.iter().map(|(uid, _)| (Arc::clone(uid), now)));
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
        next.spec.proxy_uid = view.uid.to_string();
        if let Some(labels) = labels {
            next.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
        }
        let before = next.status.as_ref();
        let revision = before.map(|status| status.observed_proxy_resource_version.clone());
        next.status = Some(project(view, revision.unwrap_or_default()));
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

/// What a view says. `last_seen` is what the view said before, for a proxy that is gone.
fn project(view: &ProxyView, last_seen: String) -> ProxyEndpointStatus {
    let active = i32::try_from(view.active).unwrap_or(i32::MAX);
    let Some(facts) = &view.facts else {
        return ProxyEndpointStatus {
            reason: Some(denial::DRAINING.to_owned()),
            active,
            observed_proxy_resource_version: last_seen,
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
