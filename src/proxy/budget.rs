//! Which replacements and creations are withheld for the sake of the whole fleet, and why.
//!
//! Pure: judged over a snapshot of the proxies that share a budget (those of one pool, or the
//! single ones of one namespace), with `now` given. `fleet` takes the snapshot and remembers what it
//! does not show yet; the action table gets the verdict as part of its situation.

use std::time::Duration;

use crawl_api::conditions as c;
use crawl_api::proxy::{Proxy, Setback};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// One in so many proxies that work may be replaced at a time, and at least one.
const DISRUPTION_SHARE: usize = 10;
/// Replacing stops when more than one in so many fail at once, and more than one does.
const REMEDIATION_SHARE: usize = 5;
/// Re-creation stops when more than one in so many were lost within [`LOSS_WINDOW`], ...
const LOSS_SHARE: usize = 5;
/// ... and at least so many.
const LOSS_MINIMUM: usize = 3;
/// How long a loss counts that is not seen in the objects any more, because it was made up for.
pub(super) const LOSS_WINDOW: Duration = Duration::from_mins(10);
/// Failures of one proxy's instances are counted over this long.
pub(super) const SETBACK_WINDOW: SignedDuration = SignedDuration::from_hours(1);
/// Creates that failed are counted over this long.
pub(super) const FAILED_CREATES_WINDOW: Duration = Duration::from_mins(15);
/// More failed creates than this space out the next ones.
const FAILED_CREATES: usize = 3;
/// While creates keep failing, one is tried after each such pause.
const FAILED_CREATES_PAUSE: Duration = Duration::from_mins(5);
/// `createsPerHour` is counted over this long.
pub(super) const CREATES_WINDOW: Duration = Duration::from_hours(1);

/// Why something is not done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Withheld {
    /// The reason of the condition Withheld.
    pub reason: &'static str,
    /// In words, the same from pass to pass while nothing changes.
    pub message: String,
    /// When to look again; none: at the next ordinary look.
    pub wait: Option<Duration>,
}

/// A proxy as the budgets see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    /// Its UID.
    pub uid: String,
    /// It can be leased.
    pub available: bool,
    /// It fails, or is being replaced because it failed.
    pub failing: bool,
    /// Its instance is gone without our doing, and nobody took note of it.
    pub lost: bool,
}

/// The proxies that share a budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fleet {
    /// For messages: `pool eu` or `namespace fleet`.
    pub name: String,
    /// All of them.
    pub members: Vec<Member>,
}

/// The creates of a fleet that were asked for lately, as ages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Creates {
    /// Of all within [`CREATES_WINDOW`].
    pub asked: Vec<Duration>,
    /// Of those within [`FAILED_CREATES_WINDOW`] that failed.
    pub failed: Vec<Duration>,
    /// `limits.createsPerHour`.
    pub limit: Option<u32>,
}

// === impl Member ===

impl Member {
    /// A proxy as it is in the API. `acknowledged`: losses up to then were taken note of.
    pub(super) fn of(proxy: &Proxy, acknowledged: Option<Timestamp>) -> Self {
        let provisioned = proxy.condition(c::PROVISIONED);
        let replaced_for = |reasons: &[&str]| {
            provisioned.is_some_and(|condition| {
                condition.status == "False" && reasons.contains(&condition.reason.as_str())
            })
        };
        let sick = proxy
            .condition(c::HEALTHY)
            .is_some_and(|condition| condition.status == "False");
        Self {
            uid: proxy.uid().unwrap_or_default(),
            available: proxy
                .condition(c::READY)
                .is_some_and(|condition| condition.status == "True"),
            failing: sick
                || replaced_for(&[
                    c::REASON_UNHEALTHY_TIMED_OUT,
                    c::REASON_PROVISIONING_TIMED_OUT,
                    c::REASON_ADDRESS_REISSUED,
                ]),
            lost: lost_at(proxy).is_some_and(|at| acknowledged.is_none_or(|until| at > until)),
        }
    }
}

/// When the proxy's instance was found to be gone without our doing, while that is so.
pub(super) fn lost_at(proxy: &Proxy) -> Option<Timestamp> {
    let condition = proxy.condition(c::PROVISIONED)?;
    (condition.reason == c::REASON_INSTANCE_LOST).then_some(condition.last_transition_time.0)
}

// === The budgets ===

/// Whether a proxy that works may be replaced: others that are unavailable count, whatever made
/// them so. `begun` are replacements that the objects do not show yet.
pub(super) fn disruption(fleet: &Fleet, uid: &str, begun: &[String]) -> Result<(), Withheld> {
    let total = fleet.members.len();
    let may = (total / DISRUPTION_SHARE).max(1);
    let unavailable = fleet
        .members
        .iter()
        .filter(|member| member.uid != uid && (!member.available || begun.contains(&member.uid)))
        .count();
    if unavailable < may {
        return Ok(());
    }
    Err(Withheld {
        reason: c::REASON_DISRUPTION_BUDGET,
        message: format!(
            "the spec asks for another instance; it is replaced when fewer than {may} of the {total} \
             proxies of {} are unavailable ({unavailable} are)",
            fleet.name
        ),
        wait: None,
    })
}

/// Whether an instance on which cloud-init failed may be replaced: not when it failed on the one
/// before it too, with the same spec. `resumed`: failures up to then were taken note of.
pub(super) fn bootstrap(
    setbacks: &[Setback],
    generation: Option<i64>,
    resumed: Option<Timestamp>,
) -> Result<(), Withheld> {
    let again = setbacks.iter().any(|setback| {
        setback.reason == c::REASON_BOOTSTRAP_FAILED
            && setback.generation == generation
            && resumed.is_none_or(|until| setback.time.0 > until)
    });
    if !again {
        return Ok(());
    }
    Err(Withheld {
        reason: c::REASON_BOOTSTRAP_FAILING,
        message: "cloud-init failed on this instance and on the one before it: look at the \
                  condition Healthy and correct the spec, or run kubectl px resume to try the same \
                  again; it is not replaced meanwhile"
            .into(),
        wait: None,
    })
}

/// Whether an instance that fails may be replaced: not when many fail at once, since the cause is
/// rarely the machines then, and later and later when replacing does not help.
pub(super) fn remediation(
    fleet: &Fleet,
    uid: &str,
    begun: &[String],
    setbacks: &[Setback],
    now: Timestamp,
) -> Result<(), Withheld> {
    let total = fleet.members.len();
    let may = (total / REMEDIATION_SHARE).max(1);
    // The one that asks fails, whether its object says so yet or not.
    let others = fleet
        .members
        .iter()
        .filter(|member| member.uid != uid && (member.failing || begun.contains(&member.uid)))
        .count();
    let failing = others + 1;
    if failing > may {
        return Err(Withheld {
            reason: c::REASON_REMEDIATION_PAUSED,
            message: format!(
                "{failing} of the {total} proxies of {} fail at once, more than {may}: look for the \
                 cause outside their instances; none is replaced meanwhile",
                fleet.name
            ),
            wait: None,
        });
    }
    back_off(setbacks, now)
}

/// The k-th replacement within an hour comes no sooner than 2^k minutes after the one before.
fn back_off(setbacks: &[Setback], now: Timestamp) -> Result<(), Withheld> {
    let failed = recent(setbacks, now).filter(|setback| setback.reason != c::REASON_PREEMPTED);
    let times: Vec<_> = failed.map(|setback| setback.time.0).collect();
    let Some(last) = times.iter().max() else {
        return Ok(());
    };
    let exponent = u32::try_from(times.len() + 1).unwrap_or(u32::MAX).min(6);
    let pause = SignedDuration::from_mins(1_i64 << exponent);
    let due = last.checked_add(pause).unwrap_or(Timestamp::MAX);
    let left = due.duration_since(now);
    if !left.is_positive() {
        return Ok(());
    }
    let count = times.len();
    Err(Withheld {
        reason: c::REASON_REMEDIATION_BACKOFF,
        message: format!(
            "its instance was replaced {count} times within an hour without help; the next \
             replacement is not before {due}"
        ),
        wait: Duration::try_from(left).ok(),
    })
}

/// The setbacks that still count.
pub(super) fn recent(setbacks: &[Setback], now: Timestamp) -> impl Iterator<Item = &Setback> {
    setbacks
        .iter()
        .filter(move |setback| now.duration_since(setback.time.0) < SETBACK_WINDOW)
}

/// Whether a proxy whose instance is gone without our doing may get another. `made_up_for` are
/// losses within [`LOSS_WINDOW`] that the objects do not show any more.
pub(super) fn recreation(fleet: &Fleet, made_up_for: &[String]) -> Result<(), Withheld> {
    let total = fleet.members.len();
    let lost = fleet
        .members
        .iter()
        .filter(|member| member.lost || made_up_for.contains(&member.uid))
        .count();
    if lost < LOSS_MINIMUM || lost * LOSS_SHARE <= total {
        return Ok(());
    }
    Err(Withheld {
        reason: c::REASON_MASS_EXTERNAL_DELETION,
        message: format!(
            "many instances of {} went away at once and not by the operator's doing; none is \
             created again until you have looked into it and run: kubectl px resume",
            fleet.name
        ),
        wait: None,
    })
}

/// Whether one more instance may be created now.
pub(super) fn creation(fleet: &Fleet, creates: &Creates) -> Result<(), Withheld> {
    let Creates {
        asked,
        failed,
        limit,
    } = creates;
    if let Some(limit) = limit
        && asked.len() >= usize::try_from(*limit).unwrap_or(usize::MAX)
    {
        let oldest = asked.iter().max().copied().unwrap_or_default();
        return Err(Withheld {
            reason: c::REASON_CREATE_LIMIT,
            message: format!(
                "limits.createsPerHour of {} is {limit}, and that many were created",
                fleet.name
            ),
            wait: Some(CREATES_WINDOW.saturating_sub(oldest)),
        });
    }
    let newest = asked.iter().min().copied().unwrap_or(Duration::MAX);
    if failed.len() > FAILED_CREATES && newest < FAILED_CREATES_PAUSE {
        return Err(Withheld {
            reason: c::REASON_CREATES_FAILING,
            message: format!(
                "more than {FAILED_CREATES} instances of {} could not be created within {} min; one \
                 is tried every {} min",
                fleet.name,
                FAILED_CREATES_WINDOW.as_secs() / 60,
                FAILED_CREATES_PAUSE.as_secs() / 60
            ),
            wait: Some(FAILED_CREATES_PAUSE.saturating_sub(newest)),
        });
    }
    Ok(())
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
