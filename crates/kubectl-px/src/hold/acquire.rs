//! Getting the lease, and cleaning up when that does not come to an end.

use std::time::Duration;

use kube::api::PostParams;
use serde_json::Value;

use super::child::code_for_signal;
use super::signals::Signals;
use crate::failure::Failure;
use crate::leases::{Lease, Leases, is_lost_answer};
use crate::terminal;
use runtime_kit::Clock;

/// How long an interrupted create may still take to answer.
const INTERRUPTED_CREATE: Duration = Duration::from_secs(5);
/// How long giving the lease back may take; it expires by itself anyway.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// How it ended, other than in a failure.
pub(super) enum Acquired {
    /// With a lease that is Bound.
    Lease(Box<Lease>),
    /// By a signal; nothing is held. The exit status.
    Interrupted(u8),
}

/// What is to be got, from where.
pub(super) struct Acquiring<'a> {
    pub(super) leases: &'a Leases,
    pub(super) manifest: Value,
    pub(super) wait: Duration,
    /// Name of the lease, known before it exists.
    pub(super) name: &'a str,
    /// Nobody else can have a lease of that name.
    pub(super) name_is_ours: bool,
    pub(super) clock: &'a dyn Clock,
}

impl Acquiring<'_> {
    pub(super) async fn acquire(&self, signals: &mut Signals) -> Result<Acquired, Failure> {
        let create = self.create_and_wait();
        tokio::pin!(create);
        let signal = tokio::select! {
            created = &mut create => match created {
                Ok(lease) => return Ok(Acquired::Lease(Box::new(lease))),
                Err(failure) => {
                    if is_lost_answer(&failure) {
                        self.release_unseen().await;
                    }
                    return Err(failure);
                },
            },
            signal = signals.next() => signal,
        };
        // Why: a create on its way would take its slot after a delete that overtakes it.
        let answered = tokio::select! {
            created = &mut create => Some(created),
            _ = signals.next() => None,
            () = self.clock.sleep(INTERRUPTED_CREATE) => None,
        };
        match answered {
            Some(Ok(lease)) => release(self.leases, self.name, lease.uid(), self.clock).await,
            Some(Err(failure)) if !is_lost_answer(&failure) => {},
            Some(Err(_)) | None => self.release_unseen().await,
        }
        Ok(Acquired::Interrupted(code_for_signal(signal)))
    }

    async fn create_and_wait(&self) -> Result<Lease, Failure> {
        let field_manager = Some("kubectl-px".to_owned());
        let params = PostParams {
            field_manager,
            ..PostParams::default()
        };
        let lease = self.leases.create(&self.manifest, &params).await?;
        self.leases.wait_until_bound(lease, self.wait).await
    }

    /// Gives back what may have been granted. A name the user chose may be another lease's.
    async fn release_unseen(&self) {
        if self.name_is_ours {
            release(self.leases, self.name, None, self.clock).await;
        } else {
            terminal::warn(&format!(
                "lease {} may be left behind until it expires",
                self.name
            ));
        }
    }
}

/// Deletes the lease, or says that it could not.
pub(super) async fn release(leases: &Leases, name: &str, uid: Option<&str>, clock: &dyn Clock) {
    let problem = tokio::select! {
        released = leases.release(name, uid) => released.err().map(|failure| failure.to_string()),
        () = clock.sleep(RELEASE_LIMIT) => Some("the server does not answer".to_owned()),
    };
    if let Some(problem) = problem {
        terminal::warn(&format!(
            "lease {name} is not released and will expire: {problem}"
        ));
    }
}
