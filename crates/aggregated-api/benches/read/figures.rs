//! What was measured, by name and server, once per round; and the rows that come of it.

use std::collections::BTreeMap;

use crate::machine;
use crate::subjects::Who;
use crate::table::{Goal, Row, number};

/// All figures of a run, in the order in which they first appeared.
#[derive(Default)]
pub(crate) struct Figures {
    metrics: Vec<Metric>,
}

struct Metric {
    name: String,
    unit: &'static str,
    values: BTreeMap<Who, Vec<f64>>,
    /// Why a server has no figure.
    failures: BTreeMap<Who, String>,
}

impl Figures {
    /// Adds the figure of a round.
    pub(crate) fn add(&mut self, name: String, unit: &'static str, who: Who, value: f64) {
        let metric = self.metric(name, unit);
        metric.values.entry(who).or_default().push(value);
    }

    /// Says that a server has no figure.
    pub(crate) fn fail(&mut self, name: String, unit: &'static str, who: Who, why: String) {
        self.metric(name, unit).failures.entry(who).or_insert(why);
    }

    fn metric(&mut self, name: String, unit: &'static str) -> &mut Metric {
        let at = self.metrics.iter().position(|metric| metric.name == name);
        let at = at.unwrap_or(self.metrics.len());
        if at == self.metrics.len() {
            self.metrics.push(Metric {
                name,
                unit,
                values: BTreeMap::new(),
                failures: BTreeMap::new(),
            });
        }
        &mut self.metrics[at]
    }

    /// Whether everybody has all figures.
    pub(crate) fn complete(&self) -> bool {
        self.metrics.iter().all(|metric| metric.failures.is_empty())
    }

    /// The rows: ours on redb beside the peer, then ours on etcd where it was measured, and bounds that
    /// the design sets.
    pub(crate) fn rows(&self, bounds: &[(String, f64)]) -> Vec<Row> {
        let mut rows = Vec::new();
        for metric in &self.metrics {
            let peer = metric.median(Who::Sample);
            let row = |name: &str, who| {
                let row = Row::new(name.to_owned(), metric.unit, metric.median(who));
                row.beside(peer, Who::Sample.name(), None)
            };
            rows.push(row(&metric.name, Who::Redb));
            if metric.values.contains_key(&Who::Etcd) || metric.failures.contains_key(&Who::Etcd) {
                rows.push(row(&format!("{}, ours on etcd", metric.name), Who::Etcd));
            }
            for (_, bound) in bounds.iter().filter(|(name, _)| *name == metric.name) {
                let row = Row::new(metric.name.clone(), metric.unit, metric.median(Who::Redb));
                rows.push(row.beside(Some(*bound), "the design", Some(Goal::AtMost(1.0))));
            }
        }
        rows
    }

    /// Prints what the medians hide: the spread over the rounds, and what failed.
    #[expect(clippy::print_stdout, reason = "tables are what the benchmark is for")]
    pub(crate) fn print_spread(&self) {
        println!(
            "\n{:<66} {:>24}  server",
            "spread over the rounds", "min - max"
        );
        for metric in &self.metrics {
            for (who, values) in &metric.values {
                let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let spread = format!(
                    "{} - {} {}",
                    number(Some(least)),
                    number(Some(most)),
                    metric.unit
                );
                println!("{:<66} {spread:>24}  {}", metric.name, who.name());
            }
        }
        for metric in &self.metrics {
            for (who, why) in &metric.failures {
                println!("\nNO FIGURE for {}, {}: {why}", metric.name, who.name());
            }
        }
    }
}

impl Metric {
    fn median(&self, who: Who) -> Option<f64> {
        if self.failures.contains_key(&who) {
            return None;
        }
        self.values.get(&who).cloned().map(machine::median)
    }
}
