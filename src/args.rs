//! The command line of proxy-operator. Every setting is a flag with a printed default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use runtime_kit::kubeconfig::KubeArgs;
use runtime_kit::logging::LogArgs;

use crate::{echo, gc, health};

/// Runs fleets of crawling proxies as Kubernetes objects.
///
/// Reconciles Proxy and ProxyPool against the providers of the providers file, and probes every
/// proxy with real traffic.
#[derive(Debug, Parser)]
#[command(
    name = "proxy-operator",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    /// What to run instead of the operator.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    /// The flags of the operator.
    pub operator: OperatorArgs,
    #[command(flatten)]
    /// Logging.
    pub log: LogArgs,
}

/// What to run instead of the operator.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the probe target that tells a caller its address.
    Echo(EchoCommand),
}

/// `proxy-operator echo`.
#[derive(Debug, clap::Args)]
pub struct EchoCommand {
    /// The flags of the echo endpoint.
    #[command(flatten)]
    pub echo: echo::Args,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The flags of the operator.
#[derive(Debug, clap::Args)]
pub struct OperatorArgs {
    /// The providers file (YAML), see config/samples/providers-config.yaml. Required, unless a
    /// subcommand is given.
    #[arg(long, value_name = "FILE", required = true)]
    pub providers_config: Option<PathBuf>,

    /// Namespaces to look after, separated by commas. Without it: all.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',')]
    pub namespaces: Vec<String>,

    /// How many objects of a kind are reconciled at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_concurrent_reconciles: u16,

    /// How often an instance that starts is looked at.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub provisioning_poll: Duration,

    /// How often an instance that is drained or deleted is looked at.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub deletion_poll: Duration,

    /// How often an instance that runs is compared with what is wanted.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub drift_poll: Duration,

    /// When a provider is asked again after quota, stock, credentials or permissions were lacking.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub quota_retry: Duration,

    /// Create and delete no instance: log what would be, and say so in status.
    #[arg(long)]
    pub dry_run: bool,

    /// What the names of instances begin with; at most 40 lower-case letters, digits and dashes.
    #[arg(long, value_name = "PREFIX", default_value = "proxy-", value_parser = name_prefix)]
    pub instance_name_prefix: String,

    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub bind_address: SocketAddr,

    /// Work at once, without asking whether another replica does.
    #[arg(long)]
    pub no_leader_elect: bool,

    /// The namespace of the Lease that decides which replica works. Without it: that of the
    /// kubeconfig or pod.
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_namespace: Option<String>,

    /// The name of this replica in the Lease and in events.
    #[arg(
        long,
        value_name = "NAME",
        env = "HOSTNAME",
        default_value = "proxy-operator"
    )]
    pub identity: String,

    /// How long a stop may take.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub shutdown_grace: Duration,

    /// Instances that no Proxy owns.
    #[command(flatten)]
    pub gc: gc::Flags,

    /// Health.
    #[command(flatten)]
    pub health: health::Config,

    /// The API server.
    #[command(flatten)]
    pub kube: KubeArgs,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text
        .parse()
        .map_err(|error| format!("{error}; write it like 500ms, 30s or 5m"))?;
    match Duration::try_from(signed) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Ok(_) | Err(_) => Err("it must be more than nothing".into()),
    }
}

fn name_prefix(text: &str) -> Result<String, String> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let good = text.len() <= 40
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(inner);
    good.then(|| text.to_owned()).ok_or_else(|| {
        "it must be 1 to 40 lower-case letters, digits and dashes, beginning with a letter".into()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_providers_file_is_required_for_the_operator_and_not_for_echo() {
        assert!(Args::try_parse_from(["proxy-operator"]).is_err());
        let args =
            Args::try_parse_from(["proxy-operator", "--providers-config", "p.yaml"]).unwrap();
        let operator = args.operator;
        assert_eq!(operator.providers_config, Some("p.yaml".into()));
        let echo = Args::try_parse_from(["proxy-operator", "echo"]).map(|args| args.command);
        assert!(
            matches!(echo, Ok(Some(Command::Echo(_))) | Err(_)),
            "{echo:?}"
        );
        assert_eq!(operator.max_concurrent_reconciles, 8);
        assert!(operator.namespaces.is_empty());
        assert_eq!(operator.quota_retry, Duration::from_mins(5));
    }

    #[test]
    fn namespaces_come_as_a_list_and_malformed_values_are_refused() {
        let parse = |flags: &[&str]| {
            let base = ["proxy-operator", "--providers-config", "p.yaml"];
            Args::try_parse_from(base.iter().chain(flags)).map(|args| args.operator)
        };
        assert_eq!(
            parse(&["--namespaces", "a,b"]).unwrap().namespaces,
            ["a", "b"]
        );
        for flags in [
            ["--drift-poll", "0s"],
            ["--drift-poll", "soon"],
            ["--max-concurrent-reconciles", "0"],
            ["--instance-name-prefix", "Proxy_"],
        ] {
            assert!(parse(&flags).is_err(), "{flags:?}");
        }
    }
}
