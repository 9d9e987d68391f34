//! The series of the health engine. Those of a proxy go when it goes.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use super::failure::RESULTS;

/// The series.
pub(super) struct Metrics {
    probes: IntCounterVec,
    seconds: HistogramVec,
    lag: Histogram,
}

/// Which proxy a series is about.
#[derive(Clone, Copy)]
pub(super) struct Labels<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let probes = IntCounterVec::new(
            Opts::new(
                "proxy_operator_probes_total",
                "Probes through a proxy, by result: ProbeSucceeded or the reason of the failure.",
            ),
            &["namespace", "name", "result"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "proxy_operator_probe_seconds",
                "How long successful probes through a proxy took.",
            )
            .buckets(vec![0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            &["namespace", "name"],
        )?;
        let lag = Histogram::with_opts(
            HistogramOpts::new(
                "proxy_operator_probe_lag_seconds",
                "How much later than due probes started.",
            )
            .buckets(vec![
                0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0,
                30.0, 60.0,
            ]),
        )?;
        registry.register(Box::new(probes.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(lag.clone()))?;
        Ok(Self {
            probes,
            seconds,
            lag,
        })
    }

    pub(super) fn started(&self, lag: Duration) {
        self.lag.observe(lag.as_secs_f64());
    }

    /// Counts a probe that ended; only one that succeeded has a latency worth keeping.
    pub(super) fn ended(&self, of: Labels<'_>, result: &str, latency: Option<Duration>) {
        let Labels { namespace, name } = of;
        self.probes
            .with_label_values(&[namespace, name, result])
            .inc();
        if let Some(latency) = latency {
            self.seconds
                .with_label_values(&[namespace, name])
                .observe(latency.as_secs_f64());
        }
    }

    pub(super) fn forget(&self, of: Labels<'_>) {
        let Labels { namespace, name } = of;
        // A series that never was cannot be removed; that is no error here.
        let _absent = self
            .seconds
            .remove_label_values(&[namespace, name])
            .is_err();
        for result in RESULTS {
            let _absent = self
                .probes
                .remove_label_values(&[namespace, name, result])
                .is_err();
        }
    }
}
