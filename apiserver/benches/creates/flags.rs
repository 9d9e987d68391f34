//! What can be chosen on the command line or by environment, and what the process itself is: the benchmark,
//! or the instant peer that it starts as a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Measures lease creates against peers on a real control plane.
#[derive(Debug, Parser)]
#[command(name = "creates")]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    #[command(flatten)]
    pub(crate) plan: Plan,
}

/// Processes that the benchmark starts from its own program.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Serve the watched instant peer.
    #[command(hide = true)]
    Instant(InstantFlags),
}

/// How the instant peer is started.
#[derive(Debug, Args)]
pub(crate) struct InstantFlags {
    /// Loopback port to listen on.
    #[arg(long)]
    pub(crate) port: u16,
    /// Serving certificate, PEM.
    #[arg(long)]
    pub(crate) cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    pub(crate) key: PathBuf,
}

/// How much is measured.
#[derive(Debug, Clone, Args)]
pub(crate) struct Plan {
    /// Smoke run: one short round on a small fleet, well under 90 seconds. Its figures mean little.
    #[arg(long, env = "CREATES_BENCH_QUICK")]
    quick: bool,
    /// Rounds; every figure is the median over them.
    #[arg(long, env = "CREATES_BENCH_ROUNDS", value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: Option<u16>,
    /// Seconds that each subject is measured for in each round, at each number of clients.
    #[arg(long, env = "CREATES_BENCH_SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Proxies in the fleet.
    #[arg(long, env = "CREATES_BENCH_PROXIES", value_parser = clap::value_parser!(u16).range(1..=20_000))]
    proxies: Option<u16>,
    /// Leases that a proxy may hold at once.
    #[arg(long, env = "CREATES_BENCH_MAX_LEASES", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    max_leases: Option<u16>,
    /// Measure only subjects whose name contains this.
    #[arg(long, env = "CREATES_BENCH_ONLY")]
    pub(crate) only: Option<String>,
    /// Measure only with these numbers of clients.
    #[arg(
        long,
        env = "CREATES_BENCH_CLIENTS",
        value_delimiter = ',',
        value_name = "NUMBER,…"
    )]
    clients: Vec<usize>,
    /// Keep logs and data of everything that ran, and print where they are.
    #[arg(long, env = "CREATES_BENCH_KEEP")]
    pub(crate) keep: bool,
    /// Set by cargo; without meaning here.
    #[arg(long, hide = true)]
    bench: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.1..=600.0).contains(&seconds) {
        return Err("must be between 0.1 and 600".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

// === impl Plan ===

impl Plan {
    /// Rounds to run.
    pub(crate) fn rounds(&self) -> u16 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 5 })
    }

    /// Time that counts, per subject, number of clients and round.
    pub(crate) fn measured(&self) -> Duration {
        let usual = if self.quick { 500 } else { 1750 };
        self.seconds.unwrap_or_else(|| Duration::from_millis(usual))
    }

    /// Time before it, in which connections, caches and heaps get warm.
    pub(crate) fn warm_up(&self) -> Duration {
        self.measured() / 5
    }

    /// Proxies in the fleet.
    pub(crate) fn proxies(&self) -> usize {
        usize::from(self.proxies.unwrap_or(if self.quick { 200 } else { 1000 }))
    }

    /// Slots per proxy.
    pub(crate) fn max_leases(&self) -> u16 {
        self.max_leases.unwrap_or(if self.quick { 100 } else { 40 })
    }

    /// Whether to measure with this number of clients.
    pub(crate) fn wants(&self, clients: usize) -> bool {
        self.clients.is_empty() || self.clients.contains(&clients)
    }

    /// Leases that the fleet can hold.
    pub(crate) fn slots(&self) -> usize {
        self.proxies() * usize::from(self.max_leases())
    }
}
