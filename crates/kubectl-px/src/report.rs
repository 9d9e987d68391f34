//! `kubectl px lease report`: says how a request through a leased proxy went, for scripts.

use std::process::ExitCode;

use crawl_api::lease::LEASE_GROUP;
use crawl_api::report::{LeaseReport, ReportResult};
use runtime_kit::SystemClock;

use crate::failure::Failure;
use crate::kube_flags::KubeFlags;
use crate::leases::Leases;
use crate::mark::{exit, print};

/// `kubectl px lease report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// Name of the lease.
    #[arg(value_name = "LEASE")]
    name: String,

    /// OK if an answer came through the proxy, whatever its status; Error if none did.
    #[arg(long, value_enum)]
    result: ResultFlag,

    /// Status code of the answer.
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u16).range(100..=599))]
    http_status: Option<u16>,

    #[command(flatten)]
    kube: KubeFlags,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ResultFlag {
    #[value(name = "OK")]
    Ok,
    #[value(name = "Error")]
    Error,
}

impl Report {
    /// Runs the command; the status is 1 for every failure, with the reason on standard error.
    pub(crate) async fn run(self) -> ExitCode {
        exit(self.report().await)
    }

    async fn report(&self) -> Result<(), Failure> {
        let session = self.kube.session().await.map_err(Failure::Configure)?;
        let result = match self.result {
            ResultFlag::Ok => ReportResult::Ok,
            ResultFlag::Error => ReportResult::Error,
        };
        let report = LeaseReport::new(result, self.http_status);
        let leases = Leases::new(&session, SystemClock::shared());
        leases.report(&self.name, &report).await?;
        print(&format!(
            "proxylease.{LEASE_GROUP}/{} reported\n",
            self.name
        ))
    }
}
