//! What the process counts. Gauges over objects are read when somebody asks.

use std::sync::Arc;

use aggregated_api::store::Store;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use crate::allocator::Allocator;

/// Counters that the rules raise.
#[derive(Debug)]
pub struct Metrics {
    denials: IntCounterVec,
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
        registry.register(Box::new(denials.clone()))?;
        Ok(Arc::new(Self { denials }))
    }

    /// A create was denied.
    pub fn denied(&self, reason: &str) {
        self.denials.with_label_values(&[reason]).inc();
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
