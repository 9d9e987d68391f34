//! The machines and operations of the fake Compute Engine. What time does to them is decided
//! whenever somebody looks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::faults::{Failure, Script, Setup};
use crate::now::Now;

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) project: String,
    pub(super) zone: String,
    pub(super) kind: &'static str,
    pub(super) target: u64,
    pub(super) target_name: String,
    pub(super) started: Timestamp,
    pub(super) ends: Duration,
    pub(super) failure: Option<Failure>,
    pub(super) request_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Not found from then on.
    Delete,
    /// `TERMINATED` from then on.
    Halt,
}

/// How a machine ends: `STOPPING` from `begun` until `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stop {
    end: End,
    begun: Duration,
    at: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) id: u64,
    pub(super) project: String,
    pub(super) zone: String,
    pub(super) name: String,
    /// As in the request.
    pub(super) body: Value,
    pub(super) created: Timestamp,
    pub(super) address: String,
    /// What it wrote to its console.
    pub(super) console: String,
    accepted: Duration,
    stop: Option<Stop>,
    /// Its address has been given back.
    released: bool,
}

/// What the fake knows.
#[derive(Debug)]
pub(super) struct State {
    pub(super) setup: Setup,
    /// Ids of the keys whose tokens are accepted; every one when absent.
    pub(super) keys: Option<Vec<String>>,
    /// In the order of creation.
    machines: BTreeMap<u64, Machine>,
    operations: Vec<Operation>,
    last_id: u64,
    /// Ids of everything that was ever created.
    ever: Vec<Ever>,
}

/// A machine that was once created.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Ever {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) zone: String,
    pub(super) labels: Value,
    pub(super) created: Timestamp,
    /// Since when there is no such machine.
    pub(super) gone: Option<Timestamp>,
}

// === impl Machine ===

impl Machine {
    /// Whether there is, or was, such a machine at that time.
    fn exists(&self, at: Duration) -> bool {
        let gone = self.gone().is_some_and(|gone| gone <= at);
        self.accepted <= at && !gone
    }

    /// When there is no such machine any more.
    fn gone(&self) -> Option<Duration> {
        let stop = self.stop.filter(|stop| stop.end == End::Delete)?;
        Some(stop.at)
    }

    fn status(&self, at: Duration, boot: Duration) -> &'static str {
        match self.stop {
            Some(Stop { at: end, .. }) if end <= at => "TERMINATED",
            Some(Stop { begun, .. }) if begun <= at => "STOPPING",
            Some(_) | None if at < self.accepted + boot / 2 => "PROVISIONING",
            Some(_) | None if at < self.accepted + boot => "STAGING",
            Some(_) | None => "RUNNING",
        }
    }

    fn answers_to(&self, project: &str, zone: &str, key: &str) -> bool {
        self.project == project
            && self.zone == zone
            && (self.name == key || self.id.to_string() == key)
    }
}

// === impl State ===

impl State {
    pub(super) fn new(script: Script) -> Self {
        Self {
            setup: Setup::new(script),
            keys: None,
            machines: BTreeMap::new(),
            operations: Vec::new(),
            // Why: ids are large, so that nobody takes them for small numbers.
            last_id: 4_000_000_000_000_000_000,
            ever: Vec::new(),
        }
    }

    pub(super) fn ever(&self) -> &[Ever] {
        &self.ever
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 7919;
        self.last_id
    }

    /// Lets time pass: addresses of machines that are gone are free, and what no read shows any
    /// more is forgotten.
    pub(super) fn settle(&mut self, now: Now) {
        for machine in self.machines.values_mut() {
            let ended = machine.stop.filter(|stop| stop.at <= now.elapsed);
            if ended.is_some() && !machine.released {
                machine.released = true;
                self.setup.settings.addresses.push(machine.address.clone());
            }
        }
        let lag = self.setup.settings.reads_lag();
        for machine in self.machines.values() {
            let Some(gone) = machine.gone().filter(|gone| *gone <= now.elapsed) else {
                continue;
            };
            if let Some(ever) = self.ever.iter_mut().find(|ever| ever.id == machine.id) {
                let ago =
                    SignedDuration::try_from(now.elapsed.saturating_sub(gone)).unwrap_or_default();
                ever.gone = Some(now.wall - ago);
            }
        }
        self.machines
            .retain(|_, machine| machine.gone().is_none_or(|gone| now.elapsed < gone + lag));
    }

    /// The machine that has this name or number now, whether or not a read would show it.
    pub(super) fn named(&self, project: &str, zone: &str, key: &str, now: Now) -> Option<&Machine> {
        let mut machines = self.machines.values();
        machines
            .find(|machine| machine.exists(now.elapsed) && machine.answers_to(project, zone, key))
    }

    /// What a read shows of a machine: itself and its status.
    pub(super) fn shown(
        &self,
        project: &str,
        zone: &str,
        key: &str,
        now: Now,
    ) -> Option<(&Machine, &'static str)> {
        let mut shown = self.zone(project, zone, 0, now).into_iter();
        shown.find(|(machine, _)| machine.answers_to(project, zone, key))
    }

    /// What a read shows of the machines of a zone from an id on, in order.
    pub(super) fn zone(
        &self,
        project: &str,
        zone: &str,
        after: u64,
        now: Now,
    ) -> Vec<(&Machine, &'static str)> {
        let Some(at) = now.elapsed.checked_sub(self.setup.settings.reads_lag()) else {
            return Vec::new();
        };
        let boot = self.setup.settings.boot();
        let later = self.machines.range(after + 1..).map(|(_, machine)| machine);
        later
            .filter(|machine| machine.project == project && machine.zone == zone)
            .filter(|machine| machine.exists(at))
            .map(|machine| (machine, machine.status(at, boot)))
            .collect()
    }

    pub(super) fn operation(&self, project: &str, zone: &str, key: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| {
            operation.project == project
                && operation.zone == zone
                && (operation.name == key || operation.id.to_string() == key)
        })
    }

    pub(super) fn requested(&self, project: &str, request_id: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| {
            operation.project == project && operation.request_id.as_deref() == Some(request_id)
        })
    }

    /// Accepts an insert; with a failure, there never is a machine.
    pub(super) fn insert(
        &mut self,
        (project, zone, name): (&str, &str, &str),
        body: Value,
        request_id: Option<String>,
        failure: Option<Failure>,
        now: Now,
    ) -> Operation {
        let id = self.next_id();
        if failure.is_none() {
            let fresh = format!(
                "198.18.{}.{}",
                self.ever.len() / 250,
                self.ever.len() % 250 + 1
            );
            let address = self.setup.settings.addresses.pop().unwrap_or(fresh);
            let labels = body.get("labels").cloned().unwrap_or_default();
            self.ever.push(Ever {
                id,
                name: name.into(),
                zone: zone.into(),
                labels,
                created: now.wall,
                gone: None,
            });
            let machine = Machine {
                id,
                project: project.into(),
                zone: zone.into(),
                name: name.into(),
                body,
                created: now.wall,
                address,
                console: String::new(),
                accepted: now.elapsed,
                stop: None,
                released: false,
            };
            self.machines.insert(id, machine);
        }
        let ends = now.elapsed + self.setup.settings.boot();
        let target = (project, zone, name, id);
        self.start(target, "insert", ends, failure, request_id, now)
    }

    /// Begins to delete a machine.
    pub(super) fn delete(&mut self, id: u64, now: Now) -> Option<Operation> {
        let ends = now.elapsed + self.setup.settings.stop();
        let machine = self.machines.get_mut(&id)?;
        // Why: a repeated delete ends when the first one does.
        let begun = machine.stop.filter(|stop| stop.end == End::Delete);
        let stop = begun.unwrap_or(Stop {
            end: End::Delete,
            begun: now.elapsed,
            at: ends,
        });
        machine.stop = Some(stop);
        let Machine {
            project,
            zone,
            name,
            ..
        } = machine.clone();
        let target = (project.as_str(), zone.as_str(), name.as_str(), id);
        Some(self.start(target, "delete", stop.at, None, None, now))
    }

    /// Takes a spot machine back, as its termination action says.
    pub(super) fn preempt(&mut self, id: u64, now: Now) -> bool {
        let ends = now.elapsed + self.setup.settings.stop();
        let Some(machine) = self.machines.get_mut(&id) else {
            return false;
        };
        let scheduling = |key: &str| machine.body.pointer(&format!("/scheduling/{key}"));
        if scheduling("provisioningModel").and_then(Value::as_str) != Some("SPOT") {
            return false;
        }
        let action = scheduling("instanceTerminationAction").and_then(Value::as_str);
        let end = if action == Some("DELETE") {
            End::Delete
        } else {
            End::Halt
        };
        machine.stop = Some(Stop {
            end,
            begun: now.elapsed,
            at: ends,
        });
        true
    }

    /// False: there is no such machine.
    pub(super) fn set_console(&mut self, id: u64, text: String) -> bool {
        let machine = self.machines.get_mut(&id);
        machine.map(|machine| machine.console = text).is_some()
    }

    pub(super) fn set_address(&mut self, id: u64, address: String) {
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.address = address;
        }
    }

    fn start(
        &mut self,
        (project, zone, target_name, target): (&str, &str, &str, u64),
        kind: &'static str,
        ends: Duration,
        failure: Option<Failure>,
        request_id: Option<String>,
        now: Now,
    ) -> Operation {
        let id = self.next_id();
        let operation = Operation {
            id,
            name: format!("operation-{id}"),
            project: project.into(),
            zone: zone.into(),
            kind,
            target,
            target_name: target_name.into(),
            started: now.wall,
            ends,
            failure,
            request_id,
        };
        self.operations.push(operation.clone());
        operation
    }
}
