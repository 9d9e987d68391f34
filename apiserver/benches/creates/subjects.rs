//! Who is measured: each subject is a server on a route, the load it can take, and how its objects go away
//! again.

use anyhow::{Context as _, Result};
use devcluster::{Cluster, SampleApiserver};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use crate::connect::Server;
use crate::instant;
use crate::load::{self, Connections, NAME, Target};
use crate::setup::{CRAWLERS, CRD_GROUP, NAMESPACE, POOL};

/// Connections that kube-apiserver keeps to one backend: it was never seen to open a second one for requests,
/// at 1 to 64 clients.
const AGGREGATOR_CONNECTIONS: usize = 1;
/// Numbers of clients that every subject is measured with.
pub(crate) const CLIENTS: [usize; 3] = [1, 16, 64];
/// Callers in the run with many identities.
const IDENTITIES: usize = 1000;
/// Version that the sample stores, so that it converts nothing.
const SAMPLE_VERSION: &str = "v1alpha1";

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// lease-apiserver.
    Ours,
    /// lease-apiserver, with a thousand callers.
    OursManyIdentities,
    /// The watched instant peer.
    Instant,
    /// A CRD.
    Crd,
    /// The Go sample-apiserver.
    Sample,
}

/// How requests get there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Route {
    /// Through kube-apiserver.
    Aggregator,
    /// With the front proxy's certificate, straight to the server.
    Direct,
}

/// How objects go away after a measurement.
#[derive(Clone)]
pub(crate) enum Cleaning {
    /// One by one, here.
    Each(Target),
    /// All at once, and watchers have to list again.
    Forget(Target),
}

/// Something that is measured.
pub(crate) struct Subject {
    /// The server.
    pub(crate) who: Who,
    /// The route.
    pub(crate) route: Route,
    /// Numbers of clients.
    pub(crate) clients: &'static [usize],
    /// What they do.
    pub(crate) target: Target,
    /// Afterwards.
    pub(crate) cleaning: Cleaning,
    /// Whether every caller is made known before a measurement.
    pub(crate) introduce: Option<usize>,
    /// Creates at most in one measurement.
    pub(crate) limit: usize,
}

/// What subjects are made from.
pub(crate) struct Parts<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) token: &'a str,
    pub(crate) account: &'a [(&'static str, String)],
    pub(crate) lease_port: u16,
    pub(crate) instant_port: u16,
    pub(crate) sample: &'a SampleApiserver,
    pub(crate) slots: usize,
}

// === impl Who ===

impl Who {
    /// As it is written in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "lease-apiserver",
            Self::OursManyIdentities => "lease-apiserver, 1,000 identities",
            Self::Instant => "watched instant peer",
            Self::Crd => "CRD",
            Self::Sample => "Go sample-apiserver",
        }
    }
}

// === impl Route ===

impl Route {
    /// As it is written in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Aggregator => "through the aggregator",
            Self::Direct => "directly",
        }
    }
}

// === impl Subject ===

impl Subject {
    /// Server and route.
    pub(crate) fn label(&self) -> String {
        format!("{} {}", self.who.name(), self.route.name())
    }
}

// === impl Cleaning ===

impl Cleaning {
    /// Removes what a measurement left.
    pub(crate) async fn clean(&self, names: Vec<String>) -> Result<()> {
        match self {
            Self::Each(target) => load::clean(target, names).await,
            Self::Forget(target) => load::clean(target, vec![String::new()]).await,
        }
    }
}

// === impl Parts ===

impl Parts<'_> {
    /// All subjects, in the order of the first round.
    pub(crate) fn subjects(&self) -> Result<Vec<Subject>> {
        let lease = lease_body(crawl_api::lease::LEASE_GROUP);
        let instant = lease_body(instant::GROUP);
        let crd = lease_body(CRD_GROUP);
        let flunder = json!({
            "apiVersion": format!("{}/{SAMPLE_VERSION}", devcluster::SAMPLE_GROUP),
            "kind": "Flunder",
            "metadata": { "name": NAME },
            "spec": {},
        })
        .to_string();
        let lease_path = path(crawl_api::lease::LEASE_GROUP, "v1alpha1", "proxyleases");
        let instant_path = path(instant::GROUP, instant::VERSION, instant::RESOURCE);
        let crd_path = path(CRD_GROUP, "v1alpha1", "proxyleases");
        let sample_path = path(devcluster::SAMPLE_GROUP, SAMPLE_VERSION, "flunders");
        let through = |path: &str, body: &str| self.through_aggregator(path, body);
        let direct = |port, path: &str, body: &str| self.direct(port, path, body);
        let sample_port = self.sample_port()?;

        let ours = direct(self.lease_port, &lease_path, &lease)?;
        let mut many = ours.clone();
        many.headers = headers(&[
            ("x-remote-group", CRAWLERS),
            ("x-remote-group", "system:authenticated"),
        ])?;
        many.identities = (0..IDENTITIES)
            .map(|number| HeaderValue::from_str(&format!("bench:crawler-{number:04}")))
            .collect::<Result<_, _>>()?;
        let lease_cleaning = Cleaning::Each(self.cleaner(self.lease_port, &lease_path)?);
        let sample_cleaning = Cleaning::Each(self.cleaner(sample_port, &sample_path)?);
        let forget = Cleaning::Forget(self.cleaner(self.instant_port, &instant_path)?);

        let subject = |who, route, target, cleaning: &Cleaning| Subject {
            who,
            route,
            clients: &CLIENTS,
            target,
            cleaning: cleaning.clone(),
            introduce: None,
            limit: usize::MAX,
        };
        let (aggregator, straight) = (Route::Aggregator, Route::Direct);
        let mut subjects = vec![
            subject(
                Who::Ours,
                aggregator,
                through(&lease_path, &lease)?,
                &lease_cleaning,
            ),
            subject(
                Who::Instant,
                aggregator,
                through(&instant_path, &instant)?,
                &forget,
            ),
            subject(
                Who::Crd,
                aggregator,
                through(&crd_path, &crd)?,
                &Cleaning::Each(self.administrator(&crd_path)?),
            ),
            subject(
                Who::Sample,
                aggregator,
                through(&sample_path, &flunder)?,
                &sample_cleaning,
            ),
            subject(Who::Ours, straight, ours, &lease_cleaning),
            Subject {
                clients: &CLIENTS[2..],
                introduce: Some(IDENTITIES),
                ..subject(Who::OursManyIdentities, straight, many, &lease_cleaning)
            },
            subject(
                Who::Instant,
                straight,
                direct(self.instant_port, &instant_path, &instant)?,
                &forget,
            ),
            subject(
                Who::Sample,
                straight,
                direct(sample_port, &sample_path, &flunder)?,
                &sample_cleaning,
            ),
        ];
        for subject in &mut subjects {
            match subject.who {
                Who::Ours | Who::OursManyIdentities => subject.limit = self.slots,
                Who::Instant | Who::Crd | Who::Sample => {},
            }
        }
        Ok(subjects)
    }

    fn sample_port(&self) -> Result<u16> {
        let url = &self.sample.url;
        let port = url
            .rsplit(':')
            .next()
            .context("the URL of sample-apiserver has no port")?;
        port.parse().with_context(|| format!("no port in {url}"))
    }

    fn through_aggregator(&self, path: &str, body: &str) -> Result<Target> {
        let server = Server::new(port_of(self.cluster)?, self.cluster.client_ca().pem(), None)?;
        let bearer = format!("Bearer {}", self.token);
        Ok(Target {
            server,
            connections: Connections::PerClient,
            path: path.to_owned(),
            headers: headers(&[(AUTHORIZATION.as_str(), &bearer)])?,
            identities: Vec::new(),
            body: body.to_owned(),
        })
    }

    fn direct(&self, port: u16, path: &str, body: &str) -> Result<Target> {
        let account: Vec<_> = self
            .account
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        self.as_front_proxy(port, path, body, headers(&account)?)
    }

    fn cleaner(&self, port: u16, path: &str) -> Result<Target> {
        let administrator = headers(&[
            ("x-remote-user", "bench:cleaner"),
            ("x-remote-group", "system:masters"),
        ])?;
        self.as_front_proxy(port, path, NAME, administrator)
    }

    fn as_front_proxy(
        &self,
        port: u16,
        path: &str,
        body: &str,
        headers: HeaderMap,
    ) -> Result<Target> {
        let client = self.cluster.front_proxy_client();
        Ok(Target {
            server: Server::new(port, self.cluster.client_ca().pem(), Some(client))?,
            connections: Connections::Shared(AGGREGATOR_CONNECTIONS),
            path: path.to_owned(),
            headers,
            identities: Vec::new(),
            body: body.to_owned(),
        })
    }

    /// An administrator at kube-apiserver.
    fn administrator(&self, path: &str) -> Result<Target> {
        let ca = self.cluster.client_ca();
        let pair = ca.client("bench:cleaner", &["system:masters"])?;
        Ok(Target {
            server: Server::new(port_of(self.cluster)?, ca.pem(), Some(&pair))?,
            headers: HeaderMap::new(),
            ..self.through_aggregator(path, NAME)?
        })
    }
}

/// A lease as a crawler asks for it; in another group, the same object.
fn lease_body(group: &str) -> String {
    json!({
        "apiVersion": format!("{group}/v1alpha1"),
        "kind": "ProxyLease",
        "metadata": { "name": NAME },
        "spec": { "poolRef": { "name": POOL }, "target": "shop.example.com", "ttlSeconds": 3600 },
    })
    .to_string()
}

fn path(group: &str, version: &str, resource: &str) -> String {
    format!("/apis/{group}/{version}/namespaces/{NAMESPACE}/{resource}")
}

fn headers(pairs: &[(&str, &str)]) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(HeaderName::try_from(*name)?, HeaderValue::from_str(value)?);
    }
    Ok(headers)
}

fn port_of(cluster: &Cluster) -> Result<u16> {
    let url = cluster.url();
    let port = url
        .rsplit(':')
        .next()
        .context("the URL of the cluster has no port")?;
    port.parse().with_context(|| format!("no port in {url}"))
}
