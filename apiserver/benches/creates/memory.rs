//! Resident memory of both binaries: idle, with the fleet, and with a thousand leases.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use devcluster::{Cluster, Process};
use runtime_kit::Clock;

use crate::load::{self, Load};
use crate::machine;
use crate::servers;
use crate::subjects::Subject;

/// Leases of the row "with 1,000 leases".
const LEASES: usize = 1000;
/// After which a process has done what a change made it do.
const SETTLING: Duration = Duration::from_secs(3);

/// A figure.
pub(crate) struct Resident {
    /// Of what, and in which state.
    pub(crate) of: String,
    /// MiB.
    pub(crate) mib: f64,
}

/// Reads the memory of `process` once the machine has become quiet.
pub(crate) async fn resident(
    process: &Process,
    state: &str,
    clock: &Arc<dyn Clock>,
) -> Result<Resident> {
    clock.sleep(Duration::from_millis(500)).await;
    machine::wait_until_quiet(SETTLING, clock).await?;
    process.check_running()?;
    Ok(Resident {
        of: format!("{} {state}", process.name()),
        mib: machine::resident_mib(process.pid())?,
    })
}

/// proxy-operator in one state of the cluster, if it was built.
pub(crate) async fn resident_operator(
    cluster: &Cluster,
    folder: &Path,
    state: &str,
    clock: &Arc<dyn Clock>,
) -> Result<Option<Resident>> {
    let Some(operator) = servers::start_operator(cluster, folder).await? else {
        return Ok(None);
    };
    let figure = resident(&operator, state, clock).await?;
    operator
        .terminate()
        .await
        .context("proxy-operator does not stop")?;
    Ok(Some(figure))
}

/// Both binaries with a thousand leases of `subject`, which are gone afterwards.
pub(crate) async fn with_leases(
    cluster: &Cluster,
    folder: &Path,
    subject: &Subject,
    ours: &Process,
    clock: &Arc<dyn Clock>,
) -> Result<Vec<Resident>> {
    let load = Load {
        clients: 16,
        warm_up: Duration::ZERO,
        measured: Duration::from_mins(1),
        limit: LEASES.min(subject.limit),
        prefix: "memory".to_owned(),
    };
    let outcome = load::run(&subject.target, &load, clock).await?;
    outcome.sample.context("cannot create leases")?;
    let mut figures = vec![resident(ours, "with the fleet and 1,000 leases", clock).await?];
    let operator = "with the fleet and 1,000 leases";
    figures.extend(resident_operator(cluster, folder, operator, clock).await?);
    subject.cleaning.clean(outcome.names).await?;
    Ok(figures)
}
