//! The servers under test, and what can happen to them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::registry::cache::HistoryLimits;
use aggregated_api::store::Store;
use runtime_kit::clock::{Clock, SteppedClock};

use crate::child::{BACKING, CHILD};
use crate::client::Client;
use crate::common::Server;
use crate::truth::Revision;

/// Servers of one group on one store.
pub(crate) enum World {
    /// Replicas in this process, each with its own connection to the store.
    Here {
        stores: Vec<Arc<dyn Store>>,
        servers: Vec<Arc<Server>>,
        clock: SteppedClock,
        limits: HistoryLimits,
    },
    /// Processes.
    There {
        /// What the store is, as a child is told.
        backing: String,
        children: Vec<Running>,
    },
}

/// A process that serves.
pub(crate) struct Running {
    child: Child,
    client: Client,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl World {
    /// A server on each of these, which are one store.
    pub(crate) async fn here(stores: Vec<Arc<dyn Store>>, limits: HistoryLimits) -> Self {
        let clock = SteppedClock::default();
        let mut servers = Vec::new();
        for store in &stores {
            servers.push(start(store, &clock, limits).await);
        }
        Self::Here {
            stores,
            servers,
            clock,
            limits,
        }
    }

    /// So many processes on one store.
    pub(crate) async fn there(backing: String, replicas: usize) -> Self {
        let mut children = Vec::new();
        for _ in 0..replicas {
            children.push(spawn(&backing).await);
        }
        Self::There { backing, children }
    }

    pub(crate) fn replicas(&self) -> usize {
        match self {
            Self::Here { servers, .. } => servers.len(),
            Self::There { children, .. } => children.len(),
        }
    }

    pub(crate) fn client(&self, replica: usize) -> Client {
        match self {
            Self::Here { servers, .. } => Client::Here(Arc::clone(&servers[replica])),
            Self::There { children, .. } => children[replica].client.clone(),
        }
    }

    /// Ends a replica, by force if it is a process.
    pub(crate) fn kill(&mut self, replica: usize) {
        if let Self::There { children, .. } = self {
            children[replica].child.kill().unwrap();
        }
    }

    /// Starts a replica anew.
    pub(crate) async fn start(&mut self, replica: usize) {
        match self {
            Self::Here {
                stores,
                servers,
                clock,
                limits,
            } => servers[replica] = start(&stores[replica], clock, *limits).await,
            Self::There { backing, children } => {
                // Why first: a file has one owner.
                children[replica].child.wait().unwrap();
                children[replica] = spawn(backing).await;
            },
        }
    }

    /// Lets time pass, where it can be told to.
    pub(crate) fn advance(&self, by: Duration) -> bool {
        match self {
            Self::Here { clock, .. } => {
                clock.advance(by);
                true
            },
            Self::There { .. } => false,
        }
    }

    /// What time it is, where it can be told.
    pub(crate) fn elapsed(&self) -> Duration {
        match self {
            Self::Here { clock, .. } => clock.elapsed(),
            Self::There { .. } => Duration::ZERO,
        }
    }

    /// Forgets history, where it can be told to.
    pub(crate) async fn compact(&self, revision: Revision) -> bool {
        match self {
            Self::Here { stores, .. } => {
                stores[0].compact(revision).await.unwrap();
                true
            },
            Self::There { .. } => false,
        }
    }

    /// How many changes a watcher may be behind and still be served.
    pub(crate) fn kept_changes(&self) -> usize {
        match self {
            Self::Here { limits, .. } => limits.changes,
            Self::There { .. } => HistoryLimits::default().changes,
        }
    }
}

async fn start(store: &Arc<dyn Store>, clock: &SteppedClock, limits: HistoryLimits) -> Arc<Server> {
    Arc::new(Server::with(Arc::clone(store), Arc::new(clock.clone()), limits).await)
}

/// This test binary, as a server.
async fn spawn(backing: &str) -> Running {
    let backing = backing.to_owned();
    let spawned = tokio::task::spawn_blocking(move || {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([CHILD, "--exact", "--nocapture"])
            .env(BACKING, backing)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("listens on ")?;
            Some(address.parse().unwrap())
        });
        (child, address.expect("a server that starts"))
    });
    let (child, address) = spawned.await.unwrap();
    Running {
        child,
        client: Client::there(address),
    }
}
