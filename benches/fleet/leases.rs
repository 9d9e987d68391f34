//! Leases on every proxy, created at lease-apiserver directly, as kube-apiserver would forward them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crawl_api::lease::{LEASE_GROUP, LEASE_VERSION};
use http::{HeaderMap, HeaderValue};
use serde_json::json;

use crate::connect::Server;
use crate::load::{self, Connections, Load, NAME, Target};
use crate::site::{NAMESPACE, POOL, Site};

const CLIENTS: usize = 32;
const PATIENCE: Duration = Duration::from_mins(2);

/// Leases that exist.
pub(crate) struct Leases {
    target: Target,
    names: Vec<String>,
}

/// Takes so many.
pub(crate) async fn take(site: &Site, count: usize) -> Result<Leases> {
    let front_proxy = site.cluster.front_proxy_client();
    let ca = site.cluster.client_ca().pem();
    let mut headers = HeaderMap::new();
    headers.insert("x-remote-user", HeaderValue::from_static("bench:crawler"));
    headers.insert("x-remote-group", HeaderValue::from_static("system:masters"));
    let body = json!({
        "apiVersion": format!("{LEASE_GROUP}/{LEASE_VERSION}"),
        "kind": "ProxyLease",
        "metadata": { "name": NAME },
        "spec": { "poolRef": { "name": POOL }, "target": "shop.example.com", "ttlSeconds": 3600 },
    });
    let target = Target {
        server: Server::new(site.lease_port, ca, Some(front_proxy))?,
        connections: Connections::Shared(1),
        path: format!("/apis/{LEASE_GROUP}/{LEASE_VERSION}/namespaces/{NAMESPACE}/proxyleases"),
        headers,
        identities: Vec::new(),
        body: body.to_string(),
    };
    let load = Load {
        clients: CLIENTS,
        warm_up: Duration::ZERO,
        measured: PATIENCE,
        limit: count,
        prefix: "l".to_owned(),
    };
    let outcome = load::run(&target, &load, &site.clock).await?;
    outcome.sample.context("cannot create leases")?;
    ensure!(
        outcome.names.len() == count,
        "only {} of {count} leases were created in time",
        outcome.names.len()
    );
    Ok(Leases {
        target,
        names: outcome.names,
    })
}

// === impl Leases ===

impl Leases {
    /// Gives them all back.
    pub(crate) async fn give_back(self) -> Result<()> {
        load::clean(&self.target, self.names).await
    }
}
