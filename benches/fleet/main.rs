//! What a fleet of proxies costs proxy-operator and lease-apiserver, on a real control plane with mock
//! proxies. `docs/benchmarks.md` says what each row means; `make bench` runs this.
//!
//! ```text
//! peer              a bare client, which writes as many objects
//! site, leases      the processes, the fleet's leases
//! phases            what is measured, one after the other
//! span, scrape      what happened meanwhile: metrics, processor time, sockets
//! ```

#[path = "../../crates/aggregated-api/benches/common/connect.rs"]
mod connect;
mod flags;
mod leases;
#[path = "../../crates/aggregated-api/benches/common/load.rs"]
#[expect(
    dead_code,
    reason = "how fast leases are created is for another benchmark to tell"
)]
mod load;
#[path = "../../crates/aggregated-api/benches/common/machine.rs"]
#[expect(dead_code, reason = "there are no rounds to take the median of")]
mod machine;
mod peer;
mod phases;
#[path = "../../crates/aggregated-api/benches/common/process.rs"]
mod process;
#[path = "../../crates/aggregated-api/benches/common/progress.rs"]
mod progress;
mod scrape;
mod site;
mod span;
#[path = "../../crates/aggregated-api/benches/common/table.rs"]
#[expect(dead_code, reason = "its goals are upper bounds")]
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use devcluster::{Cluster, Options};
use runtime_kit::Clock;
use runtime_kit::clock::SystemClock;

use crate::flags::{Flags, Plan};
use crate::phases::Bench;
use crate::progress::Progress;
use crate::site::Site;
use crate::table::Row;

/// What kube-controller-manager may ask for in a second. Why so much: it deletes the members of a pool, at
/// 20 a second by default, and how long that takes is no figure of ours.
const COLLECTOR_RATE: [&str; 2] = ["--kube-api-qps=500", "--kube-api-burst=1000"];

#[tokio::main]
async fn main() -> ExitCode {
    runtime_kit::tls::install_default_provider();
    let Flags { plan } = Flags::parse();
    // Why: `cargo test --all-targets` runs benchmarks too, without this.
    if !plan.bench {
        return ExitCode::SUCCESS;
    }
    let outcome = tokio::select! {
        outcome = Box::pin(benchmark(&plan)) => outcome,
        // Why caught: so that data is removed and processes end before this one does.
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            progress::fail(&error);
            ExitCode::FAILURE
        },
    }
}

async fn benchmark(plan: &Plan) -> Result<()> {
    let clock = SystemClock::shared();
    let progress = Progress::new(&clock);
    let bench = site::bench_folder();
    std::fs::create_dir_all(&bench).context("cannot create the folder of the results")?;
    let mut work = tempfile::Builder::new()
        .prefix("work-")
        .tempdir_in(&bench)?;
    work.disable_cleanup(plan.keep);
    machine::require_disk(work.path())?;
    if plan.keep {
        progress.say(&format!("logs and data: {}", work.path().display()));
    }
    let (rows, outcome) = measure(plan, work.path(), &clock, &progress).await?;
    let file = bench.join("fleet.json");
    table::write(&rows, &file)?;
    table::print(&rows);
    progress.say(&format!("written to {}", file.display()));
    outcome
}

/// The rows, up to the first failure, and that failure.
async fn measure(
    plan: &Plan,
    folder: &Path,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<(Vec<Row>, Result<()>)> {
    progress.say("starting a control plane");
    let options = Options::default().durable().dir(folder.join("cluster"));
    let options = COLLECTOR_RATE
        .into_iter()
        .fold(options, Options::controller_manager_arg);
    let cluster = Cluster::start(options).await?;
    let client = site::prepare(&cluster).await?;
    progress.say("a bare client writes as many objects");
    let floor = peer::measure(&client, plan.proxies(), &**clock).await?;
    progress.say("starting mock-cloud, echo and lease-apiserver");
    let site = Site::start(cluster, client, folder, clock).await?;
    let mut bench = Bench {
        plan,
        site: &site,
        progress,
        rows: Vec::new(),
    };
    let outcome = bench.run(floor).await;
    Ok((bench.rows, outcome))
}
