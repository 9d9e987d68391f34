//! What can be chosen on the command line or by environment, and what the process itself is: the benchmark,
//! or our server, which it starts as a process of its own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Measures reads of the library's sample server against the Go sample-apiserver.
#[derive(Debug, Parser)]
#[command(name = "read")]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    #[command(flatten)]
    pub(crate) plan: Plan,
}

/// Processes that the benchmark starts from its own program.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Serve the sample group on the library.
    #[command(hide = true)]
    Serve(ServeFlags),
}

/// How our server is started.
#[derive(Debug, Args)]
pub(crate) struct ServeFlags {
    /// How to reach the cluster.
    #[arg(long)]
    pub(crate) kubeconfig: PathBuf,
    /// Loopback port to listen on.
    #[arg(long)]
    pub(crate) port: u16,
    /// Serving certificate, PEM.
    #[arg(long)]
    pub(crate) cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    pub(crate) key: PathBuf,
    /// A file of redb.
    #[arg(long, required_unless_present = "etcd")]
    pub(crate) redb: Option<PathBuf>,
    /// The URL of an etcd.
    #[arg(long, requires = "prefix")]
    pub(crate) etcd: Option<String>,
    /// What keys in etcd begin with.
    #[arg(long)]
    pub(crate) prefix: Option<String>,
}

/// How much is measured.
#[derive(Debug, Clone, Args)]
pub(crate) struct Plan {
    /// Smoke run: one round, fewer objects and watchers. Its figures mean little.
    #[arg(long, env = "READ_BENCH_QUICK")]
    quick: bool,
    /// Rounds; every figure is the median over them.
    #[arg(long, env = "READ_BENCH_ROUNDS", value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: Option<u16>,
    /// Milliseconds that each kind of read is measured for, per server and round.
    #[arg(long, env = "READ_BENCH_MILLISECONDS", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    milliseconds: Option<u64>,
    /// Objects in the stores that servers start with.
    #[arg(long, env = "READ_BENCH_OBJECTS", value_parser = clap::value_parser!(u32).range(10_000..=500_000))]
    objects: Option<u32>,
    /// Numbers of watchers.
    #[arg(
        long,
        env = "READ_BENCH_WATCHERS",
        value_delimiter = ',',
        value_name = "NUMBER,…"
    )]
    watchers: Vec<usize>,
    /// Measure only these: reads, watches, start.
    #[arg(
        long,
        env = "READ_BENCH_ONLY",
        value_delimiter = ',',
        value_name = "PART,…"
    )]
    only: Vec<String>,
    /// Keep logs and data of everything that ran, and print where they are.
    #[arg(long, env = "READ_BENCH_KEEP")]
    pub(crate) keep: bool,
    /// Set by cargo; without meaning here.
    #[arg(long, hide = true)]
    pub(crate) bench: bool,
}

impl Plan {
    /// Rounds to run.
    pub(crate) fn rounds(&self) -> u16 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// Time per kind of read, server and round.
    pub(crate) fn measured(&self) -> Duration {
        let usual = if self.quick { 300 } else { 1200 };
        Duration::from_millis(self.milliseconds.unwrap_or(usual))
    }

    /// Objects that servers start with.
    pub(crate) fn objects(&self) -> u32 {
        self.objects
            .unwrap_or(if self.quick { 20_000 } else { 100_000 })
    }

    /// Numbers of watchers.
    pub(crate) fn watchers(&self) -> Vec<usize> {
        match (self.watchers.is_empty(), self.quick) {
            (false, _) => self.watchers.clone(),
            (true, true) => vec![500],
            (true, false) => vec![1000, 10_000],
        }
    }

    /// Whether to measure this part.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
}
