//! The machines and operations of the fake Compute Engine. What time does to them is decided
//! whenever somebody looks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::faults::{Failure, Rule, Script, Settings};

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
enum Stop {
    /// Not found from then on.
    Delete,
    /// `TERMINATED` from then on.
    Halt,
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
    accepted: Duration,
    stop: Option<(Stop, Duration)>,
    /// Its address has been given back.
    released: bool,
}

/// What the fake knows.
#[derive(Debug)]
pub(super) struct State {
    pub(super) settings: Settings,
    pub(super) rules: Vec<Rule>,
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
}

/// The time of a call, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) wall: Timestamp,
    pub(super) elapsed: Duration,
}

// === impl State ===

impl State {
    pub(super) fn new(script: Script) -> Self {
        let Script { settings, faults } = script;
        Self {
            settings: settings.unwrap_or_default(),
            rules: faults,
            keys: None,
            machines: BTreeMap::new(),
            operations: Vec::new(),
            // Why: ids are large, so that nobody takes them for small numbers.
            last_id: 4_000_000_000_000_000_000,
            ever: Vec::new(),
        }
    }

    pub(super) fn apply(&mut self, script: Script) {
        let Script { settings, faults } = script;
        if let Some(settings) = settings {
            self.settings = settings;
        }
        self.rules = faults;
    }

    pub(super) fn ever(&self) -> &[Ever] {
        &self.ever
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 7919;
        self.last_id
    }

    /// Lets time pass: machines that are gone are forgotten, and their addresses are free.
    pub(super) fn settle(&mut self, now: Now) {
        let over = |stop: Option<(Stop, Duration)>| stop.filter(|(_, at)| *at <= now.elapsed);
        for machine in self.machines.values_mut() {
            if over(machine.stop).is_some() && !machine.released {
                machine.released = true;
                self.settings.addresses.push(machine.address.clone());
            }
        }
        self.machines
            .retain(|_, machine| !matches!(over(machine.stop), Some((Stop::Delete, _))));
    }

    pub(super) fn named(&self, project: &str, zone: &str, key: &str) -> Option<&Machine> {
        self.machines.values().find(|machine| {
            machine.project == project
                && machine.zone == zone
                && (machine.name == key || machine.id.to_string() == key)
        })
    }

    pub(super) fn is_visible(&self, machine: &Machine, now: Now) -> bool {
        machine.accepted + self.settings.visible_after() <= now.elapsed
    }

    pub(super) fn status(&self, machine: &Machine, now: Now) -> &'static str {
        let boot = self.settings.boot();
        match machine.stop {
            Some((_, at)) if now.elapsed < at => "STOPPING",
            Some(_) => "TERMINATED",
            None if now.elapsed < machine.accepted + boot / 2 => "PROVISIONING",
            None if now.elapsed < machine.accepted + boot => "STAGING",
            None => "RUNNING",
        }
    }

    /// The machines of a zone from an id on, in order.
    pub(super) fn zone(&self, project: &str, zone: &str, after: u64) -> Vec<&Machine> {
        let there = |machine: &&Machine| machine.project == project && machine.zone == zone;
        let later = self.machines.range(after + 1..).map(|(_, machine)| machine);
        later.filter(there).collect()
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
            let address = self.settings.addresses.pop().unwrap_or(fresh);
            let labels = body.get("labels").cloned().unwrap_or_default();
            self.ever.push(Ever {
                id,
                name: name.into(),
                zone: zone.into(),
                labels,
            });
            let machine = Machine {
                id,
                project: project.into(),
                zone: zone.into(),
                name: name.into(),
                body,
                created: now.wall,
                address,
                accepted: now.elapsed,
                stop: None,
                released: false,
            };
            self.machines.insert(id, machine);
        }
        let ends = now.elapsed + self.settings.boot();
        let target = (project, zone, name, id);
        self.start(target, "insert", ends, failure, request_id, now)
    }

    /// Begins to delete a machine.
    pub(super) fn delete(&mut self, id: u64, now: Now) -> Option<Operation> {
        let ends = now.elapsed + self.settings.stop();
        let machine = self.machines.get_mut(&id)?;
        machine.stop = Some((Stop::Delete, ends));
        let Machine {
            project,
            zone,
            name,
            ..
        } = machine.clone();
        let target = (project.as_str(), zone.as_str(), name.as_str(), id);
        Some(self.start(target, "delete", ends, None, None, now))
    }

    /// Takes a spot machine back, as its termination action says.
    pub(super) fn preempt(&mut self, id: u64, now: Now) -> bool {
        let ends = now.elapsed + self.settings.stop();
        let Some(machine) = self.machines.get_mut(&id) else {
            return false;
        };
        let scheduling = |key: &str| machine.body.pointer(&format!("/scheduling/{key}"));
        if scheduling("provisioningModel").and_then(Value::as_str) != Some("SPOT") {
            return false;
        }
        let action = scheduling("instanceTerminationAction").and_then(Value::as_str);
        let stop = if action == Some("DELETE") {
            Stop::Delete
        } else {
            Stop::Halt
        };
        machine.stop = Some((stop, ends));
        true
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
