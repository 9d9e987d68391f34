//! Keeping a lease: renewing it in good time, and noticing that it is lost.
//!
//! The end of the lease is followed with this machine's monotonic clock and the remaining seconds
//! the server answers, so that clocks need not agree.

use std::fmt;
use std::time::Duration;

use crawl_api::lease::LeaseRenewalStatus;
use runtime_kit::backoff::BackoffPolicy;
use runtime_kit::{Class, Classify, Clock};

use crate::failure::{Failure, is_object_missing};
use crate::leases::{Lease, Leases};
use crate::terminal;

const RETRY: BackoffPolicy = BackoffPolicy {
    base: Duration::from_secs(1),
    max: Duration::from_secs(15),
};
/// No renewals in quicker succession, however little time is left.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// How long one renewal may take.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(15);

/// The lease is not held any longer.
#[derive(Debug)]
pub(super) struct Loss {
    name: String,
    cause: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, cause } = self;
        write!(
            f,
            "lease {name} is lost, its proxy may be used by others: {cause}"
        )
    }
}

/// Renews at about half of the remaining time; returns only when the lease is lost.
pub(super) async fn keep(leases: &Leases, lease: &Lease, clock: &dyn Clock) -> Loss {
    let name = lease.name();
    let loss = |cause: String| Loss {
        name: name.to_owned(),
        cause,
    };
    let mut remaining = first_remaining(lease, clock);
    let mut drain_announced = false;
    loop {
        let ends = clock.elapsed().saturating_add(remaining);
        clock.sleep(pause(remaining)).await;
        let asked = clock.elapsed();
        let status = match renew_until(leases, name, ends, clock).await {
            Ok(status) => status,
            Err(cause) => return loss(cause),
        };
        let answered = clock.elapsed();
        remaining = remaining_after(&status).saturating_sub(answered.saturating_sub(asked));
        if let Some(deadline) = &status.drain_deadline
            && !drain_announced
        {
            drain_announced = true;
            let at = deadline.0;
            terminal::warn(&format!(
                "the proxy of lease {name} goes away: the lease ends at {at}"
            ));
        }
    }
}

/// Half of the time, a little less at random so that many leases do not renew together.
fn pause(remaining: Duration) -> Duration {
    let jitter = BackoffPolicy {
        base: remaining / 5,
        max: remaining / 5,
    };
    (remaining / 2 + remaining / 10)
        .saturating_sub(jitter.delay(1))
        .max(MIN_INTERVAL)
}

/// What is left of a lease that was just answered. A lease that was taken over by its name may be
/// well into its time; clocks that disagree must not make it look longer than its ttl.
fn first_remaining(lease: &Lease, clock: &dyn Clock) -> Duration {
    let ttl = Duration::from_secs(u64::try_from(lease.typed.spec.ttl_seconds).unwrap_or(0));
    let expires = lease
        .typed
        .status
        .as_ref()
        .and_then(|status| status.expires_at.as_ref());
    let left = expires.map(|at| at.0.duration_since(clock.now()));
    left.map_or(ttl, |left| {
        Duration::try_from(left).unwrap_or_default().min(ttl)
    })
}

fn remaining_after(status: &LeaseRenewalStatus) -> Duration {
    Duration::from_secs(u64::try_from(status.remaining_seconds).unwrap_or(0))
}

/// Tries until the server answers, the lease's time is up, or the server says it is no more.
async fn renew_until(
    leases: &Leases,
    name: &str,
    ends: Duration,
    clock: &dyn Clock,
) -> Result<LeaseRenewalStatus, String> {
    let mut failures = 0;
    loop {
        let problem = tokio::select! {
            renewed = leases.renew(name) => match renewed {
                Ok(status) => return Ok(status),
                Err(failure) if is_final(&failure) => return Err(failure.to_string()),
                Err(failure) => failure.to_string(),
            },
            () = clock.sleep(ATTEMPT_LIMIT) => "the server does not answer".to_owned(),
        };
        failures += 1;
        if failures == 1 {
            terminal::warn(&format!("cannot renew lease {name} yet: {problem}"));
        }
        let left = ends.saturating_sub(clock.elapsed());
        if left.is_zero() {
            return Err(format!("it could not be renewed in time: {problem}"));
        }
        clock.sleep(RETRY.delay(failures).min(left)).await;
    }
}

/// Whether asking again cannot help. Missing permissions, rejected credentials and an API that is
/// not there may come back.
fn is_final(failure: &Failure) -> bool {
    let Failure::Request(error @ kube::Error::Api(status)) = failure else {
        return false;
    };
    match error.class() {
        Class::NotFound => is_object_missing(status),
        Class::AlreadyExists | Class::Conflict | Class::Invalid => true,
        // Gone: the lease existed and ended.
        Class::Transient => status.code == 410,
        Class::Quota | Class::RateLimited | Class::Unauthenticated | Class::Forbidden => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_at_about_half_of_its_time() {
        for seconds in [10_u64, 300, 3_600] {
            let remaining = Duration::from_secs(seconds);
            let pause = pause(remaining);
            assert!(
                pause >= remaining * 2 / 5 && pause <= remaining / 2,
                "{pause:?}"
            );
        }
        assert_eq!(pause(Duration::ZERO), MIN_INTERVAL);
    }
}
