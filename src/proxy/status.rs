//! The status of a Proxy after a pass: the only place that decides what it says.
//!
//! Pure. `proxy::reconcile` writes the result when it differs from what is there.

use crawl_api::address::Endpoint;
use crawl_api::conditions::{self as c, Statement};
use crawl_api::proxy::{Phase, Proxy, ProxyStatus, Setback};
use jiff::Timestamp;
use runtime_kit::Class;

use super::Failure;
use super::act::Effect;
use super::bootstrap;
use super::budget::{self, Withheld};
use super::drain::{self, Drain};
use super::observe::{self, Observation};
use super::plan::{Action, Cause, Standing};
use crate::health::{Hold, Location, Verdict};
use crate::providers::Instance;

/// Everything that a status is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass<'a> {
    /// The object as it was read.
    pub proxy: &'a Proxy,
    /// What was observed.
    pub observation: &'a Observation,
    /// What was done.
    pub action: Action,
    /// What that changed.
    pub effect: &'a Effect,
    /// What failed.
    pub failure: Option<&'a Failure>,
    /// The providers there are, for a message.
    pub providers: &'a str,
    /// When.
    pub now: Timestamp,
}

/// Computes the status.
pub(super) fn compute(pass: &Pass<'_>) -> ProxyStatus {
    let mut draft = Draft {
        pass,
        status: pass.proxy.status.clone().unwrap_or_default(),
    };
    draft.status.observed_generation = pass.proxy.metadata.generation;
    draft.identity();
    draft.provisioning();
    draft.setbacks();
    draft.withheld();
    draft.drain();
    draft.health();
    draft.ready();
    draft.status.phase = draft.phase();
    draft.status
}

struct Draft<'a> {
    pass: &'a Pass<'a>,
    status: ProxyStatus,
}

impl Draft<'_> {
    fn state(&mut self, statement: Statement) {
        let generation = self.pass.proxy.metadata.generation;
        c::set(
            &mut self.status.conditions,
            statement,
            generation,
            self.pass.now,
        );
    }

    /// providerID, operation and zone.
    fn identity(&mut self) {
        match self.pass.effect {
            Effect::Nothing | Effect::LetGo => {},
            Effect::Holds {
                instance,
                operation,
            } => {
                self.status.provider_id = Some(instance.id.clone());
                self.status.zone = Some(instance.zone.clone());
                self.status.operation = operation.clone();
            },
            Effect::Cleared => {
                self.status.provider_id = None;
                self.status.zone = None;
                self.status.operation = None;
            },
        }
    }

    /// endpoint, ip, and the condition Provisioned.
    fn provisioning(&mut self) {
        let Pass {
            proxy,
            observation,
            action,
            failure,
            ..
        } = *self.pass;
        match action {
            Action::Serve => match (&observation.instance, &proxy.spec.endpoint) {
                (Some(instance), _) => self.serve_instance(instance),
                (None, Some(endpoint)) => self.serve_external(endpoint.clone()),
                (None, None) => {},
            },
            Action::AddFinalizer | Action::GenerateCredentials => {
                self.without_address(c::REASON_PENDING, "the instance is about to be requested");
            },
            Action::Create | Action::Record | Action::AwaitRunning => {
                self.without_address(
                    c::REASON_PROVISIONING,
                    "the instance does not run, or has no address, yet",
                );
            },
            Action::Delete(cause) => {
                let (reason, message) = self.explain(cause);
                self.without_address(reason, &message);
            },
            Action::AwaitGone => {
                // Why: what began the end said so already, unless the provider began it.
                self.forget_address();
                if c::is_true(&self.status.conditions, c::PROVISIONED) {
                    let (reason, message) = if proxy.metadata.deletion_timestamp.is_some() {
                        explain(Cause::ObjectDeleted)
                    } else {
                        (
                            c::REASON_INSTANCE_LOST,
                            "the instance goes without our doing; another one is created",
                        )
                    };
                    self.without_address(reason, message);
                }
            },
            Action::Forget => {
                let known = !c::is_true(&self.status.conditions, c::PROVISIONED);
                self.forget_address();
                if !known {
                    self.without_address(
                        c::REASON_INSTANCE_LOST,
                        "the instance is gone without our doing; another one is created",
                    );
                }
            },
            Action::Drain(cause) => {
                if proxy.metadata.deletion_timestamp.is_none() {
                    let (reason, message) = self.explain(cause);
                    self.state(Statement::new(c::PROVISIONED, false, reason, message));
                }
            },
            Action::Rest => {
                if observation.standing == Standing::UnknownProvider {
                    let message = format!(
                        "provider {:?} is not in the operator's providers file; known: {}",
                        proxy.spec.provider.as_deref().unwrap_or_default(),
                        self.pass.providers
                    );
                    let unknown = c::REASON_UNKNOWN_PROVIDER;
                    self.state(Statement::new(c::PROVISIONED, false, unknown, message));
                }
                let known = c::find(&self.status.conditions, c::PROVISIONED);
                let unsaid = known.is_none_or(|known| known.reason == c::REASON_PAUSED);
                if observation.standing == Standing::Paused && unsaid {
                    let message = "spec.paused is set: no instance is requested until it is unset";
                    let paused = c::REASON_PAUSED;
                    self.state(Statement::new(c::PROVISIONED, false, paused, message));
                }
            },
            Action::Withhold => {
                if c::find(&self.status.conditions, c::PROVISIONED).is_none() {
                    let message = "the instance is requested when the condition Withheld is gone";
                    self.without_address(c::REASON_PENDING, message);
                }
            },
            Action::Adopt | Action::RemoveFinalizer => {},
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Why: a cloud that cannot be asked says nothing about a machine that works, so Provisioned
    /// keeps its status and takes the reason; only refusals to create say False.
    fn fail(&mut self, failure: &Failure) {
        let Failure {
            class,
            reason,
            message: failed,
            wait: _,
        } = failure;
        let refused = match class {
            Class::Quota | Class::Invalid | Class::Conflict => true,
            Class::NotFound
            | Class::AlreadyExists
            | Class::RateLimited
            | Class::Unauthenticated
            | Class::Forbidden
            | Class::Transient => false,
        };
        // Why: leases are revoked by the reason for which the instance goes, and setbacks counted,
        // whether or not the provider can carry it out at once.
        if let Some(cause) = self.ending().filter(|_| !refused) {
            let (reason, message) = explain(cause);
            let message = format!("{message}; the provider cannot be asked: {failed}");
            self.state(Statement::new(c::PROVISIONED, false, reason, message));
            return;
        }
        let provisioned = !refused && c::is_true(&self.status.conditions, c::PROVISIONED);
        self.state(Statement::new(
            c::PROVISIONED,
            provisioned,
            reason,
            failed.clone(),
        ));
    }

    /// A cause in words, with what the machine's console says.
    fn explain(&self, cause: Cause) -> (&'static str, String) {
        let (reason, message) = explain(cause);
        let line = self.pass.observation.bootstrap_failure.as_ref();
        match line.filter(|_| cause == Cause::UnhealthyTimedOut) {
            Some(line) => (reason, bootstrap::message(message, line)),
            None => (reason, message.into()),
        }
    }

    /// Why the instance is on its way out, if it is.
    fn ending(&self) -> Option<Cause> {
        let condition = c::find(&self.status.conditions, c::PROVISIONED)?;
        CAUSES
            .into_iter()
            .find(|cause| condition.status == "False" && explain(*cause).0 == condition.reason)
    }

    /// The list of instances that were given up.
    fn setbacks(&mut self) {
        let Pass {
            proxy,
            observation,
            now,
            ..
        } = *self.pass;
        let Some(cause) = self.ending() else { return };
        let reason = explain(cause).0;
        let known = proxy.condition(c::PROVISIONED);
        if known.is_some_and(|known| known.status == "False" && known.reason == reason) {
            return;
        }
        let reason = match cause {
            Cause::UnhealthyTimedOut if observation.bootstrap_failure.is_some() => {
                c::REASON_BOOTSTRAP_FAILED
            },
            Cause::ProvisioningTimedOut
            | Cause::UnhealthyTimedOut
            | Cause::AddressReissued
            | Cause::Preempted => reason,
            Cause::Replaced | Cause::ObjectDeleted => return,
        };
        let mut kept: Vec<_> = budget::recent(&self.status.setbacks, now)
            .cloned()
            .collect();
        kept.drain(..kept.len().saturating_sub(SETBACKS - 1));
        kept.push(Setback {
            time: c::api_time(now),
            reason: reason.into(),
            address: observation.instance.as_ref().and_then(|i| i.ip.clone()),
            generation: proxy.metadata.generation,
        });
        self.status.setbacks = kept;
    }

    /// The condition Withheld.
    fn withheld(&mut self) {
        let Pass {
            proxy,
            observation,
            action,
            ..
        } = *self.pass;
        if observation.standing == Standing::Paused {
            let message = if proxy.metadata.deletion_timestamp.is_some() {
                "spec.paused is set: the object and its instance go when it is unset"
            } else {
                "spec.paused is set: the instance is left alone until it is unset"
            };
            let paused = c::REASON_PAUSED;
            self.state(Statement::new(c::WITHHELD, true, paused, message));
            return;
        }
        match (&observation.withheld, action) {
            (Some(withheld), _) => {
                let Withheld {
                    reason, message, ..
                } = withheld;
                self.state(Statement::new(c::WITHHELD, true, reason, message.as_str()));
            },
            (None, Action::Rest) if observation.standing == Standing::Held => {},
            (None, _) => c::remove(&mut self.status.conditions, c::WITHHELD),
        }
    }

    fn serve_instance(&mut self, instance: &Instance) {
        let Instance {
            id,
            ip,
            port,
            zone,
            created,
            ..
        } = instance;
        let Some(ip) = ip else { return };
        self.serve(Endpoint {
            scheme: self.pass.proxy.spec.instance_scheme(),
            host: ip.clone(),
            port: port.unwrap_or(self.pass.proxy.spec.port),
        });
        self.status.ip = Some(ip.clone());
        self.status.zone = Some(zone.clone());
        self.status.operation = None;
        let Pass { proxy, now, .. } = *self.pass;
        let (reason, message) = if observe::was_given_up(proxy, ip, *created, now) {
            let message = format!(
                "instance {id} runs; the provider gave out {ip} again, which was given up because it \
                 failed: it is used when probes succeed"
            );
            (c::REASON_ADDRESS_REISSUED, message)
        } else {
            (c::REASON_CREATED, format!("instance {id} runs"))
        };
        self.state(Statement::new(c::PROVISIONED, true, reason, message));
    }

    fn serve_external(&mut self, endpoint: Endpoint) {
        let message = format!("{endpoint} is run by somebody else");
        self.serve(endpoint);
        self.state(Statement::new(
            c::PROVISIONED,
            true,
            c::REASON_EXTERNAL_ENDPOINT,
            message,
        ));
    }

    fn serve(&mut self, endpoint: Endpoint) {
        if self.status.endpoint.as_ref() != Some(&endpoint) {
            self.forget_address();
            self.status.endpoint = Some(endpoint);
        }
    }

    fn without_address(&mut self, reason: &str, message: &str) {
        self.forget_address();
        self.state(Statement::new(c::PROVISIONED, false, reason, message));
    }

    fn forget_address(&mut self) {
        self.status.endpoint = None;
        self.status.ip = None;
    }

    /// The condition Drained and the mark.
    fn drain(&mut self) {
        let Pass {
            proxy,
            observation,
            action,
            ..
        } = *self.pass;
        let deleting = proxy.metadata.deletion_timestamp.is_some();
        let begun = c::find(&self.status.conditions, c::DRAINED).is_some();
        let replaced = match action {
            Action::Drain(_) | Action::Delete(Cause::Replaced) => true,
            Action::Delete(_) | Action::AwaitGone => begun,
            Action::Rest
            | Action::Serve
            | Action::AddFinalizer
            | Action::GenerateCredentials
            | Action::Create
            | Action::Withhold
            | Action::Record
            | Action::Adopt
            | Action::AwaitRunning
            | Action::Forget
            | Action::RemoveFinalizer => false,
        };
        let undecided = action == Action::Rest;
        let wanted = deleting || proxy.spec.drain || replaced;
        if !wanted && !undecided {
            c::remove(&mut self.status.conditions, c::DRAINED);
            self.status.drain_mark = None;
            return;
        }
        if !wanted {
            return;
        }
        self.status.drain_mark = drain::mark(proxy).map(str::to_owned);
        let statement = match &observation.drain {
            Drain::Unmarked => Statement::new(
                c::DRAINED,
                false,
                c::REASON_DRAINING,
                "no new leases; the lease API has not seen the request to drain yet",
            ),
            Drain::Waiting(progress) => {
                Statement::new(c::DRAINED, false, c::REASON_DRAINING, progress.as_str())
            },
            Drain::Unavailable(error) => Statement::new(
                c::DRAINED,
                false,
                c::REASON_LEASE_API_UNAVAILABLE,
                error.as_str(),
            ),
            Drain::Done(reason, message) => {
                Statement::new(c::DRAINED, true, reason, message.as_str())
            },
        };
        self.state(statement);
    }

    /// The condition Healthy, and what probes learn.
    fn health(&mut self) {
        self.held_and_flapping();
        let before = self.pass.proxy.endpoint();
        let statement = if self.status.endpoint.is_none() {
            self.forget_health();
            let message = "there is no address to probe";
            Statement::new(c::HEALTHY, None, c::REASON_NO_ENDPOINT, message)
        } else if self.status.endpoint.as_ref() != before {
            self.forget_health();
            Statement::new(
                c::HEALTHY,
                None,
                c::REASON_PROBE_PENDING,
                "no probe has decided yet",
            )
        } else if let Some(verdict) = &self.pass.observation.verdict {
            let Verdict {
                healthy,
                reason,
                message,
                exit_ip,
                location: Location { country, asn },
                latency,
                since: _,
                flapping: _,
                hold: _,
                last_probe,
            } = verdict;
            self.status.country.clone_from(country);
            self.status.asn = *asn;
            self.status.exit_ip.clone_from(exit_ip);
            self.status.latency_milliseconds =
                latency.map(|latency| i64::try_from(latency.as_millis()).unwrap_or(i64::MAX));
            self.status.last_health_check_time = last_probe.map(c::api_time);
            match &self.pass.observation.bootstrap_failure {
                Some(line) => {
                    let message = bootstrap::message(message, line);
                    Statement::new(c::HEALTHY, *healthy, c::REASON_BOOTSTRAP_FAILED, message)
                },
                None => Statement::new(c::HEALTHY, *healthy, reason, message.as_str()),
            }
        } else if c::find(&self.status.conditions, c::HEALTHY).is_none() {
            Statement::new(
                c::HEALTHY,
                None,
                c::REASON_PROBE_PENDING,
                "no probe has decided yet",
            )
        } else {
            return; // the engine has not taken over the verdict in status yet
        };
        self.state(statement);
    }

    /// The conditions Flapping and FailureCorrelated, each there only while it is true.
    fn held_and_flapping(&mut self) {
        let has_endpoint = self.status.endpoint.as_ref() == self.pass.proxy.endpoint()
            && self.status.endpoint.is_some();
        let Some(verdict) = &self.pass.observation.verdict else {
            if !has_endpoint {
                c::remove(&mut self.status.conditions, c::FLAPPING);
                c::remove(&mut self.status.conditions, c::CORRELATED);
            }
            return;
        };
        let verdict = Some(verdict).filter(|_| has_endpoint);
        let flapping = verdict.filter(|verdict| verdict.flapping).map(|_| {
            let message = "healthy and unhealthy more than five times within ten minutes; changes \
                           are told at most once a minute";
            Statement::new(c::FLAPPING, true, c::REASON_FREQUENT_TRANSITIONS, message)
        });
        let held = verdict.and_then(|verdict| verdict.hold.as_ref());
        let held = held.map(|Hold { reason, message }| {
            Statement::new(c::CORRELATED, true, reason, message.as_str())
        });
        for (type_, statement) in [(c::FLAPPING, flapping), (c::CORRELATED, held)] {
            match statement {
                Some(statement) => self.state(statement),
                None => c::remove(&mut self.status.conditions, type_),
            }
        }
    }

    fn forget_health(&mut self) {
        self.status.exit_ip = None;
        self.status.country = None;
        self.status.asn = None;
        self.status.latency_milliseconds = None;
        self.status.last_health_check_time = None;
    }

    /// The condition Ready.
    fn ready(&mut self) {
        let conditions = &self.status.conditions;
        let statement = if c::find(conditions, c::DRAINED).is_some() {
            Statement::new(c::READY, false, c::REASON_DRAINING, "being drained")
        } else if !c::is_true(conditions, c::PROVISIONED) || self.status.endpoint.is_none() {
            let message = "not provisioned; see the condition Provisioned";
            Statement::new(c::READY, false, c::REASON_NOT_PROVISIONED, message)
        } else if !c::is_true(conditions, c::HEALTHY) {
            let message = "not healthy; see the condition Healthy";
            Statement::new(c::READY, false, c::REASON_NOT_HEALTHY, message)
        } else {
            Statement::new(c::READY, true, c::REASON_READY, "can be leased")
        };
        self.state(statement);
    }

    fn phase(&self) -> Phase {
        let Pass {
            proxy,
            observation,
            action,
            failure,
            ..
        } = *self.pass;
        let deleting = proxy.metadata.deletion_timestamp.is_some();
        if let Some(failure) = failure {
            match failure.class {
                Class::Quota if !deleting => return Phase::Pending,
                Class::Invalid | Class::Conflict if !deleting => return Phase::Failed,
                Class::Quota
                | Class::Invalid
                | Class::Conflict
                | Class::NotFound
                | Class::AlreadyExists
                | Class::RateLimited
                | Class::Unauthenticated
                | Class::Forbidden
                | Class::Transient => return self.status.phase,
            }
        }
        match action {
            Action::Serve if proxy.spec.drain || deleting => Phase::Draining,
            Action::Serve => self.serving(),
            Action::AddFinalizer
            | Action::GenerateCredentials
            | Action::Forget
            | Action::Withhold => {
                if c::find(&self.status.conditions, c::PROVISIONED)
                    .is_some_and(|condition| condition.reason == c::REASON_REPLACING)
                {
                    Phase::Replacing
                } else {
                    Phase::Pending
                }
            },
            Action::Create | Action::Record if deleting => Phase::Deleting,
            Action::Create | Action::Record | Action::AwaitRunning => Phase::Provisioning,
            Action::Drain(_) if deleting => Phase::Draining,
            Action::Delete(_) | Action::AwaitGone | Action::RemoveFinalizer if deleting => {
                Phase::Deleting
            },
            Action::Drain(_) | Action::Delete(_) | Action::AwaitGone | Action::RemoveFinalizer => {
                Phase::Replacing
            },
            Action::Adopt => self.status.phase,
            Action::Rest => self.resting(observation.standing),
        }
    }

    fn serving(&self) -> Phase {
        match c::find(&self.status.conditions, c::HEALTHY).map(|healthy| healthy.status.as_str()) {
            Some("True") => Phase::Ready,
            Some("False") => Phase::Unhealthy,
            Some(_) | None if self.pass.proxy.is_managed() => Phase::Provisioning,
            Some(_) | None => Phase::Pending,
        }
    }

    fn resting(&self, standing: Standing) -> Phase {
        match (standing, self.status.phase) {
            (Standing::UnknownProvider, _) if self.status.endpoint.is_none() => Phase::Pending,
            (
                Standing::UnknownProvider
                | Standing::Paused
                | Standing::Held
                | Standing::AwaitingChange
                | Standing::Managed
                | Standing::External,
                Phase::Ready | Phase::Unhealthy,
            ) => self.serving(),
            (
                Standing::UnknownProvider
                | Standing::Paused
                | Standing::Held
                | Standing::AwaitingChange
                | Standing::Managed
                | Standing::External,
                unchanged @ (Phase::Pending
                | Phase::Provisioning
                | Phase::Draining
                | Phase::Replacing
                | Phase::Deleting
                | Phase::Failed),
            ) => unchanged,
        }
    }
}

/// How many setbacks are kept at most: more than fit into an hour with their back-off.
const SETBACKS: usize = 8;

const CAUSES: [Cause; 6] = [
    Cause::ProvisioningTimedOut,
    Cause::UnhealthyTimedOut,
    Cause::AddressReissued,
    Cause::Preempted,
    Cause::Replaced,
    Cause::ObjectDeleted,
];

fn explain(cause: Cause) -> (&'static str, &'static str) {
    match cause {
        Cause::ProvisioningTimedOut => (
            c::REASON_PROVISIONING_TIMED_OUT,
            "the instance did not run within provisioningTimeoutSeconds and is replaced",
        ),
        Cause::UnhealthyTimedOut => (
            c::REASON_UNHEALTHY_TIMED_OUT,
            "the instance was unhealthy for longer than unhealthyTimeoutSeconds and is replaced",
        ),
        Cause::AddressReissued => (
            c::REASON_ADDRESS_REISSUED,
            "the provider gave out the address again that was given up because it failed; the \
             instance is replaced, once",
        ),
        Cause::Preempted => (
            c::REASON_PREEMPTED,
            "the provider stopped the instance; it is replaced",
        ),
        Cause::Replaced => (
            c::REASON_REPLACING,
            "the spec was changed in a way that needs another instance, with another address",
        ),
        Cause::ObjectDeleted => (c::REASON_DELETING, "the instance goes with its object"),
    }
}
