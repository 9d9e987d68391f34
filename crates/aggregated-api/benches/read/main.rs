//! Reads and watches of the library's sample server beside the Go sample-apiserver, on one control plane in
//! one run. `docs/benchmarks.md` says what each row means and why the comparison is fair; `make bench`
//! runs this.
//!
//! ```text
//! subjects, serve, objects    the servers, each a process of its own, and the same objects for all
//! reads, watches, starts      what is measured; every server in turn, round after round
//! figures                     rows, goals, table, target/bench/read.json
//! ```

#[path = "../common/connect.rs"]
mod connect;
mod figures;
mod flags;
#[path = "../common/machine.rs"]
mod machine;
mod objects;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/progress.rs"]
mod progress;
mod reads;
mod serve;
mod starts;
mod subjects;
#[path = "../common/table.rs"]
#[expect(dead_code, reason = "its goal is an upper bound of a ratio")]
mod table;
#[path = "../../examples/wardle/wardle/mod.rs"]
#[expect(
    dead_code,
    reason = "what else the example and the conformance runner use"
)]
mod wardle;
mod watches;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::store::Store;
use aggregated_api::store::etcd::{self, EtcdStore};
use aggregated_api::store::redb::{self, RedbStore};
use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use devcluster::{Cluster, Options};
use runtime_kit::Clock;
use runtime_kit::clock::SystemClock;

use crate::figures::Figures;
use crate::flags::{Flags, Plan, Role};
use crate::progress::Progress;
use crate::subjects::{Data, Place, Who};

const ALL: [Who; 3] = [Who::Redb, Who::Sample, Who::Etcd];
/// Who is measured where the store makes no difference, or would take long to fill.
const BOTH: [Who; 2] = [Who::Redb, Who::Sample];
/// "Ready <= 1 s after start" with 100,000 objects.
const READY_SECONDS: f64 = 1.0;
const QUIET_PATIENCE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    runtime_kit::tls::install_default_provider();
    let Flags { role, plan } = Flags::parse();
    let outcome = match role {
        Some(Role::Serve(flags)) => serve::serve(flags).await.map(|()| ExitCode::SUCCESS),
        // Why: `cargo test --all-targets` runs benchmarks too, without this.
        None if !plan.bench => return ExitCode::SUCCESS,
        None => tokio::select! {
            outcome = Box::pin(benchmark(&plan)) => outcome,
            // Why caught: so that data is removed and processes end before this one does.
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        },
    };
    outcome.unwrap_or_else(|error| {
        progress::fail(&error);
        ExitCode::FAILURE
    })
}

async fn benchmark(plan: &Plan) -> Result<ExitCode> {
    let clock = SystemClock::shared();
    let progress = Progress::new(&clock);
    let bench = bench_folder()?;
    std::fs::create_dir_all(&bench).context("cannot create the folder of the results")?;
    let mut work = tempfile::Builder::new()
        .prefix("work-")
        .tempdir_in(&bench)?;
    work.disable_cleanup(plan.keep);
    machine::require_disk(work.path())?;
    if plan.keep {
        progress.say(&format!("logs and data: {}", work.path().display()));
    }

    progress.say("starting a control plane");
    let options = Options::default()
        .durable()
        .dir(work.path().join("cluster"));
    let cluster = Cluster::start(options).await?;
    let figures = measure(plan, &cluster, work.path(), &clock, &progress).await?;
    drop(cluster);

    let rows = figures.rows(&[(starts::ready(100_000), READY_SECONDS)]);
    let file = bench.join("read.json");
    table::write(&rows, &file)?;
    table::print(&rows);
    figures.print_spread();
    progress.say(&format!("written to {}", file.display()));
    Ok(if figures.complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn measure(
    plan: &Plan,
    cluster: &Cluster,
    folder: &Path,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<Figures> {
    let place = Place::new(cluster, folder, clock).await?;
    progress.say("filling the stores");
    fill(&place, Data::Some, reads::OBJECTS).await?;
    if plan.wants("start") {
        fill(&place, Data::Many, plan.objects()).await?;
    }
    let mut figures = Figures::default();
    if plan.wants("reads") {
        let mut servers = Vec::new();
        for who in ALL {
            let running = place.start(who, Data::Some).await?;
            reads::check(&running, reads::OBJECTS)
                .await
                .with_context(|| who.name())?;
            servers.push((who, running));
        }
        for round in 0..plan.rounds() {
            progress.say(&format!("reads, round {}", round + 1));
            // Nobody always follows the same neighbour's garbage.
            servers.rotate_left(1);
            for (who, running) in &servers {
                machine::wait_until_quiet(QUIET_PATIENCE, clock).await?;
                reads::round(&place, *who, running, plan.measured(), &mut figures).await?;
            }
        }
    }
    if plan.wants("watches") {
        for watchers in plan.watchers() {
            for round in 0..plan.rounds() {
                progress.say(&format!("{watchers} watchers, round {}", round + 1));
                for who in turn(round) {
                    machine::wait_until_quiet(QUIET_PATIENCE, clock).await?;
                    watches::round(&place, who, watchers, round, &mut figures)
                        .await
                        .with_context(|| format!("{watchers} watchers of {}", who.name()))?;
                }
            }
        }
    }
    if plan.wants("start") {
        for round in 0..plan.rounds() {
            progress.say(&format!("starts, round {}", round + 1));
            for who in turn(round) {
                starts::round(&place, who, plan.objects(), &mut figures)
                    .await
                    .with_context(|| format!("start of {}", who.name()))?;
            }
        }
    }
    cluster.check_running()?;
    Ok(figures)
}

/// Each server first in its turn.
fn turn(round: u16) -> [Who; 2] {
    let mut turn = BOTH;
    turn.rotate_left(usize::from(round) % BOTH.len());
    turn
}

/// Fills the stores of all servers with the same objects; ours in etcd only where they are few.
async fn fill(place: &Place<'_>, data: Data, count: u32) -> Result<()> {
    let file = RedbStore::open(place.redb(data), redb::Options::default())?;
    let redb: Arc<dyn Store> = Arc::new(file);
    objects::fill(&redb, count).await.context("into redb")?;
    drop(redb);
    let prefix = Place::prefix(Who::Sample, data);
    objects::fill_peer(place.etcd(), &prefix, count)
        .await
        .context("into the peer's etcd")?;
    if data == Data::Some {
        let options = etcd::Options::new(place.etcd(), Place::prefix(Who::Etcd, data));
        let etcd: Arc<dyn Store> = Arc::new(EtcdStore::connect(options).await?);
        objects::fill(&etcd, count).await.context("into etcd")?;
    }
    Ok(())
}

/// `<target>/bench`, where results and data go.
fn bench_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    // <target>/release/deps/read-<hash>
    let Some(target) = program.ancestors().nth(3) else {
        bail!("{} is not in a target folder", program.display());
    };
    Ok(target.join("bench"))
}
