//! Reads metrics in the text format of Prometheus, as far as this benchmark needs it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// All series of a process at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scrape(Vec<Series>);

#[derive(Debug, Clone)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Observations by upper bound of their bucket, cumulative.
#[derive(Debug, Clone, Default)]
pub(crate) struct Histogram(Vec<(f64, f64)>);

/// What an admin endpoint answers to `/metrics`.
pub(crate) async fn scrape(admin: SocketAddr) -> Result<Scrape> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = client
        .get(format!("http://{admin}/metrics").parse()?)
        .await
        .with_context(|| format!("cannot read the metrics at {admin}"))?;
    ensure!(
        answer.status().is_success(),
        "{admin}/metrics answered {}",
        answer.status()
    );
    let body = answer.into_body().collect().await?.to_bytes();
    Scrape::parse(std::str::from_utf8(&body)?)
}

// === impl Scrape ===

impl Scrape {
    /// Reads the text format. Values of labels with quotes or commas in them are not ours.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(Series::parse)
            .collect::<Result<_>>()
            .map(Self)
            .context("cannot read metrics")
    }

    /// The sum over all series of that name whose labels `wanted` accepts.
    pub(crate) fn sum(
        &self,
        name: &str,
        wanted: impl Fn(&BTreeMap<String, String>) -> bool,
    ) -> f64 {
        let found = self
            .0
            .iter()
            .filter(|series| series.name == name && wanted(&series.labels));
        found.map(|series| series.value).sum()
    }

    /// A histogram that has no labels but `le`.
    pub(crate) fn histogram(&self, name: &str) -> Histogram {
        let name = format!("{name}_bucket");
        let buckets = self.0.iter().filter(|series| series.name == name);
        let bucket = |series: &Series| {
            let bound = series.labels.get("le")?.parse().ok()?;
            Some((bound, series.value))
        };
        Histogram(buckets.filter_map(bucket).collect())
    }
}

// === impl Series ===

impl Series {
    fn parse(line: &str) -> Result<Self> {
        let (head, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        let value = value.parse().with_context(|| line.to_owned())?;
        let (name, labels) = match head.split_once('{') {
            None => (head, ""),
            Some((name, rest)) => (name, rest.trim_end_matches('}')),
        };
        let pairs = labels.split("\",").filter_map(|pair| {
            let (label, value) = pair.split_once("=\"")?;
            Some((label.to_owned(), value.trim_end_matches('"').to_owned()))
        });
        Ok(Self {
            name: name.to_owned(),
            labels: pairs.collect(),
            value,
        })
    }
}

// === impl Histogram ===

impl Histogram {
    /// The observations since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let earlier = |bound: f64| {
            let found = before
                .0
                .iter()
                .find(|(known, _)| known.total_cmp(&bound).is_eq());
            found.map_or(0.0, |(_, count)| *count)
        };
        let buckets = self.0.iter();
        Self(
            buckets
                .map(|(bound, count)| (*bound, count - earlier(*bound)))
                .collect(),
        )
    }

    /// The value that `share` of the observations do not exceed, interpolated within its bucket as
    /// Prometheus does it; none without observations.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let all = self
            .0
            .last()
            .map(|(_, count)| *count)
            .filter(|count| *count > 0.0)?;
        let rank = share * all;
        let (mut low, mut below) = (0.0, 0.0);
        for &(bound, count) in &self.0 {
            if count >= rank {
                if bound.is_infinite() {
                    return Some(low);
                }
                let within = (rank - below) / (count - below).max(f64::MIN_POSITIVE);
                return Some(low + (bound - low) * within);
            }
            (low, below) = (bound, count);
        }
        Some(low)
    }
}
