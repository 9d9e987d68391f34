//! The drain handshake, judged: may the instance be deleted as far as leases are concerned?
//!
//! Drain lives in the Proxy and grants in the lease-apiserver's store, so that no lease is seen
//! proves nothing by itself. It is proven when the lease-apiserver publishes that it saw a state
//! of the Proxy that carries the drain mark, accepts nothing, and has nothing active. Called by
//! `observe`; pure.

use crawl_api::conditions;
use crawl_api::proxy::Proxy;
use jiff::Timestamp;

/// What the lease API says of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseView {
    /// Nobody had a reason to ask.
    NotAsked,
    /// No lease API is installed: there is no APIService for it.
    NotInstalled,
    /// It could not be asked.
    Unavailable(String),
    /// It knows nothing of this proxy (yet).
    Absent,
    /// Its ProxyEndpoint.
    Seen {
        /// The resourceVersion of the Proxy that it reflects.
        observed: String,
        /// Whether new leases are granted.
        accepting: bool,
        /// Leases that hold a slot.
        active: i32,
    },
}

/// How far a drain is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// This state of the Proxy does not ask for one.
    Unmarked,
    /// Leases may exist, or may still be granted.
    Waiting(String),
    /// The lease API cannot be asked; the deadline still holds.
    Unavailable(String),
    /// Nothing has to be waited for, by the reason of the Drained condition.
    Done(&'static str, String),
}

/// The resourceVersion of a state of the Proxy that carries the drain mark, if it is marked.
pub(super) fn mark(proxy: &Proxy) -> Option<&str> {
    if !proxy.is_marked_for_drain() {
        return None;
    }
    let recorded = proxy
        .status
        .as_ref()
        .and_then(|status| status.drain_mark.as_deref());
    recorded.or(proxy.metadata.resource_version.as_deref())
}

/// Whether the lease API has to be asked about this state.
pub(super) fn needs_lease_view(proxy: &Proxy) -> bool {
    let drained = proxy.condition(conditions::DRAINED);
    proxy.is_marked_for_drain()
        && proxy.endpoint().is_some()
        && drained.is_none_or(|condition| condition.status != "True")
}

/// Judges the handshake.
pub(super) fn judge(proxy: &Proxy, view: &LeaseView, now: Timestamp) -> Drain {
    let drained = proxy.condition(conditions::DRAINED);
    if let Some(condition) = drained
        && condition.status == "True"
    {
        let reason = DONE.into_iter().find(|reason| *reason == condition.reason);
        let reason = reason.unwrap_or(conditions::REASON_NO_LEASES);
        return Drain::Done(reason, condition.message.clone());
    }
    if proxy.endpoint().is_none() {
        let message = "the proxy has no address, so nobody can hold a lease on it";
        return Drain::Done(conditions::REASON_NO_LEASES, message.into());
    }
    let Some(mark) = mark(proxy) else {
        return Drain::Unmarked;
    };
    let progress = match view {
        LeaseView::NotInstalled => {
            let message = "no lease API is installed in this cluster; nothing was waited for";
            return Drain::Done(conditions::REASON_NO_LEASE_API, message.into());
        },
        LeaseView::Seen {
            observed,
            accepting: false,
            active: 0,
        } if reached(observed, mark) => {
            let message = "no lease is left and none is granted any more";
            return Drain::Done(conditions::REASON_NO_LEASES, message.into());
        },
        LeaseView::Seen {
            observed,
            accepting: _,
            active,
        } if reached(observed, mark) => {
            Drain::Waiting(format!("{active} leases have not ended yet"))
        },
        LeaseView::Seen { .. } | LeaseView::Absent | LeaseView::NotAsked => {
            Drain::Waiting("the lease API has not seen the request to drain yet".into())
        },
        LeaseView::Unavailable(error) => {
            Drain::Unavailable(format!("the lease API cannot be asked: {error}"))
        },
    };
    if deadline_passed(proxy, now) {
        let message = format!(
            "drainTimeoutSeconds ({} s) passed; leases that were left are cut",
            proxy.spec.drain_timeout_seconds
        );
        return Drain::Done(conditions::REASON_DRAIN_TIMED_OUT, message);
    }
    progress
}

const DONE: [&str; 3] = [
    conditions::REASON_NO_LEASES,
    conditions::REASON_DRAIN_TIMED_OUT,
    conditions::REASON_NO_LEASE_API,
];

/// Why: resourceVersions of one resource are ordered numbers since Kubernetes 1.35; anything else
/// is not understood and therefore not reached.
fn reached(observed: &str, mark: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    matches!((number(observed), number(mark)), (Some(observed), Some(mark)) if observed >= mark)
}

fn deadline_passed(proxy: &Proxy, now: Timestamp) -> bool {
    let condition = proxy.condition(conditions::DRAINED);
    let began = condition.map(|condition| condition.last_transition_time.0);
    let deleted = proxy
        .metadata
        .deletion_timestamp
        .as_ref()
        .map(|time| time.0);
    let began = began.or(deleted);
    let waited = began
        .map(|began| now.duration_since(began))
        .unwrap_or_default();
    waited >= jiff::SignedDuration::from_secs(i64::from(proxy.spec.drain_timeout_seconds))
}

#[cfg(test)]
mod tests {
    use crawl_api::address::Endpoint;
    use crawl_api::conditions::Statement;
    use crawl_api::proxy::{ProxySpec, ProxyStatus};
    use crawl_api::scheme::Scheme;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Deleted at 100, with resourceVersion 50 carrying the mark since 40.
    fn deleted() -> Proxy {
        let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
        proxy.metadata.resource_version = Some("50".into());
        proxy.metadata.deletion_timestamp = Some(Time(at(100)));
        proxy.status = Some(ProxyStatus {
            endpoint: Some(Endpoint {
                scheme: Scheme::Http,
                host: "h".into(),
                port: 1,
            }),
            drain_mark: Some("40".into()),
            ..ProxyStatus::default()
        });
        proxy
    }

    fn seen(observed: &str, accepting: bool, active: i32) -> LeaseView {
        LeaseView::Seen {
            observed: observed.into(),
            accepting,
            active,
        }
    }

    fn reason(drain: &Drain) -> Option<&'static str> {
        match drain {
            Drain::Done(reason, _) => Some(*reason),
            Drain::Unmarked | Drain::Waiting(_) | Drain::Unavailable(_) => None,
        }
    }

    #[test]
    fn drained_only_when_the_mark_was_seen_nothing_is_accepted_and_nothing_is_active() {
        let judge = |view| reason(&judge(&deleted(), &view, at(101)));
        assert_eq!(judge(seen("40", false, 0)), Some("NoLeases"));
        assert_eq!(judge(seen("41", false, 0)), Some("NoLeases"));
        assert_eq!(judge(seen("39", false, 0)), None);
        assert_eq!(
            judge(seen("9", false, 0)),
            None,
            "versions are numbers, not text"
        );
        assert_eq!(judge(seen("40", true, 0)), None);
        assert_eq!(judge(seen("40", false, 1)), None);
        assert_eq!(judge(seen("", false, 0)), None);
        assert_eq!(judge(LeaseView::Absent), None);
    }

    #[test]
    fn without_a_recorded_mark_the_present_state_has_to_be_seen() {
        let mut proxy = deleted();
        proxy.status.as_mut().unwrap().drain_mark = None;
        assert_eq!(reason(&judge(&proxy, &seen("49", false, 0), at(101))), None);
        assert_eq!(
            reason(&judge(&proxy, &seen("50", false, 0), at(101))),
            Some("NoLeases")
        );
    }

    #[test]
    fn an_unreachable_lease_api_delays_and_never_blocks_past_the_deadline() {
        let down = LeaseView::Unavailable("503".into());
        let before = judge(&deleted(), &down, at(100 + 899));
        assert!(matches!(before, Drain::Unavailable(_)));
        assert_eq!(
            reason(&judge(&deleted(), &down, at(100 + 900))),
            Some("DrainTimedOut")
        );
        assert_eq!(
            reason(&judge(&deleted(), &seen("40", false, 3), at(1_000))),
            Some("DrainTimedOut")
        );
    }

    #[test]
    fn without_a_lease_api_nothing_is_waited_for() {
        let drain = judge(&deleted(), &LeaseView::NotInstalled, at(101));
        assert_eq!(reason(&drain), Some("NoLeaseAPI"));
    }

    #[test]
    fn an_unmarked_proxy_is_not_drained_and_one_without_address_is() {
        let mut proxy = deleted();
        proxy.metadata.deletion_timestamp = None;
        assert_eq!(
            judge(&proxy, &seen("99", false, 0), at(101)),
            Drain::Unmarked
        );
        proxy.status.as_mut().unwrap().endpoint = None;
        assert_eq!(
            reason(&judge(&proxy, &LeaseView::NotAsked, at(101))),
            Some("NoLeases")
        );
    }

    #[test]
    fn what_was_drained_once_stays_drained_and_the_deadline_counts_from_the_condition() {
        let mut proxy = deleted();
        proxy.metadata.deletion_timestamp = None;
        let set = |proxy: &mut Proxy, status: bool, reason: &str, second| {
            let statement = Statement::new(conditions::DRAINED, status, reason, "m");
            let list = &mut proxy.status.as_mut().unwrap().conditions;
            conditions::set(list, statement, None, at(second));
        };
        set(&mut proxy, false, conditions::REASON_DRAINING, 500);
        assert_eq!(reason(&judge(&proxy, &LeaseView::Absent, at(1_399))), None);
        assert_eq!(
            reason(&judge(&proxy, &LeaseView::Absent, at(1_400))),
            Some("DrainTimedOut")
        );
        set(&mut proxy, true, conditions::REASON_NO_LEASE_API, 600);
        assert_eq!(
            reason(&judge(&proxy, &LeaseView::NotAsked, at(601))),
            Some("NoLeaseAPI")
        );
        assert!(!needs_lease_view(&proxy));
    }
}
