//! The servers and actions of the fake Hetzner Cloud. What time does to them is decided whenever
//! somebody looks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::limit::Limit;
use crate::faults::{Failure, Script, Setup};
use crate::now::Now;

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Access {
    Read,
    ReadWrite,
}

#[derive(Clone, Debug)]
pub(super) struct Action {
    pub(super) id: u64,
    pub(super) command: &'static str,
    pub(super) server: u64,
    pub(super) started: Timestamp,
    pub(super) ends: Duration,
    pub(super) failure: Option<Failure>,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) location: String,
    /// As in the request.
    pub(super) body: Value,
    pub(super) created: Timestamp,
    /// None: the server was asked for without.
    pub(super) ipv4: Option<String>,
    accepted: Duration,
    /// Not found from then on.
    gone: Option<Duration>,
    deleting: bool,
    /// Switched off by somebody.
    off: bool,
}

/// A server that was once created.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Ever {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) location: String,
    pub(super) labels: Value,
    pub(super) request: Value,
}

/// What the fake knows: one project.
#[derive(Debug)]
pub(super) struct State {
    pub(super) setup: Setup,
    pub(super) limit: Limit,
    /// The tokens that are accepted; every one when absent.
    pub(super) tokens: Option<BTreeMap<String, Access>>,
    /// In the order of creation.
    servers: BTreeMap<u64, Server>,
    actions: Vec<Action>,
    last_id: u64,
    ever: Vec<Ever>,
}

// === impl State ===

impl State {
    pub(super) fn new(script: Script) -> Self {
        Self {
            setup: Setup::new(script),
            limit: Limit::default(),
            tokens: None,
            servers: BTreeMap::new(),
            actions: Vec::new(),
            last_id: 40_000_000,
            ever: Vec::new(),
        }
    }

    pub(super) fn ever(&self) -> &[Ever] {
        &self.ever
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 79;
        self.last_id
    }

    /// Lets time pass: servers that are gone are forgotten, and their addresses are free.
    pub(super) fn settle(&mut self, now: Now) {
        let is_over = |server: &Server| server.gone.is_some_and(|at| at <= now.elapsed);
        let over = self.servers.values().filter(|server| is_over(server));
        let free: Vec<_> = over.filter_map(|server| server.ipv4.clone()).collect();
        self.setup.settings.addresses.extend(free);
        self.servers.retain(|_, server| !is_over(server));
    }

    pub(super) fn server(&self, id: u64) -> Option<&Server> {
        self.servers.get(&id)
    }

    /// The server of a name; names are unique in a project.
    pub(super) fn named(&self, name: &str) -> Option<&Server> {
        self.servers.values().find(|server| server.name == name)
    }

    pub(super) fn is_visible(&self, server: &Server, now: Now) -> bool {
        server.accepted + self.setup.settings.reads_lag() <= now.elapsed
    }

    /// Why off in between: a server is created, and then it is started by an action of its own;
    /// nothing that is documented says that nobody sees it in the meantime.
    pub(super) fn status(&self, server: &Server, now: Now) -> &'static str {
        let boot = self.setup.settings.boot();
        let age = now.elapsed.saturating_sub(server.accepted);
        if server.deleting {
            "deleting"
        } else if server.off {
            "off"
        } else if age < boot / 3 {
            "initializing"
        } else if age < boot * 2 / 3 {
            "off"
        } else if age < boot {
            "starting"
        } else {
            "running"
        }
    }

    /// All servers that can be seen, in the order of creation.
    pub(super) fn visible(&self, now: Now) -> Vec<&Server> {
        let servers = self.servers.values();
        servers
            .filter(|server| self.is_visible(server, now))
            .collect()
    }

    pub(super) fn action(&self, id: u64) -> Option<&Action> {
        self.actions.iter().find(|action| action.id == id)
    }

    pub(super) fn actions_of(&self, server: u64) -> Vec<&Action> {
        let actions = self.actions.iter();
        actions.filter(|action| action.server == server).collect()
    }

    /// Accepts a create: the server, the action that creates it, and the one that starts it. With
    /// a failure the first comes to nothing, and the server goes again.
    pub(super) fn create(
        &mut self,
        location: &str,
        body: Value,
        failure: Option<Failure>,
        now: Now,
    ) -> (Server, Vec<Action>) {
        let id = self.next_id();
        let flag = |at: &str| body.pointer(at).and_then(Value::as_bool);
        let wants_ipv4 = flag("/public_net/enable_ipv4").unwrap_or(true);
        let number = self.ever.len();
        let fresh = || format!("198.18.{}.{}", number / 250, number % 250 + 1);
        let ipv4 = wants_ipv4.then(|| self.setup.settings.addresses.pop().unwrap_or_else(fresh));
        let boot = self.setup.settings.boot();
        let failed = failure.is_some();
        let server = Server {
            id,
            name: text(&body, "name"),
            location: location.into(),
            created: now.wall,
            ipv4,
            accepted: now.elapsed,
            gone: failed.then(|| now.elapsed + boot),
            deleting: false,
            off: false,
            body: body.clone(),
        };
        if !failed {
            self.ever.push(Ever {
                id,
                name: server.name.clone(),
                location: location.into(),
                labels: body
                    .get("labels")
                    .cloned()
                    .unwrap_or_else(|| Map::new().into()),
                request: body,
            });
        }
        self.servers.insert(id, server.clone());
        let created = if failed { boot } else { boot / 3 };
        let mut actions = vec![self.start("create_server", id, created, failure.clone(), now)];
        actions.push(self.start("start_server", id, boot, failure, now));
        (server, actions)
    }

    /// Begins to delete a server.
    pub(super) fn delete(&mut self, id: u64, now: Now) -> Option<(Server, Action)> {
        let stop = self.setup.settings.stop();
        let server = self.servers.get_mut(&id)?;
        server.deleting = true;
        server.gone = Some(now.elapsed + stop);
        let server = server.clone();
        Some((server, self.start("delete_server", id, stop, None, now)))
    }

    /// Switches a server off, as somebody in the console does.
    pub(super) fn switch_off(&mut self, name: &str) -> bool {
        let mut servers = self.servers.values_mut();
        let server = servers.find(|server| server.name == name);
        server.map(|server| server.off = true).is_some()
    }

    /// Removes a server at once, as somebody in the console does.
    pub(super) fn remove(&mut self, name: &str, now: Now) -> bool {
        let mut servers = self.servers.values_mut();
        let server = servers.find(|server| server.name == name);
        server
            .map(|server| server.gone = Some(now.elapsed))
            .is_some()
    }

    pub(super) fn set_address(&mut self, id: u64, address: String) {
        if let Some(server) = self.servers.get_mut(&id) {
            server.ipv4 = Some(address);
        }
    }

    fn start(
        &mut self,
        command: &'static str,
        server: u64,
        takes: Duration,
        failure: Option<Failure>,
        now: Now,
    ) -> Action {
        let action = Action {
            id: self.next_id(),
            command,
            server,
            started: now.wall,
            ends: now.elapsed + takes,
            failure,
        };
        self.actions.push(action.clone());
        action
    }
}

/// A field that is text, or nothing.
pub(super) fn text(body: &Value, field: &str) -> String {
    let text = body.get(field).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}
