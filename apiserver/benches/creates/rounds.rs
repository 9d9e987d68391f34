//! The rounds: every subject in turn, again and again, so that whatever the machine does besides hits all.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use devcluster::Cluster;
use runtime_kit::Clock;

use crate::flags::Plan;
use crate::load::{self, Load, Sample};
use crate::machine;
use crate::progress::Progress;
use crate::subjects::{CLIENTS, Route, Subject, Who};
use crate::sync;

/// What is measured: server, route, number of clients.
pub(crate) type Cell = (Who, Route, usize);

/// All measurements of a run.
#[derive(Default)]
pub(crate) struct Measured {
    /// One sample per round.
    pub(crate) samples: BTreeMap<Cell, Vec<Sample>>,
    /// Why a cell has no figure.
    pub(crate) failures: BTreeMap<Cell, String>,
    /// Milliseconds that a sync took, per round.
    pub(crate) syncs: Vec<f64>,
}

const QUIET_PATIENCE: Duration = Duration::from_millis(700);
/// In which a thousand callers are made known.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Runs all rounds.
pub(crate) async fn run(
    plan: &Plan,
    cluster: &Cluster,
    subjects: &[Subject],
    disk: &Path,
    clock: &Arc<dyn Clock>,
    progress: &Progress,
) -> Result<Measured> {
    let mut measured = Measured::default();
    for round in 0..plan.rounds() {
        progress.say(&format!("round {} of {}", round + 1, plan.rounds()));
        measured.syncs.push(sync::sync_milliseconds(disk, clock)?);
        for clients in CLIENTS.into_iter().filter(|&clients| plan.wants(clients)) {
            for route in [Route::Aggregator, Route::Direct] {
                let mut turn: Vec<&Subject> = subjects
                    .iter()
                    .filter(|subject| subject.route == route && subject.clients.contains(&clients))
                    .collect();
                // Nobody always follows the same neighbour's garbage.
                let shift = usize::from(round) % turn.len().max(1);
                turn.rotate_left(shift);
                for subject in turn {
                    cluster.check_running()?;
                    measure(plan, subject, clients, round, clock, &mut measured).await?;
                }
            }
        }
    }
    Ok(measured)
}

async fn measure(
    plan: &Plan,
    subject: &Subject,
    clients: usize,
    round: u16,
    clock: &Arc<dyn Clock>,
    measured: &mut Measured,
) -> Result<()> {
    let cell = (subject.who, subject.route, clients);
    if measured.failures.contains_key(&cell) {
        return Ok(());
    }
    let label = format!("{}, {clients} clients", subject.label());
    let route = match subject.route {
        Route::Aggregator => "a",
        Route::Direct => "d",
    };
    let load = Load {
        clients,
        warm_up: plan.warm_up(),
        measured: plan.measured(),
        limit: subject.limit,
        prefix: format!("r{round}-{route}{clients}"),
    };
    if let Some(callers) = subject.introduce {
        let introduction = Load {
            warm_up: Duration::ZERO,
            measured: INTRODUCTION,
            limit: callers,
            prefix: format!("i{round}"),
            ..load.clone()
        };
        let outcome = load::run(&subject.target, &introduction, clock).await?;
        subject
            .cleaning
            .clean(outcome.names)
            .await
            .with_context(|| label.clone())?;
    }
    machine::wait_until_quiet(QUIET_PATIENCE, clock).await?;
    let outcome = load::run(&subject.target, &load, clock)
        .await
        .with_context(|| label.clone())?;
    match outcome.sample {
        Ok(sample) => measured.samples.entry(cell).or_default().push(sample),
        Err(error) => {
            measured.failures.insert(cell, format!("{error:#}"));
        },
    }
    subject
        .cleaning
        .clean(outcome.names)
        .await
        .with_context(|| format!("after {label}"))
}

// === impl Measured ===

impl Measured {
    /// Median over the rounds of something in the samples of a cell; `None` when one failed.
    pub(crate) fn median(&self, cell: Cell, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        if self.failures.contains_key(&cell) {
            return None;
        }
        let samples = self.samples.get(&cell)?;
        Some(machine::median(samples.iter().map(of).collect()))
    }

    /// Median time of a sync, milliseconds.
    pub(crate) fn sync(&self) -> f64 {
        machine::median(self.syncs.clone())
    }
}
