//! The floor: a bare client that creates as many Proxies through the same API server and writes the status
//! of each once, without watching, deciding or asking anybody else.

use std::time::Duration;

use anyhow::{Context as _, Result};
use crawl_api::proxy::{Proxy, ProxySpec};
use devcluster::wait_for;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use runtime_kit::Clock;
use serde_json::json;

use crate::site::create_namespace;

const NAMESPACE: &str = "peer";
/// As many at once as the operator reconciles by default.
const WRITERS: usize = 8;
const TIMEOUT: Duration = Duration::from_mins(2);

/// What the bare client took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    /// For all Proxies.
    pub(crate) seconds: f64,
    /// Writes per second.
    pub(crate) writes: f64,
}

/// Measures it, and leaves nothing behind.
pub(crate) async fn measure(client: &Client, proxies: usize, clock: &dyn Clock) -> Result<Floor> {
    create_namespace(client, NAMESPACE).await?;
    let api = Api::<Proxy>::namespaced(client.clone(), NAMESPACE);
    let begin = clock.elapsed();
    stream::iter(0..proxies)
        .map(|number| create(&api, number))
        .buffer_unordered(WRITERS)
        .try_collect::<()>()
        .await?;
    let seconds = clock.elapsed().saturating_sub(begin).as_secs_f64();
    api.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .context("cannot delete what the bare client made")?;
    wait_for("the peer's objects to go", TIMEOUT, async || {
        let first = ListParams::default().limit(1);
        let left = api
            .list_metadata(&first)
            .await
            .map_err(|source| devcluster::Error::Api {
                action: "list Proxies".to_owned(),
                source: Box::new(source),
            })?;
        Ok(left.items.is_empty().then_some(()))
    })
    .await?;
    let count = f64::from(u32::try_from(proxies)?);
    Ok(Floor {
        seconds,
        writes: count * 2.0 / seconds,
    })
}

async fn create(api: &Api<Proxy>, number: usize) -> Result<()> {
    let params = PostParams::default();
    let proxy = Proxy::new(&format!("p-{number:05}"), ProxySpec::managed("local"));
    let created = api
        .create(&params, &proxy)
        .await
        .context("cannot create a Proxy")?;
    let condition = |kind: &str, reason: &str| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": "a message of usual length",
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let status = json!({
        "phase": "Ready",
        "providerID": format!("mock://local-a/{number}"),
        "endpoint": { "scheme": "http", "host": "127.0.0.1", "port": 3128 },
        "exitIP": "127.0.0.1",
        "observedGeneration": 1,
        "conditions": [
            condition("Provisioned", "Created"),
            condition("Healthy", "ProbeSucceeded"),
            condition("Ready", "Ready"),
        ],
    });
    let name = created.name_any();
    let written = Proxy {
        status: Some(serde_json::from_value(status)?),
        ..created
    };
    api.replace_status(&name, &params, &written)
        .await
        .with_context(|| format!("cannot write the status of {name}"))?;
    Ok(())
}
