//! How fast leases are created, beside peers, on a real control plane. `docs/benchmarks.md` says what each
//! row means and why the comparison is fair; `make bench` runs this.
//!
//! ```text
//! setup, servers    control plane, caller, fleet; lease-apiserver, the instant peer, sample-apiserver
//! subjects          who is measured, by which route, with which requests
//! rounds -> load    every subject in turn; clients in a closed loop
//! memory, sync      resident memory; what a sync costs
//! report            rows, goals, table, target/bench/creates.json
//! ```

#[path = "../../../crates/aggregated-api/benches/common/connect.rs"]
mod connect;
mod flags;
mod instant;
#[path = "../../../crates/aggregated-api/benches/common/load.rs"]
mod load;
#[path = "../../../crates/aggregated-api/benches/common/machine.rs"]
mod machine;
mod memory;
#[path = "../../../crates/aggregated-api/benches/common/progress.rs"]
mod progress;
mod report;
mod rounds;
mod servers;
mod setup;
mod subjects;
mod sync;
#[path = "../../../crates/aggregated-api/benches/common/table.rs"]
#[expect(dead_code, reason = "nothing here has to be none at all")]
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser as _;
use devcluster::{Cluster, Options};
use runtime_kit::Clock;
use runtime_kit::clock::SystemClock;

use crate::flags::{Flags, Plan, Role};
use crate::memory::Resident;
use crate::progress::Progress;
use crate::subjects::{Parts, Route, Subject, Who};

#[tokio::main]
async fn main() -> ExitCode {
    runtime_kit::tls::install_default_provider();
    run().await.unwrap_or_else(|error| {
        progress::fail(&error);
        ExitCode::FAILURE
    })
}

async fn run() -> Result<ExitCode> {
    let Flags { role, plan } = Flags::parse();
    match role {
        Some(Role::Instant(flags)) => {
            instant::serve(flags).await?;
            Ok(ExitCode::SUCCESS)
        },
        None => tokio::select! {
            outcome = Box::pin(benchmark(&plan)) => outcome,
            // Why caught: so that data is removed and processes end before this one does.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        },
    }
}

async fn benchmark(plan: &Plan) -> Result<ExitCode> {
    let clock = SystemClock::shared();
    let progress = Progress::new(&clock);
    let bench = servers::bench_folder();
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
    let (measured, memory) = on_cluster(plan, &cluster, work.path(), &clock, &progress).await?;
    drop(cluster);

    let rows = report::rows(&measured, &memory);
    let file = bench.join("creates.json");
    table::write(&rows, &file)?;
    table::print(&rows);
    report::print(&measured);
    progress.say(&format!("written to {}", file.display()));
    Ok(if measured.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn on_cluster(
    plan: &Plan,
    cluster: &Cluster,
    folder: &Path,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<(rounds::Measured, Vec<Resident>)> {
    let client = cluster.client().await?;
    setup::install_definitions(&client).await?;
    let groups = [
        crawl_api::lease::LEASE_GROUP,
        instant::GROUP,
        setup::CRD_GROUP,
        devcluster::SAMPLE_GROUP,
    ];
    setup::create_caller(&client, &groups).await?;

    progress.say("starting lease-apiserver, sample-apiserver and the instant peer");
    let ours = servers::start_lease_apiserver(cluster, folder).await?;
    let sample = devcluster::sample_apiserver(cluster).await?;
    // Last: that it is watched means that the others are.
    let instant = servers::start_instant_peer(cluster).await?;
    let mut memory = vec![memory::resident(&ours.process, "idle", clock).await?];
    memory.extend(memory::resident_operator(cluster, folder, "idle", clock).await?);

    progress.say(&format!("creating {} proxies", plan.proxies()));
    setup::create_fleet(&client, plan.proxies(), plan.max_leases()).await?;
    setup::wait_for_endpoints(cluster, plan.proxies()).await?;
    let with_fleet = format!("with {} proxies", plan.proxies());
    memory.push(memory::resident(&ours.process, &with_fleet, clock).await?);

    let token = cluster
        .service_account_token(setup::NAMESPACE, setup::ACCOUNT)
        .await?;
    let account = setup::account_headers(&client).await?;
    let parts = Parts {
        cluster,
        token: &token,
        account: &account,
        lease_port: ours.port,
        instant_port: instant.port,
        sample: &sample,
        slots: plan.slots(),
    };
    let mut subjects = parts.subjects()?;

    let answer = real_answer(&subjects, clock).await?;
    let direct = subject(&subjects, Who::Ours, Route::Direct)?;
    memory.extend(memory::with_leases(cluster, folder, direct, &ours.process, clock).await?);
    progress.say("waiting for kube-controller-manager to watch everything");
    servers::prepare_instant_peer(cluster, &instant, answer).await?;
    if let Some(only) = &plan.only {
        subjects.retain(|subject| subject.label().contains(only.as_str()));
    }
    let measured = rounds::run(plan, cluster, &subjects, folder, clock, progress).await?;
    memory.push(memory::resident(&ours.process, "after the rounds, leases deleted", clock).await?);
    for process in [&ours.process, &instant.process, &sample.process] {
        process.check_running()?;
    }
    Ok((measured, memory))
}

/// What lease-apiserver answers to a create, in the group of the instant peer: so both answers have the
/// same size.
async fn real_answer(subjects: &[Subject], clock: &Arc<dyn Clock>) -> Result<String> {
    let direct = subject(subjects, Who::Ours, Route::Direct)?;
    let name = "the-real-answer";
    let mut created = load::create_one(&direct.target, name).await;
    // A role that has just been made takes a moment to be known.
    for _ in 0..50 {
        if created.is_ok() {
            break;
        }
        clock.sleep(Duration::from_millis(200)).await;
        created = load::create_one(&direct.target, name).await;
    }
    let answer = String::from_utf8(created.context("cannot create a lease")?.to_vec())?;
    direct.cleaning.clean(vec![name.to_owned()]).await?;
    Ok(answer.replacen(crawl_api::lease::LEASE_GROUP, instant::GROUP, 1))
}

fn subject(subjects: &[Subject], who: Who, route: Route) -> Result<&Subject> {
    subjects
        .iter()
        .find(|subject| subject.who == who && subject.route == route)
        .with_context(|| format!("no subject {} {}", who.name(), route.name()))
}
