//! The status of a pool. Pure.

use crawl_api::conditions::{self as c, Statement};
use crawl_api::names;
use crawl_api::pool::{ProxyPool, ProxyPoolStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::Error;
use super::limits::Bound;
use super::member::{Member, Standing};
use super::observe::Observation;
use super::order::Leases;
use super::roll::Roll;

/// Up to so many failing members are described.
const DESCRIBED: usize = 3;

/// Computes the status.
pub(super) fn compute(
    pool: &ProxyPool,
    observation: &Observation,
    failure: Option<&Error>,
    now: Timestamp,
) -> ProxyPoolStatus {
    let roll = Roll::of(observation);
    let members = &observation.members;
    let count = |is: fn(&Member) -> bool| {
        let count = members.iter().filter(|member| is(member)).count();
        i32::try_from(count).unwrap_or(i32::MAX)
    };
    let mut status = pool.status.clone().unwrap_or_default();
    status.replicas = count(|_| true);
    status.ready_replicas = count(|member| member.standing == Standing::Ready);
    status.updated_replicas = count(|member| member.outdated.is_none());
    status.available_replicas = count(|member| member.available);
    status.selector = Some(format!("{}={}", names::LABEL_POOL, pool.name_any()));
    status.observed_generation = pool.metadata.generation;
    let mut state = |statement| {
        let list: &mut Vec<Condition> = &mut status.conditions;
        c::set(list, statement, pool.metadata.generation, now);
    };
    state(ready(observation, failure));
    state(progressing(observation, &roll));
    match withheld(observation, &roll) {
        Some(statement) => state(statement),
        None => c::remove(&mut status.conditions, c::WITHHELD),
    }
    status
}

fn ready(observation: &Observation, failure: Option<&Error>) -> Statement {
    let Observation {
        replicas: wanted,
        members,
        unpriced,
        ..
    } = observation;
    let ready = members
        .iter()
        .filter(|member| member.standing == Standing::Ready)
        .count();
    let unpriced = match unpriced {
        0 => String::new(),
        _ => format!("; {unpriced} members have no pricePerHour and count as 0 for the limit"),
    };
    if let Some(failure) = failure {
        let message = failure.told();
        Statement::new(c::READY, false, c::REASON_MEMBER_WRITE_FAILED, message)
    } else if *wanted == 0 {
        Statement::new(c::READY, false, c::REASON_SCALED_TO_ZERO, "replicas is 0")
    } else if ready >= *wanted {
        let message = format!("{ready} of {wanted} members are ready{unpriced}");
        Statement::new(c::READY, true, c::REASON_ALL_MEMBERS_READY, message)
    } else {
        let closed = observation.room.bound == Some(Bound::Paused);
        let hint = if closed && members.len() < *wanted {
            "; every placement is paused, so none is created"
        } else {
            ""
        };
        let message = format!("{ready} of {wanted} members are ready{hint}{unpriced}");
        Statement::new(c::READY, false, c::REASON_MEMBERS_NOT_READY, message)
    }
}

fn progressing(observation: &Observation, roll: &Roll) -> Statement {
    let Roll {
        updated,
        outdated,
        deletes_first,
        halted,
        ..
    } = roll;
    let total = updated + outdated;
    let so_far = format!("{updated} of {total} members are as the template says");
    let state = |status, reason, message| Statement::new(c::PROGRESSING, status, reason, message);
    if *outdated == 0 && !deletes_first {
        let message = "every member is as the template says".to_owned();
        return state(true, c::REASON_ROLLOUT_COMPLETE, message);
    }
    if !halted.is_empty() {
        let mut told: Vec<_> = halted.iter().take(DESCRIBED).cloned().collect();
        if halted.len() > DESCRIBED {
            told.push(format!("and {} more", halted.len() - DESCRIBED));
        }
        let message = format!(
            "{so_far}, and {} of these fail: {}. It goes on when they recover, or when the \
             template is changed or taken back",
            halted.len(),
            told.join("; ")
        );
        return state(false, c::REASON_ROLLOUT_HALTED, message);
    }
    if roll.is_bound(observation) {
        let message = format!("{so_far}, and the others have to stay: see Withheld");
        return state(true, c::REASON_ROLLING_OUT, message);
    }
    if *deletes_first {
        let lacking = observation.members.iter();
        let lacking = lacking.filter(|member| member.lacks_capacity).count();
        let lacking = match lacking {
            0 => String::new(),
            _ => format!(
                ". {lacking} get no machine and count as unavailable: if that stays so, lower \
                 replicas to what the provider gives, or allow more by strategy.maxUnavailable"
            ),
        };
        let message = format!(
            "{so_far}. There is no room for one more (quota, stock, limits.replicas or \
             limits.pricePerHour), so each is deleted before another is created{lacking}"
        );
        return state(true, c::REASON_DELETING_FIRST, message);
    }
    let going = match observation.going {
        0 => String::new(),
        going => format!(", {going} are on their way out"),
    };
    state(true, c::REASON_ROLLING_OUT, format!("{so_far}{going}"))
}

/// Why the pool does not do what it otherwise would.
fn withheld(observation: &Observation, roll: &Roll) -> Option<Statement> {
    if let Leases::Awaited(error) = &observation.leases {
        let message = format!(
            "members have to go, and the lease API cannot be asked which of them are in use: {error}"
        );
        let reason = c::REASON_LEASE_API_UNAVAILABLE;
        return Some(Statement::new(c::WITHHELD, true, reason, message));
    }
    let Observation {
        replicas,
        room,
        members,
        ..
    } = observation;
    if roll.is_bound(observation) {
        let (reason, limit) = match room.bound.as_ref()? {
            Bound::Paused => return None, // the condition Ready says so
            Bound::Replicas(limit) => (
                c::REASON_REPLICA_LIMIT,
                format!("limits.replicas ({limit})"),
            ),
            Bound::Price(limit) => (
                c::REASON_PRICE_LIMIT,
                format!("limits.pricePerHour ({limit})"),
            ),
        };
        let message = format!(
            "{} members are more than {limit} allows, so none could take the place of {} that are \
             to be replaced: these stay until replicas is lowered or the limit raised",
            members.len(),
            roll.outdated
        );
        return Some(Statement::new(c::WITHHELD, true, reason, message));
    }
    if roll.wanted >= *replicas {
        return None;
    }
    let (reason, message) = match room.bound.as_ref()? {
        Bound::Paused => return None, // the condition Ready says so
        Bound::Replicas(limit) => (
            c::REASON_REPLICA_LIMIT,
            format!("limits.replicas is {limit}, and replicas {replicas}"),
        ),
        Bound::Price(limit) => (
            c::REASON_PRICE_LIMIT,
            format!(
                "limits.pricePerHour ({limit}) allows {} of {replicas} members",
                roll.wanted
            ),
        ),
    };
    Some(Statement::new(c::WITHHELD, true, reason, message))
}
