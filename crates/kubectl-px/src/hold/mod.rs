//! `kubectl px lease hold`: runs a command with a leased proxy, and gives the proxy back.
//!
//! The lease is named before it is asked for, so that it can be given back whatever happens in
//! between: a lost answer, a signal while waiting, a command that does not start.

mod acquire;
mod child;
mod keepalive;
mod signals;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use runtime_kit::{Clock, SystemClock};

use crate::environment::{BypassFlags, build_variables};
use crate::failure::Failure;
use crate::kube_flags::{KubeFlags, Session};
use crate::lease_flags::{LeaseFlags, Naming};
use crate::leases::{Lease, Leases};
use crate::terminal;

use acquire::{Acquired, Acquiring, release};
use child::{Child, OnLoss};
use signals::Signals;

const EXAMPLES: &str = "\
Examples:
  # Crawl through a proxy of pool eu; it is renewed while the command runs
  kubectl px lease hold --pool eu -- python crawl.py

  # Wait up to a minute for a proxy, and stop the command when the proxy is taken away
  kubectl px lease hold --pool eu --target shop.example.com --wait 1m --on-loss=terminate -- ./crawl

The command finds the proxy in HTTP_PROXY, HTTPS_PROXY and their lower-case forms, and the lease in
PROXY_LEASE and PROXY_LEASE_NAMESPACE. The exit status is the command's, 128+N when signal N ended
it, 127 when it was not found, 126 when it cannot be run, and 1 when there was no lease.";

/// Run a command with a leased proxy.
///
/// Takes a lease, keeps it while the command runs, and releases it at the end, in whichever way the
/// command ends. Signals are passed on to the command.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Hold {
    #[command(flatten)]
    lease: LeaseFlags,

    /// What happens to the command when the lease is lost.
    #[arg(long, value_enum, value_name = "ACTION", default_value = "warn")]
    on_loss: OnLoss,

    #[command(flatten)]
    bypass: BypassFlags,

    #[command(flatten)]
    kube: KubeFlags,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = None::<&str>)]
    command: Vec<OsString>,
}

impl Hold {
    /// Runs the command; see the help text for the exit status.
    pub(crate) async fn run(self) -> ExitCode {
        match Box::pin(self.hold()).await {
            Ok(code) => ExitCode::from(code),
            Err(failure) => {
                terminal::say(&failure.to_string());
                ExitCode::FAILURE
            },
        }
    }

    async fn hold(&self) -> Result<u8, Failure> {
        let mut signals = Signals::new()?;
        let session = self.kube.session().await.map_err(Failure::Configure)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let leases = Leases::new(&session, Arc::clone(&clock));
        let name = self.lease.name.clone().unwrap_or_else(random_name);

        let naming = Naming::Fixed(name.clone());
        let acquiring = Acquiring {
            leases: &leases,
            manifest: self.lease.build_manifest(Some(&session.namespace), &naming),
            wait: Duration::from_secs(self.lease.wait.into()),
            name: &name,
            name_is_ours: self.lease.name.is_none(),
            clock: &*clock,
        };
        let lease = match acquiring.acquire(&mut signals).await? {
            Acquired::Lease(lease) => *lease,
            Acquired::Interrupted(code) => return Ok(code),
        };
        let ended = self
            .run_with(&lease, &leases, &session, &mut signals, &clock)
            .await;
        release(&leases, &name, lease.uid(), &*clock).await;
        ended
    }

    async fn run_with(
        &self,
        lease: &Lease,
        leases: &Leases,
        session: &Session,
        signals: &mut Signals,
        clock: &Arc<dyn Clock>,
    ) -> Result<u8, Failure> {
        let host = session.server_host.as_deref();
        let variables = build_variables(lease, lease.proxy_url()?, &self.bypass, host);
        let mut child = match Child::start(&self.command, variables) {
            Ok(child) => child,
            Err(error) => {
                terminal::say(&format!("error: {error}"));
                return Ok(error.exit_code());
            },
        };
        let keepalive = keepalive::keep(leases, lease, &**clock);
        child.run(signals, keepalive, self.on_loss).await
    }
}

fn random_name() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("hold-{}", &id[..12])
}
