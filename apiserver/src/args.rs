//! The command line of lease-apiserver. Names are those of upstream's aggregated API servers where
//! they have the flag.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use runtime_kit::kubeconfig::KubeArgs;
use runtime_kit::logging::LogArgs;

use crate::rules::{MAX_POD_TTL, MIN_TTL};

/// Leases crawling proxies through the cluster's own API.
///
/// Serves leases.crawl.example.com as an aggregated API: a ProxyLease is the right to use one proxy
/// until a time.
#[derive(Debug, Parser)]
#[command(name = "lease-apiserver", version)]
pub struct Args {
    /// Port of the API, HTTPS.
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub secure_port: u16,

    /// Address of the API.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,

    /// Serving certificate with its chain, PEM. Read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: PathBuf,

    /// Key of the serving certificate, PEM.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: PathBuf,

    /// The kubeconfig with which callers are authenticated. Without it: as --kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// The kubeconfig with which callers are authorized. Without it: as --kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// Audiences of tokens that are accepted from callers who come directly. Without it: the API
    /// server's own.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub api_audiences: Vec<String>,

    /// Where leases are kept.
    #[command(flatten)]
    pub store: StoreArgs,

    /// How much history is kept for watches that resume.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub store_history: Duration,

    /// Longest ttl of a lease; callers whose token is not bound to a pod get at most 1h.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = max_ttl)]
    pub max_lease_ttl: Duration,

    /// Where /healthz, /readyz and /metrics are served, plain HTTP; metrics to loopback only.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8081")]
    pub admin_address: SocketAddr,

    /// How long a stop may take, open requests and watches included.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    pub shutdown_grace: Duration,

    /// How long readyz is red before the port closes when stopping.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = any_duration)]
    pub shutdown_delay_duration: Duration,

    /// The name of this replica for the others, where several share a store.
    #[arg(
        long,
        value_name = "NAME",
        env = "HOSTNAME",
        default_value = "lease-apiserver"
    )]
    pub identity: String,

    /// The API server.
    #[command(flatten)]
    pub kube: KubeArgs,

    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Where leases are kept, and in which form.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
    /// Where leases are kept: redb:///path/to/file, whose folder must exist; etcd, which
    /// --etcd-servers names and several replicas share; or memory, which forgets them when the
    /// process ends.
    #[arg(long, value_name = "URL")]
    pub store: StoreUrl,

    /// URLs of the members of the etcd cluster, https:// with --etcd-cafile and http:// without.
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        required_if_eq("store", "etcd")
    )]
    pub etcd_servers: Vec<String>,

    /// What all keys in etcd begin with.
    #[arg(long, value_name = "PREFIX", default_value = "/lease-apiserver")]
    pub etcd_prefix: String,

    /// Authorities that sign etcd's certificates, PEM.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    pub etcd_cafile: Option<PathBuf>,

    /// Certificate that is shown to etcd, PEM.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_cafile", "etcd_keyfile"])]
    pub etcd_certfile: Option<PathBuf>,

    /// Key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,

    /// An EncryptionConfiguration with the keys under which all that is stored is encrypted
    /// (aesgcm, identity). Without it: in clear. Read at start.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
}

/// Where leases are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In the process.
    Memory,
    /// In a redb file.
    Redb(PathBuf),
    /// In the etcd of `--etcd-servers`.
    Etcd,
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = match text {
            "memory" => return Ok(Self::Memory),
            "etcd" => return Ok(Self::Etcd),
            _ => text.strip_prefix("redb://").map(PathBuf::from),
        };
        match path {
            Some(path) if path.is_absolute() => Ok(Self::Redb(path)),
            Some(_) => Err("the path must be absolute: redb:///var/lib/leases.redb".to_owned()),
            None => Err("it must be redb:///path/to/file, etcd or memory".to_owned()),
        }
    }
}

fn any_duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text
        .parse()
        .map_err(|error| format!("{error}; write it like 500ms, 30s or 5m"))?;
    Duration::try_from(signed).map_err(|_| "it must not be negative".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    any_duration(text).and_then(|duration| {
        if duration.is_zero() {
            Err("it must be more than nothing".to_owned())
        } else {
            Ok(duration)
        }
    })
}

fn max_ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < MIN_TTL || ttl > MAX_POD_TTL {
        return Err(format!(
            "it must be between {} s and {} s",
            MIN_TTL.as_secs(),
            MAX_POD_TTL.as_secs()
        ));
    }
    Ok(ttl)
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
    fn a_store_is_a_file_etcd_or_memory() {
        assert_eq!("memory".parse(), Ok(StoreUrl::Memory));
        assert_eq!("etcd".parse(), Ok(StoreUrl::Etcd));
        assert_eq!("redb:///a/b".parse(), Ok(StoreUrl::Redb("/a/b".into())));
        assert!(
            "redb://b"
                .parse::<StoreUrl>()
                .unwrap_err()
                .contains("absolute")
        );
        assert!(
            "etcd://x"
                .parse::<StoreUrl>()
                .unwrap_err()
                .contains("redb:///")
        );
    }

    #[test]
    fn flags_of_etcd_come_together() {
        let parse = |flags: &[&str]| {
            let fixed = [
                "lease-apiserver",
                "--tls-cert-file=c",
                "--tls-private-key-file=k",
            ];
            Args::try_parse_from(fixed.iter().chain(flags)).map_err(|error| error.to_string())
        };
        let servers = "--etcd-servers=https://a:2379,https://b:2379";
        let args = parse(&["--store=etcd", servers, "--etcd-cafile=ca"]).unwrap();
        assert_eq!(
            args.store.etcd_servers,
            ["https://a:2379", "https://b:2379"]
        );
        assert_eq!(args.store.etcd_prefix, "/lease-apiserver");
        for (flags, named) in [
            (vec!["--store=etcd"], "--etcd-servers"),
            (vec!["--store=memory", "--etcd-cafile=ca"], "--etcd-servers"),
            (
                vec![
                    "--store=etcd",
                    servers,
                    "--etcd-cafile=ca",
                    "--etcd-certfile=c",
                ],
                "--etcd-keyfile",
            ),
            (
                vec![
                    "--store=etcd",
                    servers,
                    "--etcd-cafile=ca",
                    "--etcd-keyfile=k",
                ],
                "--etcd-certfile",
            ),
        ] {
            let refused = parse(&flags).unwrap_err();
            assert!(refused.contains(named), "{flags:?}: {refused}");
        }
    }

    #[test]
    fn the_longest_ttl_is_within_what_the_api_allows() {
        assert_eq!(max_ttl("1h"), Ok(Duration::from_hours(1)));
        assert!(max_ttl("5s").is_err() && max_ttl("25h").is_err() && max_ttl("x").is_err());
    }
}
