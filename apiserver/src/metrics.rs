//! What the process counts. Gauges over objects are read when somebody asks.

use std::sync::Arc;

use aggregated_api::store::Store;
use crawl_api::report::{LeaseReportSpec, ReportResult, Traffic};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::allocator::Allocator;

/// Counters that the rules raise.
#[derive(Debug)]
pub struct Metrics {
    denials: IntCounterVec,
    requests: IntCounterVec,
    bytes: IntCounter,
}

/// Numbers read from the allocator and the store at scrape time.
struct Gauges {
    allocator: Arc<Allocator>,
    store: Arc<dyn Store>,
    active: IntGauge,
    waiting: IntGauge,
    proxies: IntGauge,
    bytes: IntGauge,
}

// === impl Metrics ===

impl Metrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// A metric of one of the names is registered already.
    pub fn new(registry: &Registry) -> Result<Arc<Self>, prometheus::Error> {
        let denials = IntCounterVec::new(
            Opts::new(
                "lease_apiserver_denials_total",
                "Creates that were denied, by the reason that excluded most candidates.",
            ),
            &["reason"],
        )?;
        let requests = IntCounterVec::new(
            Opts::new(
                "lease_apiserver_reported_requests_total",
                "Requests through leased proxies as their holders report them: whether an answer came \
                 (OK or Error), and the class of its status code, or none when it was not said.",
            ),
            &["result", "status"],
        )?;
        let bytes = IntCounter::new(
            "lease_apiserver_reported_bytes_total",
            "Bytes through leased proxies, as their holders report them.",
        )?;
        registry.register(Box::new(denials.clone()))?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(bytes.clone()))?;
        Ok(Arc::new(Self {
            denials,
            requests,
            bytes,
        }))
    }

    /// A holder reported how one request went.
    pub fn reported(&self, report: LeaseReportSpec) {
        let class = report.http_status.map(|status| status / 100);
        let labels = [result(report.result), status_class(class)];
        self.requests.with_label_values(&labels).inc();
    }

    /// A holder reported counts.
    pub fn reported_traffic(&self, traffic: Traffic) {
        let Traffic { ok, errors, bytes } = traffic;
        for (outcome, count) in [(ReportResult::Ok, ok), (ReportResult::Error, errors)] {
            let count = u64::try_from(count).unwrap_or(0);
            let labels = [result(outcome), status_class(None)];
            self.requests.with_label_values(&labels).inc_by(count);
        }
        self.bytes.inc_by(u64::try_from(bytes).unwrap_or(0));
    }

    /// A create was denied.
    pub fn denied(&self, reason: &str) {
        self.denials.with_label_values(&[reason]).inc();
    }
}

fn result(result: ReportResult) -> &'static str {
    match result {
        ReportResult::Ok => "OK",
        ReportResult::Error => "Error",
    }
}

fn status_class(class: Option<u16>) -> &'static str {
    match class {
        Some(1) => "1xx",
        Some(2) => "2xx",
        Some(3) => "3xx",
        Some(4) => "4xx",
        Some(5) => "5xx",
        Some(_) | None => "none",
    }
}

/// Registers what is read at scrape time.
///
/// # Errors
/// A metric of one of the names is registered already.
pub fn register_gauges(
    registry: &Registry,
    allocator: Arc<Allocator>,
    store: Arc<dyn Store>,
) -> Result<(), prometheus::Error> {
    registry.register(Box::new(Gauges {
        allocator,
        store,
        active: IntGauge::new(
            "lease_apiserver_leases_active",
            "Leases that hold a slot, those on their way included.",
        )?,
        waiting: IntGauge::new(
            "lease_apiserver_leases_waiting",
            "Leases that wait for a proxy.",
        )?,
        proxies: IntGauge::new("lease_apiserver_proxies", "Proxies that are known.")?,
        bytes: IntGauge::new("lease_apiserver_store_bytes", "Bytes the store uses.")?,
    }))
}

impl Gauges {
    fn all(&self) -> [&IntGauge; 4] {
        [&self.active, &self.waiting, &self.proxies, &self.bytes]
    }
}

impl Collector for Gauges {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let totals = self.allocator.totals();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.active.set(count(totals.active));
        self.waiting.set(count(totals.waiting));
        self.proxies.set(count(totals.proxies));
        self.bytes
            .set(i64::try_from(self.store.size_bytes()).unwrap_or(i64::MAX));
        self.all()
            .into_iter()
            .flat_map(Collector::collect)
            .collect()
    }
}
