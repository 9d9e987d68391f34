//! Faults as data: what tests and demonstrations ask a fake cloud for.
//!
//! A script is YAML or JSON; `crates/fake-clouds/scripts/` has one per trouble that a cloud makes.
//! A rule takes calls until it is spent, so a script says exactly how many of them fail.

use std::future::Future;
use std::time::Duration;

use runtime_kit::Clock;
use serde::{Deserialize, Serialize};

use crate::serve::{Answer, Outcome};

/// What a fake is to do from now on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Script {
    /// How the cloud is when nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    /// What goes wrong; a call takes the first rule that matches it.
    pub faults: Vec<Rule>,
}

/// How long a fake takes, and what it has to give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// From an accepted create to a running machine.
    pub boot_milliseconds: u64,
    /// From an accepted delete to a machine that is not found, and from a preemption to a stopped
    /// one.
    pub stop_milliseconds: u64,
    /// How far reads of machines lag behind: they show what was so this long ago. A fake whose
    /// cloud has lists that agree with its writes does so for new machines only.
    pub reads_lag_milliseconds: u64,
    /// The addresses of machines; the one that became free last is given first. Empty: always
    /// fresh ones.
    pub addresses: Vec<String>,
    /// The longest page of a list.
    pub page_size: u32,
    /// How many requests an account has in an hour; they come back one by one (Hetzner Cloud).
    pub requests_per_hour: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            boot_milliseconds: 200,
            stop_milliseconds: 200,
            reads_lag_milliseconds: 0,
            addresses: Vec::new(),
            page_size: 500,
            requests_per_hour: 3600,
        }
    }
}

/// Which calls have a fault, and which one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Only these calls; all of them when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<Op>,
    /// Only in this zone; all of them when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// How many calls it takes; without end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// What happens to them.
    pub fault: Fault,
}

/// The calls a rule can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Op {
    /// Creating a machine.
    Create,
    /// Reading one machine.
    Get,
    /// Deleting a machine.
    Delete,
    /// Listing machines.
    List,
    /// Reading an operation.
    Operation,
    /// Reading a machine's console.
    Console,
}

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Fault {
    /// It is refused in the API's own form and changes nothing.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// The machine-readable word of the API, for example `rateLimitExceeded`.
        reason: String,
        /// For people.
        message: String,
        /// The header `Retry-After`: seconds, or a date.
        #[serde(default)]
        retry_after: Option<String>,
    },
    /// A proxy in front of the API answers with a page, and nothing changes.
    Page {
        /// The HTTP status.
        status: u16,
    },
    /// A create is accepted, and then its operation fails: there never is a machine.
    FailOperation {
        /// For example `QUOTA_EXCEEDED`.
        code: String,
        /// For people.
        message: String,
        /// The HTTP status that the operation says.
        status: u16,
    },
    /// It is carried out this much later.
    Delay {
        /// How much.
        milliseconds: u64,
    },
    /// It is carried out, and the connection drops instead of an answer.
    LostReply,
    /// It changes nothing, and the connection drops.
    Drop,
    /// It changes nothing and is never answered.
    Hang,
}

/// What a fake was told last, and which faults are left of it.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) settings: Settings,
    rules: Vec<Rule>,
}

// === impl Script ===

impl Script {
    /// Reads a script, YAML or JSON.
    ///
    /// # Errors
    /// It is not one; unknown keys are errors.
    pub fn read(text: &str) -> Result<Self, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }
}

// === impl Setup ===

impl Setup {
    pub(crate) fn new(script: Script) -> Self {
        let Script { settings, faults } = script;
        Self {
            settings: settings.unwrap_or_default(),
            rules: faults,
        }
    }

    /// From now on; settings that are not given stay.
    pub(crate) fn apply(&mut self, script: Script) {
        let Script { settings, faults } = script;
        if let Some(settings) = settings {
            self.settings = settings;
        }
        self.rules = faults;
    }

    /// The fault of a call, taken from the rules.
    pub(crate) fn take(&mut self, op: Op, zone: &str) -> Option<Fault> {
        let matches = |rule: &Rule| {
            rule.op.is_none_or(|wanted| wanted == op)
                && rule.zone.as_deref().is_none_or(|wanted| wanted == zone)
                && rule.times != Some(0)
        };
        let rule = self.rules.iter_mut().find(|rule| matches(rule))?;
        if let Some(times) = &mut rule.times {
            *times -= 1;
        }
        let fault = rule.fault.clone();
        self.rules.retain(|rule| rule.times != Some(0));
        Some(fault)
    }
}

// === impl Settings ===

impl Settings {
    /// See [`Settings::boot_milliseconds`].
    pub fn boot(&self) -> Duration {
        Duration::from_millis(self.boot_milliseconds)
    }

    /// See [`Settings::stop_milliseconds`].
    pub fn stop(&self) -> Duration {
        Duration::from_millis(self.stop_milliseconds)
    }

    /// See [`Settings::reads_lag_milliseconds`].
    pub fn reads_lag(&self) -> Duration {
        Duration::from_millis(self.reads_lag_milliseconds)
    }
}

/// Why a call that was accepted comes to nothing.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) status: u16,
}

/// A refusal that a script asks for.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) retry_after: Option<String>,
}

/// Carries a call out as its fault says: `carry_out` is told why the call shall come to nothing, if
/// it shall; `refuse` words a refusal as the API does.
pub(crate) async fn play<F>(
    fault: Option<Fault>,
    clock: &dyn Clock,
    carry_out: impl FnOnce(Option<Failure>) -> F,
    refuse: impl FnOnce(Refusal) -> Answer,
) -> Outcome
where
    F: Future<Output = Answer>,
{
    match fault {
        None => Outcome::Answer(carry_out(None).await),
        Some(Fault::Refuse {
            status,
            reason,
            message,
            retry_after,
        }) => Outcome::Answer(refuse(Refusal {
            status,
            reason,
            message,
            retry_after,
        })),
        Some(Fault::Page { status }) => Outcome::Answer(Answer::page(status)),
        Some(Fault::FailOperation {
            code,
            message,
            status,
        }) => {
            let failure = Failure {
                code,
                message,
                status,
            };
            Outcome::Answer(carry_out(Some(failure)).await)
        },
        Some(Fault::Delay { milliseconds }) => {
            clock.sleep(Duration::from_millis(milliseconds)).await;
            Outcome::Answer(carry_out(None).await)
        },
        Some(Fault::LostReply) => {
            let _lost = carry_out(None).await;
            Outcome::Drop
        },
        Some(Fault::Drop) => Outcome::Drop,
        Some(Fault::Hang) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_that_is_shipped_can_be_read() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
        let mut read = 0;
        for cloud in std::fs::read_dir(folder).unwrap() {
            for script in std::fs::read_dir(cloud.unwrap().path()).unwrap() {
                let path = script.unwrap().path();
                let text = std::fs::read_to_string(&path).unwrap();
                let script = Script::read(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
                assert_ne!(script, Script::default(), "{path:?}");
                read += 1;
            }
        }
        assert!(read > 0);
    }

    #[test]
    fn a_rule_takes_the_calls_it_matches_until_it_is_spent() {
        let text = "
faults:
- {op: create, zone: a, times: 2, fault: {type: lostReply}}
- {op: list, fault: {type: hang}}
";
        let mut setup = Setup::new(Script::read(text).unwrap());
        assert_eq!(setup.take(Op::Create, "b"), None);
        for wanted in [Some(Fault::LostReply), Some(Fault::LostReply), None] {
            assert_eq!(setup.take(Op::Create, "a"), wanted);
        }
        for _ in 0..3 {
            assert_eq!(setup.take(Op::List, "a"), Some(Fault::Hang));
        }
    }

    #[test]
    fn an_unknown_key_of_a_script_is_an_error() {
        for text in [
            "fault: []",
            "faults: [{times: 1}]",
            "faults: [{op: create, fault: {type: refuse, status: 403}}]",
            "settings: {bootSeconds: 1}",
        ] {
            assert!(Script::read(text).is_err(), "{text}");
        }
    }
}
