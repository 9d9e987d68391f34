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

    /// Where leases are kept: redb:///path/to/file, whose folder must exist, or memory, which
    /// forgets them when the process ends.
    #[arg(long, value_name = "URL")]
    pub store: StoreUrl,

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

    /// The API server.
    #[command(flatten)]
    pub kube: KubeArgs,

    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Where leases are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In the process.
    Memory,
    /// In a redb file.
    Redb(PathBuf),
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = match text {
            "memory" => return Ok(Self::Memory),
            _ => text.strip_prefix("redb://").map(PathBuf::from),
        };
        match path {
            Some(path) if path.is_absolute() => Ok(Self::Redb(path)),
            Some(_) => Err("the path must be absolute: redb:///var/lib/leases.redb".to_owned()),
            None => Err("it must be redb:///path/to/file or memory".to_owned()),
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
    fn a_store_is_a_file_or_memory() {
        assert_eq!("memory".parse(), Ok(StoreUrl::Memory));
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
    fn the_longest_ttl_is_within_what_the_api_allows() {
        assert_eq!(max_ttl("1h"), Ok(Duration::from_hours(1)));
        assert!(max_ttl("5s").is_err() && max_ttl("25h").is_err() && max_ttl("x").is_err());
    }
}
