//! One member of a pool as the pool sees it, and what its template wants of it.

use std::time::Duration;

use crawl_api::pool::ProxyPool;
use crawl_api::proxy::{Phase, Proxy};
use crawl_api::{conditions as c, names};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{applied, placement, revision};
use crate::proxy::{Drift, drift};

/// How far a member is, in the order in which members are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It never had an instance or an address.
    NeverProvisioned,
    /// It failed.
    Failed,
    /// It has, or gets, an instance and cannot be leased.
    Unhealthy,
    /// It can be leased.
    Ready,
}

/// Why a member is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outdated {
    /// The template asks for another machine.
    Template,
    /// It is older than `maxAgeSeconds` allows.
    Age,
}

/// What has to be written into a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// A merge patch.
    pub patch: Value,
    /// [`names::ANNOTATION_APPLIED_TEMPLATE`] after it.
    pub applied: String,
    /// Only the records of membership are written: it was created by a release that recorded nothing,
    /// or lost its label.
    pub adopts: bool,
}

/// A member that is there to stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// How far it is.
    pub standing: Standing,
    /// It has been Ready for `minReadySeconds`.
    pub available: bool,
    /// Why it does not, and will hardly, become Ready; `None` while it is on its way.
    pub failing: Option<String>,
    /// Why it is to be replaced.
    pub outdated: Option<Outdated>,
    /// What has to be written into it.
    pub update: Option<Update>,
    /// When it was created.
    pub created: Timestamp,
    /// Which of the pool's placements it runs in.
    pub place: Option<usize>,
    /// It gets no instance where it is, or has just lost it there.
    pub stranded: bool,
    /// It has no instance and gets none, for lack of quota or stock.
    pub lacks_capacity: bool,
    /// When time alone changes what is said here, from now.
    pub next: Option<Duration>,
}

/// A template, with what members are compared with.
pub(super) struct Template {
    /// The name of the pool.
    pool: String,
    pub revision: String,
    applied: Value,
    text: String,
}

// === impl Template ===

impl Template {
    pub(super) fn of(pool: &ProxyPool) -> Self {
        let template = &pool.spec.template;
        let applied = applied::applied(template);
        Self {
            pool: pool.name_any(),
            revision: revision::revision(&template.spec),
            text: applied.to_string(),
            applied,
        }
    }

    /// The annotations that record it.
    pub(super) fn annotations(&self) -> [(String, String); 2] {
        [
            (
                names::ANNOTATION_TEMPLATE_HASH.into(),
                self.revision.clone(),
            ),
            (names::ANNOTATION_APPLIED_TEMPLATE.into(), self.text.clone()),
        ]
    }

    /// How a member compares: it needs another machine, or a write, or nothing.
    fn compare(&self, member: &Proxy) -> (Option<Outdated>, Option<Update>) {
        let stored = |key: &str| member.annotations().get(key).map(String::as_str);
        match drift(stored(names::ANNOTATION_TEMPLATE_HASH), &self.revision) {
            Drift::Changed => return (Some(Outdated::Template), None),
            Drift::Unknown => return (None, Some(self.adoption())),
            Drift::Same => {},
        }
        let stored = stored(names::ANNOTATION_APPLIED_TEMPLATE);
        if stored == Some(self.text.as_str()) {
            return (None, None);
        }
        // Why an unreadable record is adopted: nothing can be said of what was changed since.
        let Some(before) = stored.and_then(|text| serde_json::from_str(text).ok()) else {
            return (None, Some(self.adoption()));
        };
        let update = applied::change(&before, &self.applied).map(|change| self.update(change));
        (None, update)
    }

    /// Adds the pool's label to what is written, if the member has lost it or never had it. Why also
    /// for outdated members: leases are counted by it when members are chosen to go.
    fn labelled(&self, member: &Proxy, update: Option<Update>) -> Option<Update> {
        if member.labels().get(names::LABEL_POOL) == Some(&self.pool) {
            return update;
        }
        let recorded = member.annotations().get(names::ANNOTATION_APPLIED_TEMPLATE);
        let mut update = update.unwrap_or_else(|| Update {
            patch: json!({}),
            applied: recorded.cloned().unwrap_or_default(),
            adopts: true,
        });
        update.patch["metadata"]["labels"][names::LABEL_POOL] = json!(self.pool);
        Some(update)
    }

    fn adoption(&self) -> Update {
        let record: serde_json::Map<_, _> = self
            .annotations()
            .map(|(key, value)| (key, Value::String(value)))
            .into_iter()
            .collect();
        Update {
            patch: json!({"metadata": {"annotations": record}}),
            applied: self.text.clone(),
            adopts: true,
        }
    }

    fn update(&self, change: Value) -> Update {
        let mut patch = change;
        let key = names::ANNOTATION_APPLIED_TEMPLATE;
        patch["metadata"]["annotations"][key] = json!(self.text);
        Update {
            patch,
            applied: self.text.clone(),
            adopts: false,
        }
    }
}

// === impl Member ===

impl Member {
    /// Reads a member.
    pub(super) fn of(pool: &ProxyPool, template: &Template, proxy: &Proxy, now: Timestamp) -> Self {
        let standing = standing(proxy);
        let uid = proxy.uid().unwrap_or_default();
        let created = proxy.creation_timestamp();
        let created = created.map(|time| time.0).unwrap_or_default();
        let (outdated, update) = template.compare(proxy);
        let update = template.labelled(proxy, update);
        let to_available = wait_available(pool, proxy, now);
        let to_expire = wait_expired(pool, &uid, created, now);
        let expired = (to_expire == Some(Duration::ZERO)).then_some(Outdated::Age);
        Self {
            name: proxy.name_any(),
            standing,
            available: to_available == Some(Duration::ZERO),
            failing: (standing != Standing::Ready)
                .then(|| failing(proxy))
                .flatten(),
            outdated: outdated.or(expired),
            update,
            created,
            place: placement::of_member(pool, proxy),
            stranded: placement::is_stranded(proxy),
            lacks_capacity: placement::lacks_capacity(proxy),
            next: [to_available, to_expire]
                .into_iter()
                .flatten()
                .filter(|wait| !wait.is_zero())
                .min(),
            uid,
        }
    }
}

fn standing(proxy: &Proxy) -> Standing {
    let status = proxy.status.as_ref();
    let provisioned =
        status.is_some_and(|status| status.provider_id.is_some() || status.endpoint.is_some());
    if status.is_some_and(|status| c::is_true(&status.conditions, c::READY)) {
        Standing::Ready
    } else if !provisioned {
        Standing::NeverProvisioned
    } else if proxy.phase() == Phase::Failed {
        Standing::Failed
    } else {
        Standing::Unhealthy
    }
}

/// How long it still has to be Ready until it counts as available; `None` when it is not Ready.
fn wait_available(pool: &ProxyPool, proxy: &Proxy, now: Timestamp) -> Option<Duration> {
    let ready = proxy.condition(c::READY)?;
    let wanted = Duration::from_secs(u64::from(pool.spec.strategy.min_ready_seconds));
    let since = now.duration_since(ready.last_transition_time.0);
    (ready.status == "True")
        .then(|| wanted.saturating_sub(since.try_into().unwrap_or(Duration::ZERO)))
}

/// How long until it is too old.
fn wait_expired(
    pool: &ProxyPool,
    uid: &str,
    created: Timestamp,
    now: Timestamp,
) -> Option<Duration> {
    let age = now.duration_since(created);
    let due = lifetime(pool.spec.max_age_seconds?, uid);
    Some((due - age).try_into().unwrap_or(Duration::ZERO))
}

/// `maxAgeSeconds`, and up to a tenth less: how much follows from the UID, so it is the same for
/// every pass and every release.
pub(super) fn lifetime(max_age: u32, uid: &str) -> SignedDuration {
    let digest = Sha256::digest(uid.as_bytes());
    let share = u32::from(digest.first().copied().unwrap_or_default());
    let early = u64::from(max_age) * u64::from(share) / (10 * 256);
    let early = i64::try_from(early).unwrap_or_default();
    SignedDuration::from_secs(i64::from(max_age) - early)
}

/// Why a member that is not Ready will hardly become so: what stands in its way is no stage of
/// its start, nor a lack of capacity or a provider that may be back in a moment.
fn failing(proxy: &Proxy) -> Option<String> {
    const PASSING: [&str; 11] = [
        c::REASON_PENDING,
        c::REASON_PROVISIONING,
        c::REASON_REPLACING,
        c::REASON_PREEMPTED,
        c::REASON_INSTANCE_LOST,
        c::REASON_DELETING,
        c::REASON_PAUSED,
        c::REASON_QUOTA_EXCEEDED,
        c::REASON_RATE_LIMITED,
        c::REASON_PROVIDER_ERROR,
        c::REASON_SECRET_UNREADABLE,
    ];
    let said = |type_| {
        proxy
            .condition(type_)
            .filter(|condition| condition.status == "False")
            .filter(|condition| !PASSING.contains(&condition.reason.as_str()))
            .map(|condition| format!("{}: {}", condition.reason, condition.message))
    };
    // Why also what was: while its next machine boots, nothing is False that was not so before.
    let setbacks = || {
        let setbacks = &proxy.status.as_ref()?.setbacks;
        let mut own = setbacks
            .iter()
            .filter(|setback| setback.reason != c::REASON_PREEMPTED);
        let last = own.next_back()?;
        Some(format!("{}: its machine was replaced", last.reason))
    };
    said(c::PROVISIONED)
        .or_else(|| said(c::HEALTHY))
        .or_else(setbacks)
}
