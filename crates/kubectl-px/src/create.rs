//! `kubectl create lease`: takes one lease and prints it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use kube::api::PostParams;
use runtime_kit::SystemClock;

use crate::environment::BypassFlags;
use crate::failure::Failure;
use crate::kube_flags::KubeFlags;
use crate::lease_flags::{LeaseFlags, Naming};
use crate::leases::Leases;
use crate::output::{DryRun, OutputFormat, render_lease, render_object};
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  # Take a proxy of pool eu for five minutes
  kubectl create lease --pool eu --ttl 5m

  # Fetch one page through a proxy that is good for that site
  curl -x \"$(kubectl create lease --pool eu --target shop.example.com -o url)\" https://shop.example.com/

  # Wait up to 30 seconds for a free proxy with these labels, and use it in this shell
  eval \"$(kubectl create lease -l geo=eu,tier!=free --wait 30s -o env)\"

  # Give it back
  kubectl delete proxylease shop-0

  # Print the object instead of creating it
  kubectl create lease shop-0 --pool eu --dry-run=client -o yaml";

/// Take a lease on a crawling proxy.
///
/// Creating the lease takes the proxy, deleting it gives the proxy back. The lease ends by itself
/// when its time is up; in a pod with a bound token also when the pod ends. Without NAME the server
/// makes one up.
#[derive(Debug, clap::Parser)]
#[command(
    name = "kubectl-create-lease",
    bin_name = "kubectl create lease",
    version,
    after_help = EXAMPLES
)]
pub(crate) struct CreateLease {
    #[command(flatten)]
    lease: LeaseFlags,

    /// How the lease is printed.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<OutputFormat>,

    /// Do not take a lease: print what would be sent, or let the server check it.
    #[arg(long, value_enum, value_name = "MODE", default_value = "none")]
    dry_run: DryRun,

    /// Key under which repeats of this create give the same lease, when no NAME is given; default:
    /// a random one.
    #[arg(long, value_name = "ID", conflicts_with = "name")]
    request_id: Option<String>,

    /// Name recorded as the manager of the fields that are set.
    #[arg(long, value_name = "NAME", default_value = "kubectl-create")]
    field_manager: String,

    #[command(flatten)]
    bypass: BypassFlags,

    #[command(flatten)]
    kube: KubeFlags,
}

impl CreateLease {
    /// Runs the command; the status is 1 for every failure, with the reason on standard error.
    pub(crate) async fn run(self) -> ExitCode {
        match self.create().await {
            Ok(code) => code,
            Err(failure) => {
                terminal::say(&failure.to_string());
                ExitCode::FAILURE
            },
        }
    }

    async fn create(&self) -> Result<ExitCode, Failure> {
        let naming = self.naming();
        if self.dry_run == DryRun::Client {
            let namespace = self
                .kube
                .namespace_only()
                .await
                .map_err(Failure::Configure)?;
            let manifest = self.lease.build_manifest(namespace.as_deref(), &naming);
            print(&render_object(&manifest, self.output, self.dry_run)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let session = self.kube.session().await.map_err(Failure::Configure)?;
        let leases = Leases::new(&session, Arc::new(SystemClock::new()));
        let manifest = self.lease.build_manifest(Some(&session.namespace), &naming);
        let params = PostParams {
            dry_run: self.dry_run == DryRun::Server,
            field_manager: Some(self.field_manager.clone()),
        };
        let mut lease = leases.create(&manifest, &params).await?;
        if self.dry_run == DryRun::Server {
            let object = serde_json::to_value(&lease.object)
                .map_err(|error| Failure::Output(std::io::Error::other(error)))?;
            print(&render_object(&object, self.output, self.dry_run)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let wait = Duration::from_secs(self.lease.wait.into());
        let (name, uid) = (lease.name().to_owned(), lease.uid().map(str::to_owned));
        lease = tokio::select! {
            bound = leases.wait_until_bound(lease, wait) => bound?,
            _ = tokio::signal::ctrl_c() => {
                leases.release(&name, uid.as_deref()).await?;
                return Ok(ExitCode::from(130));
            },
        };
        let host = session.server_host.as_deref();
        print(&render_lease(
            &lease,
            self.output,
            self.dry_run,
            &self.bypass,
            host,
        )?)?;
        Ok(ExitCode::SUCCESS)
    }

    fn naming(&self) -> Naming {
        match &self.lease.name {
            Some(name) => Naming::Fixed(name.clone()),
            None => Naming::Generated {
                prefix: "lease-",
                request_id: self
                    .request_id
                    .clone()
                    .unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
            },
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    terminal::print(text).map_err(Failure::Output)
}
