//! The status of a pool. Pure.

use crawl_api::conditions::{self as c, Statement};
use crawl_api::names;
use crawl_api::pool::{ProxyPool, ProxyPoolStatus};
use jiff::Timestamp;
use kube::ResourceExt;

use super::Error;
use super::observe::{Observation, Standing};

/// Computes the status.
pub(super) fn compute(
    pool: &ProxyPool,
    observation: &Observation,
    failure: Option<&Error>,
    now: Timestamp,
) -> ProxyPoolStatus {
    let Observation {
        wanted,
        members,
        unseen: _,
        places,
        newly_exhausted: _,
    } = observation;
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let ready = members
        .iter()
        .filter(|member| member.standing == Standing::Ready)
        .count();
    let mut status = pool.status.clone().unwrap_or_default();
    status.replicas = count(members.len());
    status.ready_replicas = count(ready);
    status.selector = Some(format!("{}={}", names::LABEL_POOL, pool.name_any()));
    status.observed_generation = pool.metadata.generation;
    let statement = if let Some(failure) = failure {
        let message = runtime_kit::chain(failure).to_string();
        Statement::new(c::READY, false, c::REASON_MEMBER_WRITE_FAILED, message)
    } else if *wanted == 0 {
        Statement::new(c::READY, false, c::REASON_SCALED_TO_ZERO, "replicas is 0")
    } else if ready >= *wanted {
        let message = format!("{ready} of {wanted} members are ready");
        Statement::new(c::READY, true, c::REASON_ALL_MEMBERS_READY, message)
    } else {
        let closed = !places.is_empty() && places.iter().all(|place| place.placement.paused);
        let hint = if closed && members.len() < *wanted {
            "; every placement is paused, so none is created"
        } else {
            ""
        };
        let message = format!("{ready} of {wanted} members are ready{hint}");
        Statement::new(c::READY, false, c::REASON_MEMBERS_NOT_READY, message)
    };
    c::set(
        &mut status.conditions,
        statement,
        pool.metadata.generation,
        now,
    );
    status
}
