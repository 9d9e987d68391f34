//! Facts for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use crawl_api::address::Endpoint;
use crawl_api::scheme::Scheme;

use super::facts::{Fate, PoolKey, ProxyFacts};

/// A healthy proxy of the namespace and pool `fleet/eu` with an exit of its own.
pub fn facts(name: &str, max_leases: usize) -> ProxyFacts {
    ProxyFacts {
        uid: format!("uid-{name}").into(),
        namespace: "fleet".into(),
        name: name.into(),
        resource_version: 1,
        labels: BTreeMap::from([("geo".to_owned(), "eu".to_owned())]),
        pool: Some(pool()),
        endpoint: Some(Endpoint {
            scheme: Scheme::Http,
            host: name.to_owned(),
            port: 3128,
        }),
        exit_ip: None,
        healthy: true,
        accepting: Ok(()),
        max_leases,
        latency_bucket: 64,
        flapping: false,
        allowed_targets: Vec::new(),
        denied_targets: Vec::new(),
        fate: Fate::Keep,
    }
}

/// The pool of [`facts`].
pub fn pool() -> PoolKey {
    PoolKey {
        namespace: Arc::from("fleet"),
        name: Arc::from("eu"),
    }
}
