//! The action table of Proxy: what one pass does, decided from what was observed.
//!
//! Called by `proxy::reconcile` between `observe` and `act`. Pure: no client, no clock. The rows
//! are those of the action table in docs/architecture.md.

use super::hash::Drift;

/// Whether, and for what, a Proxy may be acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// An instance at a provider is ours to run.
    Managed,
    /// Somebody else runs the endpoint.
    External,
    /// `spec.paused`.
    Paused,
    /// An earlier failure said when to try again; that time has not come.
    Held,
    /// The provider refused this generation for good.
    AwaitingChange,
    /// `spec.provider` is not in the providers file.
    UnknownProvider,
}

/// Whether the object is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    /// It is not.
    Live,
    /// It has a deletionTimestamp.
    Deleting,
}

/// Whether `status.providerID` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    /// It is not: an instance was looked for by tag.
    None,
    /// It is: the instance was read by it.
    Set,
}

/// What was seen of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sight {
    /// There is none.
    Missing,
    /// None is found, and one that was requested may not be shown yet.
    Unseen,
    /// It boots, or runs without an address yet.
    Starting {
        /// For longer than provisioningTimeoutSeconds.
        overdue: bool,
    },
    /// It runs and has an address.
    Running {
        /// Unhealthy for longer than unhealthyTimeoutSeconds.
        failing: bool,
    },
    /// It runs, serves nobody yet, and has an address that was given up because it failed.
    Reissued,
    /// It is on its way out.
    Stopping,
    /// It stopped or was taken back, and exists.
    Stopped,
}

/// What a create still needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lacking {
    /// Our finalizer on the object.
    Finalizer,
    /// Generated credentials.
    Credentials,
    /// Nothing.
    Nothing,
}

/// Whether the instance may be deleted as far as leases are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Leases {
    /// The drain handshake is not complete and its deadline not over.
    MayExist,
    /// No lease is left, or leases need not be waited for any more.
    Gone,
}

/// Whether the budgets of the fleet let a replacement begin, or an instance be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Permit {
    /// They do, or were not asked.
    Granted,
    /// They do not.
    Withheld,
}

/// A Proxy as the action table sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Situation {
    /// Whether it may be acted on.
    pub standing: Standing,
    /// Whether the object is being deleted.
    pub life: Life,
    /// Whether the instance is known by id.
    pub identity: Identity,
    /// How the stored hash compares with the wanted one.
    pub drift: Drift,
    /// What was seen of the instance.
    pub sight: Sight,
    /// What a create still needs.
    pub lacking: Lacking,
    /// Whether leases stand in the way of a delete.
    pub leases: Leases,
    /// `spec.deletionPolicy` is Abandon.
    pub abandon: bool,
    /// What the budgets say.
    pub permit: Permit,
}

/// Why an instance is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// It did not run in time.
    ProvisioningTimedOut,
    /// It was unhealthy for too long.
    UnhealthyTimedOut,
    /// Its address is the one that was given up.
    AddressReissued,
    /// The provider stopped it.
    Preempted,
    /// Another one is wanted.
    Replaced,
    /// The object goes.
    ObjectDeleted,
}

/// What one pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Nothing at all.
    Rest,
    /// Publish the address and keep probing it.
    Serve,
    /// Put our finalizer on the object.
    AddFinalizer,
    /// Make credentials and store them in a Secret.
    GenerateCredentials,
    /// Create the instance by its name; store its id and the hash of the request.
    Create,
    /// Store the id of an instance that was found by tag.
    Record,
    /// Store the wanted hash; replace nothing.
    Adopt,
    /// Create nothing, though there is no instance.
    Withhold,
    /// Wait for the instance to run.
    AwaitRunning,
    /// Mark for drain and wait for leases to end.
    Drain(Cause),
    /// Delete the instance.
    Delete(Cause),
    /// Wait until the instance is not found.
    AwaitGone,
    /// Ask a recorded operation for its error; clear id and address.
    Forget,
    /// Let the object go.
    RemoveFinalizer,
}

/// Decides what one pass does.
#[expect(
    clippy::match_same_arms,
    reason = "each arm is a row of the action table"
)]
pub(super) fn plan(situation: &Situation) -> Action {
    use Drift::{Changed, Same, Unknown};
    use Identity::{None, Set};
    use Life::{Deleting, Live};
    use Sight::{Missing, Reissued, Running, Starting, Stopped, Stopping, Unseen};

    let Situation {
        standing,
        life,
        identity,
        drift,
        sight,
        lacking,
        leases,
        abandon,
        permit,
    } = *situation;
    match (standing, life, abandon) {
        (Standing::External, Live | Deleting, true | false) => return Action::Serve, // row: External
        (Standing::Paused, Live | Deleting, true | false) => return Action::Rest, // row: not to be acted on
        (
            Standing::Managed
            | Standing::Held
            | Standing::AwaitingChange
            | Standing::UnknownProvider,
            Deleting,
            true,
        ) => {
            return match leases {
                Leases::MayExist => Action::Drain(Cause::ObjectDeleted),
                Leases::Gone => Action::RemoveFinalizer,
            };
        }, // row: deleting, abandon: whatever the provider says
        (
            Standing::Held | Standing::AwaitingChange | Standing::UnknownProvider,
            Live | Deleting,
            true | false,
        ) => return Action::Rest, // row: not to be acted on
        (Standing::Managed, Live | Deleting, true | false) => {},
    }
    let replace = |cause| match leases {
        Leases::MayExist => Action::Drain(cause),
        Leases::Gone => Action::Delete(cause),
    };
    match (life, identity, drift, sight) {
        (Live, None, Same | Changed | Unknown, Missing | Unseen) => match (lacking, permit) {
            (Lacking::Finalizer, Permit::Granted | Permit::Withheld) => Action::AddFinalizer,
            (Lacking::Credentials, Permit::Granted | Permit::Withheld) => {
                Action::GenerateCredentials
            },
            (Lacking::Nothing, Permit::Granted) => Action::Create,
            (Lacking::Nothing, Permit::Withheld) => Action::Withhold,
        }, // row: live, no id
        (
            Live,
            None,
            Same | Changed | Unknown,
            Starting { .. } | Running { .. } | Reissued | Stopping | Stopped,
        ) => Action::Record, // row: live, no id, found by tag: the answer to a create was lost
        (
            Live,
            Set,
            Unknown,
            Missing | Unseen | Starting { .. } | Running { .. } | Reissued | Stopping | Stopped,
        ) => Action::Adopt, // row: live, hash of another version or empty
        (Live, Set, Same, Unseen) => Action::AwaitRunning, // row: live, not seen yet
        (Live, Set, Same, Starting { overdue: false }) => Action::AwaitRunning, // row: live, provisioning
        (Live, Set, Same, Starting { overdue: true }) => match permit {
            Permit::Granted => replace(Cause::ProvisioningTimedOut),
            Permit::Withheld => Action::AwaitRunning,
        }, // row: live, provisioning, over provisioningTimeout
        (Live, Set, Same, Running { failing: false }) => Action::Serve, // row: live, running
        (Live, Set, Same, Running { failing: true }) => match permit {
            Permit::Granted => replace(Cause::UnhealthyTimedOut),
            Permit::Withheld => Action::Serve,
        }, // row: live, running, over unhealthyTimeout
        (Live, Set, Same, Reissued) => Action::Delete(Cause::AddressReissued), // row: live, address given up before
        (Live, Set, Same | Changed, Stopped) => Action::Delete(Cause::Preempted), // row: live, stopped or terminated
        (Live, Set, Same | Changed, Missing) => Action::Forget, // row: live, not found
        (Live, Set, Changed, Unseen | Starting { .. } | Reissued) => replace(Cause::Replaced), // row: live, changed
        (Live, Set, Changed, Running { .. }) => match permit {
            Permit::Granted => replace(Cause::Replaced),
            Permit::Withheld => Action::Serve,
        }, // row: live, changed
        (Live, Set, Same | Changed, Stopping) => Action::AwaitGone, // row: live, on its way out
        (Deleting, None, Same | Changed | Unknown, Missing) => Action::RemoveFinalizer, // row: deleting, no id, not found
        (Deleting, None, Same | Changed | Unknown, Unseen) => Action::AwaitGone, // row: deleting, no id, not seen yet
        (
            Deleting,
            None,
            Same | Changed | Unknown,
            Starting { .. } | Running { .. } | Reissued | Stopping | Stopped,
        ) => Action::Record, // row: deleting, no id, found by name
        (Deleting, Set, Same | Changed | Unknown, Missing) => Action::RemoveFinalizer, // row: deleting, not found
        (Deleting, Set, Same | Changed | Unknown, Stopping) => Action::AwaitGone, // row: deleting, on its way out
        (Deleting, Set, Same | Changed | Unknown, Stopped) => Action::Delete(Cause::Preempted), // row: deleting, stopped or terminated
        (
            Deleting,
            Set,
            Same | Changed | Unknown,
            Unseen | Starting { .. } | Running { .. } | Reissued,
        ) => replace(Cause::ObjectDeleted), // row: deleting, other
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
