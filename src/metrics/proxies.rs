//! Metrics about objects, read from the store when they are scraped.

use std::collections::BTreeMap;

use crawl_api::proxy::{Phase, Proxy};
use kube::runtime::reflector::Store;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry};

/// `proxy_operator_proxies{phase}`.
struct Proxies {
    store: Store<Proxy>,
    gauge: IntGaugeVec,
}

/// Registers the metrics about Proxies.
///
/// # Errors
/// A metric of the same name is registered already.
pub fn register(registry: &Registry, store: Store<Proxy>) -> Result<(), prometheus::Error> {
    let options = Opts::new("proxy_operator_proxies", "Proxy objects by phase.");
    let gauge = IntGaugeVec::new(options, &["phase"])?;
    registry.register(Box::new(Proxies { store, gauge }))
}

impl Collector for Proxies {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut counts: BTreeMap<Phase, i64> = Phase::ALL.map(|phase| (phase, 0)).into();
        for proxy in self.store.state() {
            *counts.entry(proxy.phase()).or_default() += 1;
        }
        for (phase, count) in counts {
            self.gauge.with_label_values(&[phase.as_str()]).set(count);
        }
        self.gauge.collect()
    }
}

#[cfg(test)]
mod tests {
    use crawl_api::proxy::ProxySpec;
    use kube::runtime::{reflector, watcher};

    use super::*;

    #[test]
    fn proxies_are_counted_by_phase_when_scraped() {
        let (reader, mut writer) = reflector::store();
        let registry = Registry::new();
        register(&registry, reader).unwrap();
        let scrape = || {
            prometheus::TextEncoder::new()
                .encode_to_string(&registry.gather())
                .unwrap()
        };
        assert!(scrape().contains(r#"proxy_operator_proxies{phase="Ready"} 0"#));

        let mut proxy = Proxy::new("p", ProxySpec::managed("local"));
        proxy.status.get_or_insert_default().phase = Phase::Ready;
        writer.apply_watcher_event(&watcher::Event::Apply(proxy.clone()));
        assert!(scrape().contains(r#"proxy_operator_proxies{phase="Ready"} 1"#));

        writer.apply_watcher_event(&watcher::Event::Delete(proxy));
        assert!(scrape().contains(r#"proxy_operator_proxies{phase="Ready"} 0"#));
    }
}
