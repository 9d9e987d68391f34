//! What is remembered of a Proxy between passes, by UID. All of it may be lost: a restarted operator
//! makes one more call, or one more write that is refused, and knows again.

use std::collections::HashMap;
use std::time::Duration;

use crawl_api::proxy::Proxy;
use kube::ResourceExt;
use parking_lot::Mutex;

use super::Failure;
use crate::health::Credentials;

/// Until when providers are left alone, and what we wrote last.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<String, Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    hold: Option<Hold>,
    /// The resourceVersion of our last write.
    written: Option<u64>,
    /// What the instance asks its clients for.
    credentials: Option<Credentials>,
    /// Since when, in monotonic time, the instance of this id (none: any of the Proxy's) was not
    /// found.
    missing: Option<(Option<String>, Duration)>,
    /// The instance whose console was read, and what it said.
    console: Option<(String, Heard)>,
}

/// What the console of an instance said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Of a failure of cloud-init, in this line.
    Failure(String),
    /// Nothing of one, or it cannot be read.
    Nothing,
}

/// Why not the controller's requeue alone: the pass that writes a failure into status wakes the
/// controller by that very write. A changed generation, which a deletion is too, lifts a hold.
#[derive(Debug)]
struct Hold {
    generation: Option<i64>,
    /// In monotonic time.
    until: Duration,
    failure: Failure,
}

impl Memory {
    /// Leaves the provider alone until then, for this generation.
    pub(super) fn hold(&self, proxy: &Proxy, until: Duration, failure: Failure) {
        let hold = Hold {
            generation: proxy.metadata.generation,
            until,
            failure,
        };
        self.edit(proxy, |remembered| remembered.hold = Some(hold));
    }

    /// How long the provider is left alone yet, and why.
    pub(super) fn held(&self, proxy: &Proxy, elapsed: Duration) -> Option<(Duration, Failure)> {
        let mut memory = self.0.lock();
        let remembered = memory.get_mut(&proxy.uid()?)?;
        let Hold {
            generation,
            until,
            failure,
        } = remembered.hold.as_ref()?;
        let left = until.saturating_sub(elapsed);
        if *generation != proxy.metadata.generation || left.is_zero() {
            remembered.hold = None;
            return None;
        }
        Some((left, failure.clone()))
    }

    /// The credentials to probe with: those of the Secret, or, as long as the instance is to be
    /// replaced first, those that worked before.
    pub(super) fn credentials(
        &self,
        proxy: &Proxy,
        wanted: Option<Credentials>,
        replaced_first: bool,
    ) -> Option<Credentials> {
        let mut memory = self.0.lock();
        let remembered = memory.entry(proxy.uid().unwrap_or_default()).or_default();
        if replaced_first && remembered.credentials.is_some() {
            return remembered.credentials.clone();
        }
        remembered.credentials.clone_from(&wanted);
        wanted
    }

    /// Ends a hold that is about this; says whether there was one.
    pub(super) fn lift(&self, proxy: &Proxy, about: impl FnOnce(&Failure) -> bool) -> bool {
        let mut memory = self.0.lock();
        let remembered = memory.get_mut(&proxy.uid().unwrap_or_default());
        let lifted =
            remembered.and_then(|remembered| remembered.hold.take_if(|hold| about(&hold.failure)));
        lifted.is_some()
    }

    /// What the console of this instance said, if it was read.
    pub(super) fn console(&self, proxy: &Proxy, id: &str) -> Option<Heard> {
        let memory = self.0.lock();
        let (of, said) = memory.get(&proxy.uid()?)?.console.as_ref()?;
        (of == id).then(|| said.clone())
    }

    /// Notes that the console of this instance was read.
    pub(super) fn heard(&self, proxy: &Proxy, id: &str, said: Heard) {
        self.edit(proxy, |remembered| {
            remembered.console = Some((id.to_owned(), said));
        });
    }

    /// For how long the instance has not been found. The first time it is zero.
    pub(super) fn missing(&self, proxy: &Proxy, elapsed: Duration) -> Duration {
        let id = proxy
            .status
            .as_ref()
            .and_then(|status| status.provider_id.clone());
        let mut memory = self.0.lock();
        let remembered = memory.entry(proxy.uid().unwrap_or_default()).or_default();
        let since = match &remembered.missing {
            Some((of, since)) if *of == id => *since,
            Some(_) | None => elapsed,
        };
        remembered.missing = Some((id, since));
        elapsed.saturating_sub(since)
    }

    /// Notes the object's resourceVersion after a write of ours.
    pub(super) fn wrote(&self, proxy: &Proxy, resource_version: Option<&str>) {
        if let Some(version) = resource_version.and_then(|version| version.parse().ok()) {
            self.edit(proxy, |remembered| {
                remembered.written = Some(remembered.written.unwrap_or_default().max(version));
            });
        }
    }

    /// Whether this state of the object is older than our last write. Acting on it would repeat
    /// what was done, and its status write would be refused.
    pub(super) fn is_behind(&self, proxy: &Proxy) -> bool {
        let version = proxy.metadata.resource_version.as_deref();
        let version = version.and_then(|version| version.parse::<u64>().ok());
        let memory = self.0.lock();
        let written = memory.get(&proxy.uid().unwrap_or_default());
        let written = written.and_then(|remembered| remembered.written);
        matches!((version, written), (Some(version), Some(written)) if version < written)
    }

    /// Forgets an object.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    fn edit(&self, proxy: &Proxy, change: impl FnOnce(&mut Remembered)) {
        change(
            self.0
                .lock()
                .entry(proxy.uid().unwrap_or_default())
                .or_default(),
        );
    }
}

#[cfg(test)]
mod tests {
    use crawl_api::proxy::ProxySpec;
    use runtime_kit::Class;

    use super::*;

    fn proxy(generation: i64, resource_version: &str) -> Proxy {
        let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
        proxy.metadata.uid = Some("u".into());
        proxy.metadata.generation = Some(generation);
        proxy.metadata.resource_version = Some(resource_version.into());
        proxy
    }

    fn failure() -> Failure {
        Failure {
            class: Class::Quota,
            reason: "QuotaExceeded",
            message: "m".into(),
            wait: None,
        }
    }

    #[test]
    fn a_hold_ends_with_its_time_or_with_another_generation() {
        let second = Duration::from_secs;
        let memory = Memory::default();
        let first = proxy(1, "5");
        assert_eq!(memory.held(&first, second(0)), None);
        memory.hold(&first, second(10), failure());
        assert_eq!(memory.held(&first, second(4)), Some((second(6), failure())));
        assert_eq!(memory.held(&first, second(10)), None);
        memory.hold(&first, second(20), failure());
        assert_eq!(memory.held(&proxy(2, "6"), second(11)), None);
    }

    #[test]
    fn a_hold_is_lifted_when_what_it_is_about_is_over() {
        let memory = Memory::default();
        let proxy = proxy(1, "5");
        memory.hold(&proxy, Duration::from_secs(10), failure());
        assert!(!memory.lift(&proxy, |failure| failure.reason != "QuotaExceeded"));
        assert!(memory.held(&proxy, Duration::ZERO).is_some());
        assert!(memory.lift(&proxy, |failure| failure.reason == "QuotaExceeded"));
        assert_eq!(memory.held(&proxy, Duration::ZERO), None);
    }

    #[test]
    fn an_instance_that_is_to_be_replaced_is_probed_with_what_it_was_created_with() {
        let memory = Memory::default();
        let proxy = proxy(1, "5");
        let with = |password: &str| {
            Some(Credentials {
                username: "u".into(),
                password: password.into(),
            })
        };
        assert_eq!(memory.credentials(&proxy, with("old"), false), with("old"));
        assert_eq!(memory.credentials(&proxy, with("new"), true), with("old"));
        assert_eq!(memory.credentials(&proxy, with("new"), false), with("new"));
        memory.forget("u");
        assert_eq!(memory.credentials(&proxy, with("new"), true), with("new"));
    }

    #[test]
    fn a_console_is_read_once_for_each_instance() {
        let memory = Memory::default();
        let proxy = proxy(1, "5");
        assert_eq!(memory.console(&proxy, "a"), None);
        memory.heard(&proxy, "a", Heard::Nothing);
        assert_eq!(memory.console(&proxy, "a"), Some(Heard::Nothing));
        assert_eq!(memory.console(&proxy, "b"), None);
        let failed = Heard::Failure("failed".into());
        memory.heard(&proxy, "b", failed.clone());
        assert_eq!(memory.console(&proxy, "b"), Some(failed));
    }

    #[test]
    fn how_long_an_instance_is_missing_is_counted_by_its_id() {
        let second = Duration::from_secs;
        let memory = Memory::default();
        let mut proxy = proxy(1, "5");
        assert_eq!(memory.missing(&proxy, second(7)), second(0));
        assert_eq!(memory.missing(&proxy, second(9)), second(2));
        proxy.status.get_or_insert_default().provider_id = Some("a".into());
        assert_eq!(memory.missing(&proxy, second(10)), second(0));
        assert_eq!(memory.missing(&proxy, second(13)), second(3));
        memory.forget("u");
        assert_eq!(memory.missing(&proxy, second(20)), second(0));
    }

    #[test]
    fn a_state_older_than_our_last_write_is_behind() {
        let memory = Memory::default();
        assert!(!memory.is_behind(&proxy(1, "5")));
        memory.wrote(&proxy(1, "5"), Some("11"));
        memory.wrote(&proxy(1, "5"), Some("9"));
        assert!(
            memory.is_behind(&proxy(1, "9")),
            "versions are numbers, not text"
        );
        assert!(!memory.is_behind(&proxy(1, "11")));
        assert!(!memory.is_behind(&proxy(1, "not-a-number")));
        memory.forget("u");
        assert!(!memory.is_behind(&proxy(1, "9")));
    }
}
