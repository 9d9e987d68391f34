//! Leases a proxy with kube-rs, as docs/leasing.md shows it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example")]

use crawl_api::lease::{PoolRef, ProxyLease, ProxyLeaseSpec};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Config};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without this the client repeats a create by itself, for up to a minute.
    let mut config = Config::infer().await?;
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let leases: Api<ProxyLease> = Api::namespaced(Client::try_from(config)?, &namespace);

    let spec = ProxyLeaseSpec {
        pool_ref: Some(PoolRef {
            name: "eu".to_owned(),
            namespace: None,
        }),
        target: Some("shop.example.com".to_owned()),
        ttl_seconds: 300,
        ..ProxyLeaseSpec::default()
    };
    let wanted = ProxyLease::new("shop-rust", spec);
    let lease = match leases.create(&PostParams::default(), &wanted).await {
        Ok(lease) => lease,
        Err(kube::Error::Api(refusal)) if refusal.reason == "NoProxyAvailable" => {
            eprintln!("no proxy now: {}", refusal.message);
            return Ok(());
        },
        Err(error) => return Err(error.into()),
    };
    println!(
        "{}",
        lease
            .status
            .unwrap_or_default()
            .proxy_url
            .unwrap_or_default()
    );

    leases.delete("shop-rust", &DeleteParams::default()).await?;
    Ok(())
}
