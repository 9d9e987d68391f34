//! What can be chosen on the command line or by environment.

use std::time::Duration;

use clap::{Args, Parser};

/// Measures proxy-operator with a fleet of mock proxies on a real control plane.
#[derive(Debug, Parser)]
#[command(name = "fleet")]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) plan: Plan,
}

/// How much is measured.
#[derive(Debug, Clone, Args)]
pub(crate) struct Plan {
    /// Smoke run: a small fleet, probed often, for a short time. Its figures mean little.
    #[arg(long, env = "FLEET_BENCH_QUICK")]
    quick: bool,
    /// Proxies in the fleet.
    #[arg(long, env = "FLEET_BENCH_PROXIES", value_parser = clap::value_parser!(u16).range(10..=10_000))]
    proxies: Option<u16>,
    /// Leases per proxy of the memory rows.
    #[arg(long, env = "FLEET_BENCH_LEASES", value_parser = clap::value_parser!(u16).range(1..=100))]
    leases: Option<u16>,
    /// Seconds that the steady state is watched.
    #[arg(long, env = "FLEET_BENCH_SECONDS", value_parser = clap::value_parser!(u16).range(5..=3600))]
    seconds: Option<u16>,
    /// Keep logs and data of everything that ran, and print where they are.
    #[arg(long, env = "FLEET_BENCH_KEEP")]
    pub(crate) keep: bool,
    /// Set by cargo; without meaning here.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

impl Plan {
    /// Proxies in the fleet.
    pub(crate) fn proxies(&self) -> usize {
        usize::from(self.proxies.unwrap_or(if self.quick { 40 } else { 1000 }))
    }

    /// Leases that a proxy may hold, and holds in the memory rows.
    pub(crate) fn leases_per_proxy(&self) -> u16 {
        self.leases.unwrap_or(10)
    }

    /// For how long the steady state is watched.
    pub(crate) fn window(&self) -> Duration {
        let usual = if self.quick { 10 } else { 60 };
        Duration::from_secs(u64::from(self.seconds.unwrap_or(usual)))
    }

    /// Time between two probes of a proxy; the API's default unless in a hurry.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(if self.quick { 3 } else { 30 })
    }

    /// How long a probe may take; the API's default unless in a hurry.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(if self.quick { 1 } else { 5 })
    }
}
