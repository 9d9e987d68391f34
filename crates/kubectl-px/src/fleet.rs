//! Which proxies a command is about, and how the API server is asked for them.

use std::time::Duration;

use crawl_api::names;
use crawl_api::proxy::Proxy;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::failure::{Failure, is_object_missing};
use crate::kube_flags::Session;

/// Proxies by name, label, pool or zone.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Selection {
    /// Names of proxies.
    #[arg(value_name = "NAME", conflicts_with_all = ["selector", "pool", "zone", "all"])]
    names: Vec<String>,

    /// Proxies with these labels, like geo=eu,tier!=free.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    /// Members of this pool.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,

    /// Proxies whose instance is in this zone.
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,

    /// All proxies of the namespace.
    #[arg(long)]
    all: bool,
}

impl Selection {
    /// The proxies, as they are now.
    pub(crate) async fn find(&self, session: &Session) -> Result<Vec<Proxy>, Failure> {
        let api = proxies(session);
        if !self.names.is_empty() {
            let mut found = Vec::new();
            for name in &self.names {
                found.push(ask(session, "get", async || api.get(name).await).await?);
            }
            return Ok(found);
        }
        if self.selector.is_none() && self.pool.is_none() && self.zone.is_none() && !self.all {
            return Err(Failure::Usage(
                "say which proxies: NAME, -l, --pool, --zone or --all".to_owned(),
            ));
        }
        let pool = self.pool.as_ref();
        let pool = pool.map(|pool| format!("{}={pool}", names::LABEL_POOL));
        let labels: Vec<_> = self.selector.iter().cloned().chain(pool).collect();
        let params = ListParams::default().labels(&labels.join(","));
        let mut found = ask(session, "list", async || api.list(&params).await)
            .await?
            .items;
        if let Some(zone) = &self.zone {
            found.retain(|proxy| zone_of(proxy) == Some(zone));
        }
        Ok(found)
    }
}

fn zone_of(proxy: &Proxy) -> Option<&str> {
    let seen = proxy
        .status
        .as_ref()
        .and_then(|status| status.zone.as_deref());
    let placement = proxy.spec.placement.as_ref();
    seen.or_else(|| placement.and_then(|placement| placement.zone.as_deref()))
}

/// The proxies of the session's namespace.
pub(crate) fn proxies(session: &Session) -> Api<Proxy> {
    Api::namespaced(session.client.clone(), &session.namespace)
}

/// How kubectl names a proxy.
pub(crate) fn id(proxy: &Proxy) -> String {
    format!("proxy.{}/{}", names::GROUP, proxy.name_any())
}

/// How often a request is sent that a server which is starting or busy turns away unseen (429).
const ATTEMPTS: u32 = 5;

/// Sends a request about proxies or pools, each time within `--request-timeout`. Why again after a
/// 429: kubectl does so, and the first list of a new kind is answered like that.
pub(crate) async fn ask<T>(
    session: &Session,
    verb: &str,
    request: impl AsyncFn() -> kube::Result<T>,
) -> Result<T, Failure> {
    let mut attempt = 1;
    loop {
        let answer = match session.request_timeout {
            None => request().await,
            Some(limit) => tokio::time::timeout(limit, request())
                .await
                .map_err(|_| Failure::TimedOut(limit.as_secs()))?,
        };
        match answer {
            Err(kube::Error::Api(status)) if status.code == 429 && attempt < ATTEMPTS => {
                attempt += 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
            },
            answer => return answer.map_err(|error| explain(error, session, verb)),
        }
    }
}

fn explain(error: kube::Error, session: &Session, verb: &str) -> Failure {
    if let kube::Error::Api(status) = &error
        && status.code == 404
        && !is_object_missing(status)
    {
        return Failure::Usage(
            "the server doesn't have the kinds of crawl.example.com (kubectl apply -f config/crd)"
                .to_owned(),
        );
    }
    Failure::Request(error).in_request(&session.server, verb, "proxies")
}
