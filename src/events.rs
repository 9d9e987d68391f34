//! Kubernetes events: one per cause, derived from conditions that changed.

use crawl_api::conditions as c;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};

/// Publishes events; a failure to publish is logged and changes nothing.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// A publisher under the operator's name.
    pub fn new(client: Client, instance: String) -> Self {
        let reporter = Reporter {
            controller: "proxy-operator".into(),
            instance: Some(instance),
        };
        Self(Recorder::new(client, reporter))
    }

    /// Publishes what changed between two lists of conditions of a pool. That a new pool has nothing
    /// to roll tells nobody anything.
    pub async fn of_pool(
        &self,
        object: &impl Resource<DynamicType = ()>,
        before: &[Condition],
        after: &[Condition],
    ) {
        let concerned = |condition: &Condition| {
            condition.type_ != c::PROGRESSING || c::find(before, c::PROGRESSING).is_some()
        };
        self.publish(object, between(before, after, concerned))
            .await;
    }

    /// Publishes what changed between two lists of conditions. Ready follows from the others and
    /// has no events.
    pub async fn transitions(
        &self,
        object: &impl Resource<DynamicType = ()>,
        before: &[Condition],
        after: &[Condition],
    ) {
        self.publish(
            object,
            between(before, after, |condition| condition.type_ != c::READY),
        )
        .await;
    }

    /// Publishes that something was done.
    pub async fn done(
        &self,
        object: &impl Resource<DynamicType = ()>,
        action: &str,
        reason: &str,
        note: String,
    ) {
        let event = Event {
            type_: EventType::Normal,
            reason: reason.into(),
            note: Some(note),
            action: action.into(),
            secondary: None,
        };
        self.publish(object, vec![event]).await;
    }

    /// Publishes what somebody should look at.
    pub async fn warn(
        &self,
        object: &impl Resource<DynamicType = ()>,
        action: &str,
        reason: &str,
        note: String,
    ) {
        let event = Event {
            type_: EventType::Warning,
            reason: reason.into(),
            note: Some(note),
            action: action.into(),
            secondary: None,
        };
        self.publish(object, vec![event]).await;
    }

    async fn publish(&self, object: &impl Resource<DynamicType = ()>, events: Vec<Event>) {
        let reference = object.object_ref(&());
        for event in events.into_iter().map(published) {
            if let Err(error) = self.0.publish(&event, &reference).await {
                let error = runtime_kit::chain(&error).to_string();
                tracing::debug!(error, reason = event.reason, "event not published");
            }
        }
    }
}

/// Bytes of a note: the API server refuses an event with more.
const MAX_NOTE: usize = 1_024;

/// The event as the API server takes it.
fn published(event: Event) -> Event {
    let note = event.note.as_deref();
    Event {
        note: note.map(|note| runtime_kit::shortened(note, MAX_NOTE)),
        ..event
    }
}

/// Reasons that are a step on the way and tell nobody anything.
const SILENT: [&str; 4] = [
    c::REASON_PENDING,
    c::REASON_NO_ENDPOINT,
    c::REASON_PROBE_PENDING,
    c::REASON_DELETING,
];

/// Reasons that are False and as they should be.
const CALM: [&str; 6] = [
    c::REASON_PAUSED,
    c::REASON_MEMBERS_NOT_READY,
    c::REASON_PROVISIONING,
    c::REASON_REPLACING,
    c::REASON_DRAINING,
    c::REASON_SCALED_TO_ZERO,
];

/// Reasons that are True and need somebody's attention.
const WORRYING: [&str; 7] = [
    c::REASON_ADDRESS_REISSUED,
    c::REASON_BOOTSTRAP_FAILING,
    c::REASON_DRAIN_TIMED_OUT,
    c::REASON_REMEDIATION_PAUSED,
    c::REASON_REMEDIATION_BACKOFF,
    c::REASON_MASS_EXTERNAL_DELETION,
    c::REASON_CREATES_FAILING,
];

/// The events of a change: one for each of these conditions whose status or reason is new, and one
/// for a drain that is over.
fn between(
    before: &[Condition],
    after: &[Condition],
    concerned: impl Fn(&Condition) -> bool,
) -> Vec<Event> {
    let told = |condition: &Condition| {
        c::find(before, &condition.type_)
            .is_some_and(|old| old.status == condition.status && old.reason == condition.reason)
    };
    let was_drained = c::find(before, c::DRAINED).filter(|old| concerned(old));
    let over = was_drained.filter(|_| c::find(after, c::DRAINED).is_none());
    let over = over.map(|_| Event {
        type_: EventType::Normal,
        reason: c::REASON_DRAIN_ENDED.into(),
        note: Some("not drained any more; leases are granted again when it is ready".into()),
        action: c::DRAINED.into(),
        secondary: None,
    });
    let changed = after
        .iter()
        .filter(|condition| concerned(condition))
        .filter(|condition| !SILENT.contains(&condition.reason.as_str()) && !told(condition))
        .map(|condition| Event {
            type_: if condition.status == "True" && !WORRYING.contains(&condition.reason.as_str())
                || CALM.contains(&condition.reason.as_str())
            {
                EventType::Normal
            } else {
                EventType::Warning
            },
            reason: condition.reason.clone(),
            note: Some(condition.message.clone()).filter(|message| !message.is_empty()),
            action: condition.type_.clone(),
            secondary: None,
        });
    changed.chain(over).collect()
}

#[cfg(test)]
mod tests {
    use crawl_api::conditions::Statement;
    use jiff::Timestamp;

    use super::*;

    fn list(statements: &[(&'static str, Option<bool>, &str)]) -> Vec<Condition> {
        let mut list = Vec::new();
        for (type_, status, reason) in statements {
            let statement = Statement::new(type_, *status, reason, "m");
            c::set(&mut list, statement, None, Timestamp::UNIX_EPOCH);
        }
        list
    }

    fn told(before: &[Condition], after: &[Condition]) -> Vec<(String, bool)> {
        let warning = |event: &Event| matches!(event.type_, EventType::Warning);
        between(before, after, |condition| condition.type_ != c::READY)
            .iter()
            .map(|event| (event.reason.clone(), warning(event)))
            .collect()
    }

    #[test]
    fn each_new_cause_is_told_once() {
        let pending = list(&[(c::PROVISIONED, Some(false), c::REASON_PENDING)]);
        assert_eq!(told(&[], &pending), []);
        let created = list(&[
            (c::PROVISIONED, Some(true), c::REASON_CREATED),
            (c::READY, Some(false), c::REASON_NOT_HEALTHY),
        ]);
        assert_eq!(told(&pending, &created), [("Created".to_owned(), false)]);
        assert_eq!(told(&created, &created), []);
        let failed = list(&[(c::HEALTHY, Some(false), c::REASON_CONNECT_FAILED)]);
        assert_eq!(
            told(&created, &failed),
            [("ConnectFailed".to_owned(), true)]
        );
    }

    /// The API server refuses longer notes, and the event would be lost.
    #[test]
    fn a_long_note_is_cut_to_what_the_api_server_takes() {
        let statement = Statement::new(
            c::PROVISIONED,
            false,
            c::REASON_PROVIDER_ERROR,
            "é".repeat(5_000),
        );
        let mut failed = Vec::new();
        c::set(&mut failed, statement, None, Timestamp::UNIX_EPOCH);
        let mut events = between(&[], &failed, |_| true).into_iter().map(published);
        let note = events.next().and_then(|event| event.note).unwrap();
        assert!(note.len() <= 1_024 && note.ends_with('…'), "{}", note.len());
    }

    #[test]
    fn a_cut_lease_is_a_warning_and_a_finished_drain_is_not() {
        let cut = list(&[(c::DRAINED, Some(true), c::REASON_DRAIN_TIMED_OUT)]);
        assert_eq!(told(&[], &cut), [("DrainTimedOut".to_owned(), true)]);
        let drained = list(&[(c::DRAINED, Some(true), c::REASON_NO_LEASES)]);
        assert_eq!(told(&[], &drained), [("NoLeases".to_owned(), false)]);
    }

    #[test]
    fn the_end_of_a_drain_is_told_once() {
        let drained = list(&[(c::DRAINED, Some(true), c::REASON_NO_LEASES)]);
        assert_eq!(told(&drained, &[]), [("DrainEnded".to_owned(), false)]);
        assert_eq!(told(&[], &[]), []);
    }
}
