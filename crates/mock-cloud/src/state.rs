//! The cloud's state and every decision on it: pure, `now` is given, nothing is done.
//!
//! Where an instance is in its life is computed from stored times and never stored itself, so a
//! restarted cloud goes on where its clock is. [`crate::cloud`] holds the one [`State`], makes it
//! durable and lets the proxies follow.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    addresses::Addresses,
    faults::{Behaviour, Fault, FaultRule, Op},
    model::{
        Console, CreateInstance, ErrorBody, ErrorCode, Instance, InstanceState, Labels,
        ListInstances, Operation, OperationKind,
    },
    records::{Call, EverCreated, Records},
    validate,
};

/// How long the cloud takes for what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// From an accepted create to a running instance.
    pub provision_delay_milliseconds: u64,
    /// From an accepted delete to an instance that is not found, and from a preemption to
    /// `TERMINATED`.
    pub delete_delay_milliseconds: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            provision_delay_milliseconds: 1000,
            delete_delay_milliseconds: 1000,
        }
    }
}

/// Why an instance stops, and when it has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stop {
    /// Not found from then on.
    Delete(Timestamp),
    /// Terminated from then on.
    Preempt(Timestamp),
}

/// An instance as the cloud knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) id: u64,
    pub(crate) zone: String,
    pub(crate) request: CreateInstance,
    pub(crate) address: Ipv4Addr,
    pub(crate) created_at: Timestamp,
    pub(crate) running_at: Timestamp,
    pub(crate) stop: Option<Stop>,
    pub(crate) behaviour: Behaviour,
    /// What its console says.
    #[serde(default)]
    console: String,
}

impl Record {
    /// The state at `now`; none when the instance is gone.
    pub(crate) fn state(&self, now: Timestamp) -> Option<InstanceState> {
        match self.stop {
            Some(Stop::Delete(at)) if now >= at => None,
            Some(Stop::Preempt(at)) if now >= at => Some(InstanceState::Terminated),
            Some(_) => Some(InstanceState::Stopping),
            None if now >= self.running_at => Some(InstanceState::Running),
            None => Some(InstanceState::Provisioning),
        }
    }

    /// When the state next changes by itself.
    fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let at = match self.stop {
            Some(Stop::Delete(at) | Stop::Preempt(at)) => at,
            None => self.running_at,
        };
        (at > now).then_some(at)
    }

    /// The address and port of its proxy.
    pub(crate) fn socket(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address, self.request.port)
    }

    /// The address its proxy dials from.
    pub(crate) fn exit(&self) -> Ipv4Addr {
        match self.behaviour {
            Behaviour::WrongExit { ip: Some(ip) } => ip,
            Behaviour::WrongExit { ip: None } => {
                let [_, _, c, d] = self.address.octets();
                Ipv4Addr::new(127, 255, c, d)
            },
            Behaviour::Normal
            | Behaviour::Dead
            | Behaviour::Hang
            | Behaviour::BlackHole
            | Behaviour::CaptivePortal
            | Behaviour::RejectAuth => self.address,
        }
    }

    fn view(&self, state: InstanceState) -> Instance {
        Instance {
            id: self.id.to_string(),
            name: self.request.name.clone(),
            zone: self.zone.clone(),
            labels: self.request.labels.clone(),
            metadata: self.request.metadata.clone(),
            state,
            ip: (state == InstanceState::Running).then_some(self.address),
            port: self.request.port,
            created_at: self.created_at,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OperationRecord {
    id: u64,
    kind: OperationKind,
    zone: String,
    target: String,
    done_at: Timestamp,
    error: Option<ErrorBody>,
}

/// Operations older than the newest this many are forgotten.
const KEPT_OPERATIONS: usize = 10_000;

/// Everything the cloud knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct State {
    next_id: u64,
    addresses: Addresses,
    pub(crate) settings: Settings,
    instances: BTreeMap<u64, Record>,
    operations: VecDeque<OperationRecord>,
    pub(crate) faults: Vec<FaultRule>,
    pub(crate) records: Records,
}

impl State {
    /// An empty cloud that hands out addresses from `first` on.
    pub(crate) fn new(first: Ipv4Addr) -> Self {
        Self {
            next_id: 1,
            addresses: Addresses::starting_at(first),
            settings: Settings::default(),
            instances: BTreeMap::new(),
            operations: VecDeque::new(),
            faults: Vec::new(),
            records: Records::default(),
        }
    }

    /// Forgets the instances that are gone. Returns whether anything changed.
    pub(crate) fn sweep(&mut self, now: Timestamp) -> bool {
        let Self {
            instances, records, ..
        } = self;
        let before = instances.len();
        instances.retain(|_, record| {
            let alive = record.state(now).is_some();
            if !alive && let Some(Stop::Delete(at)) = record.stop {
                records.gone(record.id, at);
            }
            alive
        });
        instances.len() != before
    }

    /// The instances that exist at `now` with their states.
    pub(crate) fn alive(
        &self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&Record, InstanceState)> + use<'_> {
        self.instances
            .values()
            .filter_map(move |r| r.state(now).map(|state| (r, state)))
    }

    /// When the state of any instance next changes by itself.
    pub(crate) fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        self.instances
            .values()
            .filter_map(|record| record.next_change(now))
            .min()
    }

    /// Takes the first fault that fits the call, and spends it.
    pub(crate) fn take_fault(&mut self, op: Op, zone: Option<&str>) -> Option<Fault> {
        let index = self.faults.iter().position(|rule| {
            rule.op == op
                && rule.count > 0
                && rule.fault.fits(op)
                && rule
                    .zone
                    .as_deref()
                    .is_none_or(|wanted| Some(wanted) == zone)
        })?;
        let rule = self.faults.get_mut(index)?;
        rule.count -= 1;
        let fault = rule.fault.clone();
        if rule.count == 0 {
            self.faults.remove(index);
        }
        Some(fault)
    }

    /// Creates an instance; its address is one for which `is_free` holds.
    pub(crate) fn create(
        &mut self,
        now: Timestamp,
        zone: &str,
        request: CreateInstance,
        fault: Option<&Fault>,
        is_free: impl Fn(SocketAddrV4) -> bool,
    ) -> Result<(Instance, u64), ErrorBody> {
        validate::create(zone, &request)?;
        if self.find(now, zone, &request.name).is_ok() {
            return Err(ErrorBody {
                code: ErrorCode::AlreadyExists,
                message: format!(
                    "instance {:?} already exists in zone {zone:?}",
                    request.name
                ),
            });
        }
        let delay = match fault {
            Some(Fault::SlowBoot { delay_milliseconds }) => *delay_milliseconds,
            _ => self.settings.provision_delay_milliseconds,
        };
        let running_at = after(now, delay);
        let in_use: HashSet<Ipv4Addr> = self.instances.values().map(|r| r.address).collect();
        let port = request.port;
        let fits = |ip| !in_use.contains(&ip) && is_free(SocketAddrV4::new(ip, port));
        let address = match fault {
            Some(Fault::GiveAddress { ip }) => Some(*ip).filter(|ip| fits(*ip)),
            _ => self.addresses.next(fits),
        };
        let address = address.ok_or_else(|| ErrorBody {
            code: ErrorCode::ZoneResourcesExhausted,
            message: format!("no loopback address with a free port {port} is left"),
        })?;
        let record = Record {
            id: self.take_id(),
            zone: zone.to_owned(),
            address,
            created_at: now,
            running_at,
            stop: None,
            console: match fault {
                Some(Fault::FailBootstrap { console }) => console.clone(),
                _ => String::new(),
            },
            behaviour: match fault {
                Some(Fault::Misbehave { behaviour }) => behaviour.clone(),
                Some(Fault::FailBootstrap { .. }) => Behaviour::Dead,
                _ => Behaviour::Normal,
            },
            request,
        };
        let instance = record.view(InstanceState::Provisioning);
        let error = match fault {
            Some(Fault::FailOperation { with }) => Some(refusal(with.code())),
            _ => None,
        };
        let failed = error.is_some();
        let operation = self.operation(OperationKind::Insert, &record, running_at, error);
        if !failed {
            self.records.created(EverCreated {
                id: instance.id.clone(),
                name: instance.name.clone(),
                zone: instance.zone.clone(),
                labels: instance.labels.clone(),
                created_at: now,
                deleted_at: None,
            });
            self.instances.insert(record.id, record);
        }
        Ok((instance, operation))
    }

    /// One instance, by id or name.
    pub(crate) fn get(&self, now: Timestamp, zone: &str, key: &str) -> Result<Instance, ErrorBody> {
        let record = self.find(now, zone, key)?;
        match record.state(now) {
            Some(state) => Ok(record.view(state)),
            None => Err(not_found(zone, key)),
        }
    }

    /// What an instance wrote to its console, by id or name.
    pub(crate) fn console(
        &self,
        now: Timestamp,
        zone: &str,
        key: &str,
    ) -> Result<Console, ErrorBody> {
        let contents = self.find(now, zone, key)?.console.clone();
        Ok(Console { contents })
    }

    /// The instances that match, oldest first.
    pub(crate) fn list(&self, now: Timestamp, selection: &ListInstances) -> Vec<Instance> {
        self.alive(now)
            .filter(|(record, _)| {
                selection
                    .zone
                    .as_ref()
                    .is_none_or(|zone| *zone == record.zone)
                    && contains(&record.request.labels, &selection.labels)
            })
            .map(|(record, state)| record.view(state))
            .collect()
    }

    /// Starts to delete an instance, by id or name. Deleting one that is being deleted changes
    /// nothing and gives another operation for the same end.
    pub(crate) fn delete(
        &mut self,
        now: Timestamp,
        zone: &str,
        key: &str,
    ) -> Result<(Instance, u64), ErrorBody> {
        let gone_at = after(now, self.settings.delete_delay_milliseconds);
        let record = self.find_mut(now, zone, key)?;
        let gone_at = match record.stop {
            Some(Stop::Delete(at)) => at,
            Some(Stop::Preempt(_)) | None => gone_at,
        };
        record.stop = Some(Stop::Delete(gone_at));
        let record = record.clone();
        let operation = self.operation(OperationKind::Delete, &record, gone_at, None);
        Ok((record.view(InstanceState::Stopping), operation))
    }

    /// Takes a machine away from its owner, as clouds do with spot machines.
    pub(crate) fn preempt(
        &mut self,
        now: Timestamp,
        zone: &str,
        key: &str,
    ) -> Result<Instance, ErrorBody> {
        let at = after(now, self.settings.delete_delay_milliseconds);
        let record = self.find_mut(now, zone, key)?;
        record.stop.get_or_insert(Stop::Preempt(at));
        let state = record.state(now).unwrap_or(InstanceState::Stopping);
        Ok(record.view(state))
    }

    /// Changes how an instance's proxy behaves.
    pub(crate) fn misbehave(
        &mut self,
        now: Timestamp,
        zone: &str,
        key: &str,
        behaviour: Behaviour,
    ) -> Result<(), ErrorBody> {
        self.find_mut(now, zone, key)?.behaviour = behaviour;
        Ok(())
    }

    /// An operation by id.
    pub(crate) fn get_operation(&self, now: Timestamp, id: &str) -> Result<Operation, ErrorBody> {
        let record = self
            .operations
            .iter()
            .find(|o| o.id.to_string() == id)
            .ok_or_else(|| ErrorBody {
                code: ErrorCode::NotFound,
                message: format!("no operation {id:?}"),
            })?;
        // A failed operation is over at once: real clouds say "stockout" within moments.
        let done = record.error.is_some() || now >= record.done_at;
        Ok(Operation {
            id: record.id.to_string(),
            kind: record.kind,
            zone: record.zone.clone(),
            target: record.target.clone(),
            done,
            error: record.error.clone(),
        })
    }

    /// Writes a mutating call down.
    pub(crate) fn record(&mut self, call: Call) {
        self.records.call(call);
    }

    fn find(&self, now: Timestamp, zone: &str, key: &str) -> Result<&Record, ErrorBody> {
        self.instances
            .values()
            .find(|record| record.is(zone, key) && record.state(now).is_some())
            .ok_or_else(|| not_found(zone, key))
    }

    fn find_mut(
        &mut self,
        now: Timestamp,
        zone: &str,
        key: &str,
    ) -> Result<&mut Record, ErrorBody> {
        self.instances
            .values_mut()
            .find(|record| record.is(zone, key) && record.state(now).is_some())
            .ok_or_else(|| not_found(zone, key))
    }

    fn operation(
        &mut self,
        kind: OperationKind,
        record: &Record,
        done_at: Timestamp,
        error: Option<ErrorBody>,
    ) -> u64 {
        let id = self.take_id();
        self.operations.push_back(OperationRecord {
            id,
            kind,
            zone: record.zone.clone(),
            target: record.request.name.clone(),
            done_at,
            error,
        });
        while self.operations.len() > KEPT_OPERATIONS {
            self.operations.pop_front();
        }
        id
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }
}

impl Record {
    fn is(&self, zone: &str, key: &str) -> bool {
        self.zone == zone && (self.request.name == key || self.id.to_string() == key)
    }
}

/// Whether `labels` carries all of `wanted`.
pub(crate) fn contains(labels: &Labels, wanted: &Labels) -> bool {
    wanted
        .iter()
        .all(|(name, value)| labels.get(name) == Some(value))
}

/// The words of a refusal that was asked for.
pub(crate) fn refusal(code: ErrorCode) -> ErrorBody {
    let message = match code {
        ErrorCode::QuotaExceeded => "quota 'INSTANCES' exceeded; limit 0 (as asked for)",
        ErrorCode::ZoneResourcesExhausted => {
            "the zone does not have enough resources available (as asked for)"
        },
        ErrorCode::Invalid => "the request is invalid (as asked for)",
        ErrorCode::Forbidden => "permission denied (as asked for)",
        ErrorCode::Unauthorized => "the credentials are not accepted (as asked for)",
        ErrorCode::RateLimited => "too many requests (as asked for)",
        ErrorCode::NotFound
        | ErrorCode::AlreadyExists
        | ErrorCode::BackendError
        | ErrorCode::Unknown => "the cloud has a problem (as asked for)",
    };
    ErrorBody {
        code,
        message: message.to_owned(),
    }
}

fn not_found(zone: &str, key: &str) -> ErrorBody {
    ErrorBody {
        code: ErrorCode::NotFound,
        message: format!("no instance {key:?} in zone {zone:?}"),
    }
}

fn after(now: Timestamp, milliseconds: u64) -> Timestamp {
    now.checked_add(Duration::from_millis(milliseconds))
        .unwrap_or(Timestamp::MAX)
}
