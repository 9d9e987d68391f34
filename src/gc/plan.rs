//! Decides which instances nobody owns may go. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crawl_api::names;
use jiff::{SignedDuration, Timestamp};

use crate::providers::{Instance, InstanceState};

/// A sweep that would delete more than one in so many instances, and more than one, is refused.
const SHARE: usize = 10;

/// An instance at a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The provider's name in the providers file.
    pub provider: String,
    /// The instance.
    pub instance: Instance,
}

/// What the objects in the cluster say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// All Proxies, those that are being deleted included: UID and the id of the instance.
    pub proxies: BTreeMap<String, Option<String>>,
    /// The namespaces that were read; none: all of them.
    pub namespaces: Option<BTreeSet<String>>,
}

/// What to do about orphans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The instances that nobody owns.
    pub orphans: Vec<Found>,
    /// So many would go that something else must be wrong: none may.
    pub refused: bool,
}

/// Decides.
///
/// An orphan carries this cluster's label and the UID of a Proxy that does not exist, or that has
/// another instance, which is there; it is older than `min_age`, and is not on its way out already.
/// An instance of another cluster, or without a UID, is nobody's business here; nor is one of a
/// namespace that was not read.
pub(super) fn plan(
    found: &[Found],
    live: &Live,
    cluster: &str,
    min_age: SignedDuration,
    now: Timestamp,
) -> Verdict {
    let ours = found.iter().filter(|found| {
        let tag = found.instance.tags.get(names::TAG_CLUSTER);
        tag.is_some_and(|tag| tag == cluster)
    });
    let ours: Vec<_> = ours.collect();
    let ids: BTreeSet<_> = ours
        .iter()
        .map(|found| found.instance.id.as_str())
        .collect();
    let owned = |instance: &Instance, uid: &str| match live.proxies.get(uid) {
        None => false,
        // Why only when the other one is there: an id that leads nowhere is about to be forgotten,
        // and this instance to be found in its place.
        Some(Some(id)) => *id == instance.id || !ids.contains(id.as_str()),
        Some(None) => true,
    };
    let orphans: Vec<_> = ours
        .iter()
        .filter(|found| is_orphan(&found.instance, live, &owned, min_age, now))
        .map(|found| (*found).clone())
        .collect();
    Verdict {
        refused: orphans.len() > (ours.len() / SHARE).max(1),
        orphans,
    }
}

fn is_orphan(
    instance: &Instance,
    live: &Live,
    owned: &impl Fn(&Instance, &str) -> bool,
    min_age: SignedDuration,
    now: Timestamp,
) -> bool {
    let Some(uid) = instance.proxy_uid() else {
        return false;
    };
    let in_view = live.namespaces.as_ref().is_none_or(|namespaces| {
        let tag = instance.tags.get(names::TAG_NAMESPACE);
        tag.is_some_and(|tag| namespaces.contains(tag))
    });
    let leaving = match instance.state {
        InstanceState::Stopping => true,
        InstanceState::Provisioning | InstanceState::Running | InstanceState::Stopped => false,
    };
    in_view && !leaving && !owned(instance, uid) && now.duration_since(instance.created) >= min_age
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Tags;

    const MIN_AGE: SignedDuration = SignedDuration::from_mins(20);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn instance(uid: &str) -> Instance {
        Instance {
            id: format!("mock://a/{uid}"),
            name: format!("proxy-{uid}"),
            tags: Tags::from([
                (names::TAG_CLUSTER.into(), "here".into()),
                (names::TAG_PROXY_UID.into(), uid.into()),
                (names::TAG_NAMESPACE.into(), "fleet".into()),
            ]),
            created: at(0),
            state: InstanceState::Running,
            ip: None,
            port: None,
            zone: "a".into(),
        }
    }

    fn found(instance: Instance) -> Found {
        Found {
            provider: "local".into(),
            instance,
        }
    }

    fn live(uids: &[&str]) -> Live {
        Live {
            proxies: uids.iter().map(|uid| ((*uid).to_owned(), None)).collect(),
            namespaces: None,
        }
    }

    fn orphans(instance: Instance, live: &Live, now: i64) -> usize {
        plan(&[found(instance)], live, "here", MIN_AGE, at(now))
            .orphans
            .len()
    }

    #[test]
    fn an_instance_whose_object_is_gone_is_an_orphan_when_it_is_old_enough() {
        assert_eq!(orphans(instance("u"), &live(&[]), 1_199), 0);
        assert_eq!(orphans(instance("u"), &live(&[]), 1_200), 1);
        assert_eq!(orphans(instance("u"), &live(&["u"]), 1_200), 0);
        assert_eq!(orphans(instance("u"), &live(&["v"]), 1_200), 1);
    }

    /// However a second instance of one Proxy came to be, as by a create in another zone that was
    /// not shown yet: cases 58 and 60.
    #[test]
    fn of_two_instances_of_one_proxy_the_one_it_does_not_know_is_an_orphan() {
        let mut second = instance("u");
        second.id = "mock://b/2".into();
        let both = [found(instance("u")), found(second)];
        let with = |id: Option<&str>, found: &[Found], now| {
            let live = Live {
                proxies: [("u".to_owned(), id.map(str::to_owned))].into(),
                namespaces: None,
            };
            let orphans = plan(found, &live, "here", MIN_AGE, at(now)).orphans;
            let ids = orphans.into_iter().map(|orphan| orphan.instance.id);
            ids.collect::<Vec<_>>()
        };
        assert_eq!(with(Some("mock://a/u"), &both, 9_999), ["mock://b/2"]);
        assert_eq!(with(Some("mock://b/2"), &both, 9_999), ["mock://a/u"]);
        assert!(with(Some("mock://a/u"), &both, 1_199).is_empty(), "young");
        assert!(
            with(None, &both, 9_999).is_empty(),
            "one is about to be recorded"
        );
        let gone = with(Some("mock://c/3"), &both, 9_999);
        assert!(
            gone.is_empty(),
            "one of these takes the place of what is gone"
        );
    }

    #[test]
    fn what_stopped_is_an_orphan_and_what_is_leaving_is_not() {
        let in_state = |state| {
            let mut instance = instance("u");
            instance.state = state;
            orphans(instance, &live(&[]), 9_999)
        };
        assert_eq!(in_state(InstanceState::Stopped), 1);
        assert_eq!(in_state(InstanceState::Provisioning), 1);
        assert_eq!(in_state(InstanceState::Stopping), 0);
    }

    #[test]
    fn instances_of_another_cluster_or_without_a_uid_are_left_alone() {
        let changed = |tag: &str, value: Option<&str>| {
            let mut instance = instance("u");
            match value {
                Some(value) => instance.tags.insert(tag.into(), value.into()),
                None => instance.tags.remove(tag),
            };
            orphans(instance, &live(&[]), 9_999)
        };
        assert_eq!(changed(names::TAG_CLUSTER, Some("elsewhere")), 0);
        assert_eq!(changed(names::TAG_CLUSTER, None), 0);
        assert_eq!(changed(names::TAG_PROXY_UID, None), 0);
    }

    #[test]
    fn with_a_restricted_view_only_its_namespaces_are_judged() {
        let seen = |namespace: &str| Live {
            proxies: BTreeMap::new(),
            namespaces: Some(BTreeSet::from([namespace.to_owned()])),
        };
        assert_eq!(orphans(instance("u"), &seen("fleet"), 9_999), 1);
        assert_eq!(orphans(instance("u"), &seen("other"), 9_999), 0);
        let mut untagged = instance("u");
        untagged.tags.remove(names::TAG_NAMESPACE);
        assert_eq!(orphans(untagged, &seen("fleet"), 9_999), 0);
    }

    #[test]
    fn more_than_a_tenth_at_once_is_refused_and_one_never_is() {
        let refused = |total: usize, gone: usize| {
            let all: Vec<_> = (0..total)
                .map(|index| found(instance(&index.to_string())))
                .collect();
            let uids: Vec<_> = (gone..total).map(|index| index.to_string()).collect();
            let uids: Vec<_> = uids.iter().map(String::as_str).collect();
            let verdict = plan(&all, &live(&uids), "here", MIN_AGE, at(9_999));
            assert_eq!(verdict.orphans.len(), gone);
            verdict.refused
        };
        assert!(!refused(1, 1));
        assert!(!refused(3, 1));
        assert!(refused(19, 2));
        assert!(!refused(20, 2));
        assert!(refused(20, 20));
    }

    #[test]
    fn instances_of_other_clusters_do_not_make_a_sweep_look_small() {
        let mut all: Vec<_> = ["a", "b"].map(|uid| found(instance(uid))).into();
        for index in 0..100 {
            let mut foreign = instance(&format!("foreign-{index}"));
            foreign
                .tags
                .insert(names::TAG_CLUSTER.into(), "elsewhere".into());
            all.push(found(foreign));
        }
        assert!(plan(&all, &live(&[]), "here", MIN_AGE, at(9_999)).refused);
    }
}
