//! Questions about a Proxy that more than one program asks, answered in one place.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{Mode, Phase, Proxy};
use crate::address::Endpoint;
use crate::conditions;
use crate::lease::denial;

/// Why no new lease may be granted on a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NotAccepting {
    /// It is being drained, replaced or deleted.
    Draining,
    /// `spec.cordoned` is set.
    Cordoned,
    /// `spec.maxLeases` is 0.
    Unleasable,
    /// It has no address, the last probes failed, or none has succeeded yet.
    Unhealthy,
}

impl NotAccepting {
    /// The reason of a denied lease, as in [`denial`].
    pub fn reason(self) -> &'static str {
        match self {
            Self::Draining => denial::DRAINING,
            Self::Cordoned => denial::CORDONED,
            Self::Unleasable => denial::UNLEASABLE,
            Self::Unhealthy => denial::UNHEALTHY,
        }
    }
}

// === impl Proxy ===

impl Proxy {
    /// Whether new leases may be granted, judged by this state of the object.
    ///
    /// This function is the drain mark: lease-apiserver grants nothing on a state for which it
    /// says [`NotAccepting::Draining`], and the operator deletes an instance only when
    /// lease-apiserver has published that it saw such a state (`status.drainMark` or newer). The
    /// mark is any of: a deletionTimestamp, `spec.drain`, or a Drained condition (whatever its
    /// status), which the operator sets before it replaces an instance.
    pub fn accepts_leases(&self) -> Result<(), NotAccepting> {
        if self.is_marked_for_drain() {
            Err(NotAccepting::Draining)
        } else if self.spec.cordoned {
            Err(NotAccepting::Cordoned)
        } else if self.spec.max_leases <= 0 {
            Err(NotAccepting::Unleasable)
        } else if self.endpoint().is_none() || !self.is_healthy() {
            Err(NotAccepting::Unhealthy)
        } else {
            Ok(())
        }
    }

    /// Whether this state of the object asks for a drain. See [`Self::accepts_leases`].
    pub fn is_marked_for_drain(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
            || self.spec.drain
            || self.condition(conditions::DRAINED).is_some()
    }

    /// Where the proxy listens, once it does: the only address that probes and leases use.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.status.as_ref()?.endpoint.as_ref()
    }

    /// The address that targets see, when it is known.
    pub fn exit_ip(&self) -> Option<&str> {
        self.status.as_ref()?.exit_ip.as_deref()
    }

    /// Whether real traffic went through, as last decided.
    pub fn is_healthy(&self) -> bool {
        self.condition(conditions::HEALTHY)
            .is_some_and(|condition| condition.status == "True")
    }

    /// A condition of the status.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        conditions::find(&self.status.as_ref()?.conditions, type_)
    }

    /// The phase, Pending when there is no status yet.
    pub fn phase(&self) -> Phase {
        self.status
            .as_ref()
            .map(|status| status.phase)
            .unwrap_or_default()
    }

    /// Whether the operator runs this proxy's instance.
    pub fn is_managed(&self) -> bool {
        match self.spec.mode {
            Mode::Managed => true,
            Mode::External => false,
        }
    }

    /// How long leases may keep the proxy once it is marked for drain.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.spec.drain_timeout_seconds))
    }

    /// The Secret in the proxy's namespace that holds its `username` and `password`, if it has
    /// credentials.
    pub fn credentials_secret(&self) -> Option<String> {
        let auth = self.spec.auth.as_ref()?;
        match &auth.secret_ref {
            Some(secret) => Some(secret.name.clone()),
            None if auth.generate => Some(format!(
                "{}-proxy-auth",
                self.metadata.name.as_deref().unwrap_or_default()
            )),
            None => None,
        }
    }
}
