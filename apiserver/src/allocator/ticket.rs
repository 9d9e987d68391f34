//! What rides along with a transaction and learns its end.
//!
//! A [`Ticket`] that is dropped without having been told of a commit gives back what it stands for.
//! It may stand for a transaction that did commit (the request was cancelled while it was in the
//! store's queue), so what is given back is also looked at again.

use std::sync::Arc;

use aggregated_api::registry::capability::{Companion, Reservation};
use aggregated_api::store::Revision;

use super::leases::RequestKey;
use super::state::{Effect, Write};
use super::{Allocator, ProxyId};

/// A change of a grants record on its way.
#[derive(Debug)]
pub struct Ticket {
    allocator: Arc<Allocator>,
    proxy: ProxyId,
    effect: Option<Effect>,
}

/// A request id that no other create may use before this one has ended.
#[derive(Debug)]
pub struct RequestClaim {
    allocator: Arc<Allocator>,
    key: RequestKey,
}

// === impl Ticket ===

impl Ticket {
    pub(super) fn companion(allocator: &Arc<Allocator>, write: Write) -> Companion {
        let Write {
            proxy,
            effect,
            compare,
            op,
        } = write;
        let allocator = Arc::clone(allocator);
        Companion {
            compares: vec![compare],
            ops: vec![op],
            reservation: Some(Box::new(Self {
                allocator,
                proxy,
                effect: Some(effect),
            })),
        }
    }

    fn settle(&mut self, committed: bool) {
        if let Some(effect) = self.effect.take() {
            self.allocator
                .with(|state| state.settle(self.proxy, effect, committed));
            self.allocator.bells.settled.notify_waiters();
        }
    }
}

impl Reservation for Ticket {
    fn committed(mut self: Box<Self>, _: Revision) {
        self.settle(true);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(false);
    }
}

// === impl RequestClaim ===

impl RequestClaim {
    pub(super) fn new(allocator: &Arc<Allocator>, key: RequestKey) -> Self {
        Self {
            allocator: Arc::clone(allocator),
            key,
        }
    }

    /// The lease exists under this uid: from now on the id leads to it.
    pub fn made(self, lease_uid: &str) {
        let key = self.key.clone();
        self.allocator.with(|state| {
            state
                .leases
                .update(lease_uid, |lease| lease.request = Some(key));
        });
    }
}

impl Drop for RequestClaim {
    fn drop(&mut self) {
        self.allocator.with(|state| state.leases.unclaim(&self.key));
        self.allocator.bells.settled.notify_waiters();
    }
}
