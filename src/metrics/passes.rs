//! How often and how long the controllers reconcile, under the names that controller-runtime has for
//! it, so that dashboards know them.

use std::sync::Arc;

use kube::runtime::controller::Action;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use runtime_kit::Clock;

/// `controller_runtime_reconcile_total{controller, result}` and
/// `controller_runtime_reconcile_time_seconds{controller}`. Clones count together.
#[derive(Clone)]
pub struct Passes {
    total: IntCounterVec,
    seconds: HistogramVec,
    clock: Arc<dyn Clock>,
}

impl Passes {
    /// Registers both.
    ///
    /// # Errors
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry, clock: Arc<dyn Clock>) -> Result<Self, prometheus::Error> {
        let total = IntCounterVec::new(
            Opts::new(
                "controller_runtime_reconcile_total",
                "Passes by controller and result: success, requeue_after (another is planned), error.",
            ),
            &["controller", "result"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "controller_runtime_reconcile_time_seconds",
                "How long passes took, with their calls to the API server and to providers.",
            )
            .buckets(vec![
                0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
            ]),
            &["controller"],
        )?;
        registry.register(Box::new(total.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self {
            total,
            seconds,
            clock,
        })
    }

    /// Runs a pass of a controller and counts it.
    pub async fn count<E>(
        &self,
        controller: &str,
        pass: impl Future<Output = Result<Action, E>>,
    ) -> Result<Action, E> {
        let begin = self.clock.elapsed();
        let outcome = pass.await;
        let took = self.clock.elapsed().saturating_sub(begin);
        self.seconds
            .with_label_values(&[controller])
            .observe(took.as_secs_f64());
        let result = match &outcome {
            Ok(action) if *action == Action::await_change() => "success",
            Ok(_) => "requeue_after",
            Err(_) => "error",
        };
        self.total.with_label_values(&[controller, result]).inc();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::TextEncoder;
    use runtime_kit::SteppedClock;

    use super::*;

    #[tokio::test]
    async fn passes_are_counted_by_result_and_timed() {
        let registry = Registry::new();
        let clock = SteppedClock::default();
        let passes = Passes::register(&registry, Arc::new(clock.clone())).unwrap();
        let slow = async {
            clock.advance(Duration::from_secs(2));
            Ok::<_, ()>(Action::await_change())
        };
        passes.count("proxy", slow).await.unwrap();
        let planned = async { Ok::<_, ()>(Action::requeue(Duration::from_secs(5))) };
        passes.count("proxy", planned).await.unwrap();
        passes.count("pool", async { Err(()) }).await.unwrap_err();

        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        for line in [
            r#"controller_runtime_reconcile_total{controller="proxy",result="success"} 1"#,
            r#"controller_runtime_reconcile_total{controller="proxy",result="requeue_after"} 1"#,
            r#"controller_runtime_reconcile_total{controller="pool",result="error"} 1"#,
            r#"controller_runtime_reconcile_time_seconds_sum{controller="proxy"} 2"#,
            r#"controller_runtime_reconcile_time_seconds_count{controller="proxy"} 2"#,
        ] {
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
    }
}
