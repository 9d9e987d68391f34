//! What to lease: the flags of both plugins, and the object they describe.

use crawl_api::lease::{LEASE_GROUP, LEASE_VERSION};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use crate::duration::{parse_ttl, parse_wait};
use crate::selector::parse_selector;

/// The lease that is wanted.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Lease options")]
pub(crate) struct LeaseFlags {
    /// Name of the lease. A repeated create with the same name and flags gives the same lease.
    #[arg(value_name = "NAME", help_heading = None::<&str>)]
    pub(crate) name: Option<String>,

    /// The pool to lease from.
    #[arg(long, value_name = "POOL", conflicts_with = "selector")]
    pool: Option<String>,

    /// Namespace of the pool, when it is shared from another one.
    #[arg(long, value_name = "NAME", requires = "pool")]
    pool_namespace: Option<String>,

    /// Labels of the proxies to lease from, like geo=eu,tier!=free.
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = parse_selector)]
    selector: Option<LabelSelector>,

    /// The site the lease is for: a host name or URL.
    #[arg(long, value_name = "SITE")]
    target: Option<String>,

    /// How long the lease lasts unless renewed, like 300, 90s or 5m; default: the server's.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = parse_ttl)]
    ttl: Option<u32>,

    /// How long to wait for a free proxy, like 30s; default: not at all.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = parse_wait, default_value = "0", hide_default_value = true)]
    pub(crate) wait: u32,

    /// Schemes of proxies the client can speak, comma-separated; default: http,https.
    #[arg(
        long = "scheme",
        value_name = "SCHEME",
        value_enum,
        value_delimiter = ','
    )]
    schemes: Vec<SchemeFlag>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum SchemeFlag {
    Http,
    Https,
    Socks5,
}

/// How the object gets its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Naming {
    /// This one; it is also the key that makes a repeat safe.
    Fixed(String),
    /// The server appends to the prefix; the request id makes a repeat safe.
    Generated {
        /// Start of the name.
        prefix: &'static str,
        /// Same for every attempt.
        request_id: String,
    },
}

impl LeaseFlags {
    /// The object to send. What no flag says is left out, so that the server's defaults apply.
    pub(crate) fn build_manifest(&self, namespace: Option<&str>, naming: &Naming) -> Value {
        let mut metadata = Map::new();
        let mut spec = Map::new();
        match naming {
            Naming::Fixed(name) => {
                metadata.insert("name".into(), json!(name));
            },
            Naming::Generated { prefix, request_id } => {
                metadata.insert("generateName".into(), json!(prefix));
                spec.insert("requestID".into(), json!(request_id));
            },
        }
        if let Some(namespace) = namespace {
            metadata.insert("namespace".into(), json!(namespace));
        }
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                spec.insert(key.to_owned(), value);
            }
        };
        set("poolRef", self.build_pool_ref());
        set(
            "selector",
            self.selector.as_ref().map(|selector| json!(selector)),
        );
        set("target", self.target.as_ref().map(|target| json!(target)));
        set("ttlSeconds", self.ttl.map(|ttl| json!(ttl)));
        set("waitSeconds", (self.wait > 0).then(|| json!(self.wait)));
        set("schemes", self.build_schemes());
        json!({
            "apiVersion": format!("{LEASE_GROUP}/{LEASE_VERSION}"),
            "kind": "ProxyLease",
            "metadata": metadata,
            "spec": spec,
        })
    }

    fn build_pool_ref(&self) -> Option<Value> {
        let name = self.pool.as_ref()?;
        Some(match &self.pool_namespace {
            Some(namespace) => json!({ "name": name, "namespace": namespace }),
            None => json!({ "name": name }),
        })
    }

    fn build_schemes(&self) -> Option<Value> {
        let text = |scheme: &SchemeFlag| match scheme {
            SchemeFlag::Http => "http",
            SchemeFlag::Https => "https",
            SchemeFlag::Socks5 => "socks5",
        };
        (!self.schemes.is_empty()).then(|| self.schemes.iter().map(text).collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use crawl_api::lease::ProxyLease;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        lease: LeaseFlags,
    }

    fn flags(args: &[&str]) -> Result<LeaseFlags, clap::Error> {
        Command::try_parse_from([&["x"], args].concat()).map(|command| command.lease)
    }

    #[test]
    fn every_flag_reaches_its_field_and_the_object_is_a_proxy_lease() {
        let flags = flags(&[
            "shop-0",
            "--pool",
            "eu",
            "--pool-namespace",
            "fleet",
            "--target",
            "shop.example.com",
            "--ttl",
            "5m",
            "--wait",
            "30s",
            "--scheme",
            "http,socks5",
        ])
        .expect("valid");
        let manifest = flags.build_manifest(Some("crawlers"), &Naming::Fixed("shop-0".to_owned()));
        assert_eq!(
            manifest,
            json!({
                "apiVersion": "leases.crawl.example.com/v1alpha1",
                "kind": "ProxyLease",
                "metadata": {"name": "shop-0", "namespace": "crawlers"},
                "spec": {
                    "poolRef": {"name": "eu", "namespace": "fleet"}, "target": "shop.example.com",
                    "ttlSeconds": 300, "waitSeconds": 30, "schemes": ["http", "socks5"],
                },
            })
        );
        let lease: ProxyLease = serde_json::from_value(manifest).expect("a ProxyLease");
        assert_eq!(lease.spec.ttl_seconds, 300);
    }

    #[test]
    fn what_is_not_given_is_left_to_the_server() {
        let naming = Naming::Generated {
            prefix: "lease-",
            request_id: "r".to_owned(),
        };
        let manifest = flags(&["-l", "geo=eu"])
            .expect("valid")
            .build_manifest(None, &naming);
        assert_eq!(manifest["metadata"], json!({"generateName": "lease-"}));
        let spec = json!({"requestID": "r", "selector": {"matchLabels": {"geo": "eu"}}});
        assert_eq!(manifest["spec"], spec);
    }

    #[test]
    fn contradicting_and_malformed_flags_are_refused() {
        for args in [
            &["--pool", "eu", "--selector", "geo=eu"][..],
            &["--pool-namespace", "fleet"],
            &["--ttl", "5s"],
            &["--wait", "never"],
            &["--scheme", "ftp"],
            &["a", "b"],
        ] {
            assert!(flags(args).is_err(), "{args:?}");
        }
    }
}
