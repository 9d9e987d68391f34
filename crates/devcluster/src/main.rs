//! The command `devcluster`: a control plane for the demo and for working by hand.
//!
//! `up` starts a second process of itself (`up --foreground`) that owns the cluster and stays; `down`
//! asks that process to end. So what a test gets from the library is what a user gets here: when the
//! owner goes, however it goes, everything goes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use devcluster::binaries::{Binaries, Binary};

mod daemon;

/// A real Kubernetes control plane on this machine: etcd, kube-apiserver and kube-controller-manager on
/// loopback, with RBAC and API aggregation, and optionally kwok in the place of kubelets.
///
/// The binaries are built from Go modules on first use (about five minutes, needs Go 1.26) and kept in
/// ~/.cache/proxy-operator; set PROXY_OPERATOR_CACHE for another place, or KUBEBUILDER_ASSETS for a folder
/// that has them already.
#[derive(Debug, Parser)]
#[command(name = "devcluster", version)]
struct Args {
    /// Folder of the cluster: kubeconfig, certificates, logs, data of etcd
    #[arg(long, global = true, value_name = "DIR", default_value = ".devcluster")]
    dir: PathBuf,
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start the control plane and leave it running; does nothing when it runs already
    Up {
        /// Run kwok with one node, so that Pods become Running
        #[arg(long)]
        kwok: bool,
        /// Stay in the foreground and end the cluster on Ctrl-C
        #[arg(long)]
        foreground: bool,
    },
    /// Stop the control plane
    Down {
        /// Also delete its folder, with all objects and logs
        #[arg(long)]
        purge: bool,
    },
    /// Print the path of the administrator's kubeconfig
    Kubeconfig,
    /// Print the logs, or name a component: etcd, kube-apiserver, kube-controller-manager, kwok
    Logs {
        /// Print the log of this component only
        component: Option<String>,
    },
    /// Have requests for GROUP/VERSION forwarded to a server on a local port, and print the files it
    /// has to serve with
    Register {
        /// API group, such as wardle.example.com
        group: String,
        /// API version, such as v1alpha1
        version: String,
        /// Port of the server on localhost
        port: u16,
    },
    /// Only build what is missing, and print where each binary is
    Build {
        /// These only, such as kubectl; all when none is named
        binaries: Vec<Binary>,
    },
}

#[tokio::main]
#[expect(clippy::print_stderr, reason = "the command's way to tell errors")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.command {
        Action::Up {
            kwok,
            foreground: true,
        } => daemon::run(&args.dir, kwok).await,
        Action::Up {
            kwok,
            foreground: false,
        } => daemon::up(&args.dir, kwok).await,
        Action::Down { purge } => daemon::down(&args.dir, purge).await,
        Action::Kubeconfig => daemon::print_kubeconfig(&args.dir),
        Action::Logs { component } => daemon::print_logs(&args.dir, component.as_deref()),
        Action::Register {
            group,
            version,
            port,
        } => daemon::register(&args.dir, &group, &version, port).await,
        Action::Build { binaries } => build(&binaries),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devcluster: {error:#}");
            ExitCode::FAILURE
        },
    }
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn build(binaries: &[Binary]) -> anyhow::Result<()> {
    let wanted = if binaries.is_empty() {
        &Binary::ALL
    } else {
        binaries
    };
    for (_, path) in Binaries::ensure(wanted)?.iter() {
        println!("{}", path.display());
    }
    Ok(())
}
