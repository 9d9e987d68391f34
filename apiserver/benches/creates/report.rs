//! The rows: what is compared with what, and the goals of the design.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::memory::Resident;
use crate::rounds::Measured;
use crate::subjects::{CLIENTS, Route, Who};

/// What a lease may cost over an instant answer besides one sync, milliseconds.
const ALLOWANCE: f64 = 0.15;

/// One line of the table, one object of the JSON file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// What is measured.
    name: String,
    /// Unit of `ours` and `peer`.
    unit: &'static str,
    /// Our figure; null when a request failed.
    ours: Option<f64>,
    /// The peer's, of the same run.
    peer: Option<f64>,
    /// Who that is.
    peer_name: Option<&'static str>,
    /// `ours` / `peer`.
    ratio: Option<f64>,
    /// What the ratio should be, such as `>= 0.85`.
    goal: Option<String>,
    /// Whether it is; null when there is no goal or no figure.
    met: Option<bool>,
}

#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// All rows of a run.
pub(crate) fn rows(measured: &Measured, memory: &[Resident]) -> Vec<Row> {
    let mut rows = Vec::new();
    for clients in CLIENTS {
        for (route, peer) in [
            (Route::Aggregator, Who::Instant),
            (Route::Aggregator, Who::Crd),
            (Route::Aggregator, Who::Sample),
            (Route::Direct, Who::Instant),
            (Route::Direct, Who::Sample),
        ] {
            let name = format!("creates {}, {}", route.name(), count(clients));
            let rate = |who| measured.median((who, route, clients), |sample| sample.rate);
            let goal = goal_of(route, peer).filter(|_| clients == 64);
            rows.push(Row::new(name, "1/s", rate(Who::Ours)).beside(rate(peer), peer.name(), goal));
        }
    }
    let direct = |who| measured.median((who, Route::Direct, 64), |sample| sample.rate);
    let many = Row::new(
        "creates directly, 64 clients, 1,000 identities".to_owned(),
        "1/s",
        direct(Who::OursManyIdentities),
    );
    rows.push(many.beside(
        direct(Who::Ours),
        "the same with one identity",
        Some(Goal::AtLeast(0.8)),
    ));
    rows.extend(latencies(measured));
    rows.extend(memory.iter().map(|resident| {
        Row::new(
            format!("resident memory, {}", resident.of),
            "MiB",
            Some(resident.mib),
        )
    }));
    rows
}

fn latencies(measured: &Measured) -> Vec<Row> {
    let mut rows = Vec::new();
    for clients in [1, 64] {
        for route in [Route::Aggregator, Route::Direct] {
            let p50 = |who| measured.median((who, route, clients), |sample| sample.p50);
            let p99 = |who| measured.median((who, route, clients), |sample| sample.p99);
            let instant = Who::Instant.name();
            let name = |what| format!("{what} of a create {}, {}", route.name(), count(clients));
            rows.push(Row::new(name("p50"), "ms", p50(Who::Ours)).beside(
                p50(Who::Instant),
                instant,
                None,
            ));
            rows.push(Row::new(name("p99"), "ms", p99(Who::Ours)).beside(
                p99(Who::Instant),
                instant,
                None,
            ));
        }
    }
    let p50 = |who| measured.median((who, Route::Aggregator, 1), |sample| sample.p50);
    let added = p50(Who::Ours)
        .zip(p50(Who::Instant))
        .map(|(ours, instant)| ours - instant);
    let row = Row::new(
        "p50 added to the instant peer through the aggregator, 1 client".to_owned(),
        "ms",
        added,
    );
    let allowed = measured.sync() + ALLOWANCE;
    rows.push(row.beside(
        Some(allowed),
        "one fsync + 0.15 ms",
        Some(Goal::AtMost(1.0)),
    ));
    rows.push(Row::new(
        "fsync of 4 KiB".to_owned(),
        "ms",
        Some(measured.sync()),
    ));
    rows
}

fn goal_of(route: Route, peer: Who) -> Option<Goal> {
    match (route, peer) {
        (Route::Aggregator, Who::Instant) => Some(Goal::AtLeast(0.85)),
        (Route::Aggregator, Who::Crd) => Some(Goal::AtLeast(3.5)),
        (Route::Direct, Who::Instant) => Some(Goal::AtLeast(0.30)),
        (Route::Direct, Who::Sample) => Some(Goal::AtLeast(8.0)),
        (Route::Aggregator | Route::Direct, _) => None,
    }
}

fn count(clients: usize) -> String {
    if clients == 1 {
        "1 client".to_owned()
    } else {
        format!("{clients} clients")
    }
}

// === impl Row ===

impl Row {
    fn new(name: String, unit: &'static str, ours: Option<f64>) -> Self {
        Self {
            name,
            unit,
            ours: ours.map(rounded),
            peer: None,
            peer_name: None,
            ratio: None,
            goal: None,
            met: None,
        }
    }

    fn beside(self, peer: Option<f64>, peer_name: &'static str, goal: Option<Goal>) -> Self {
        let ratio = self.ours.zip(peer).map(|(ours, peer)| ours / peer);
        Self {
            peer: peer.map(rounded),
            peer_name: Some(peer_name),
            met: ratio.zip(goal).map(|(ratio, goal)| goal.is_met(ratio)),
            goal: goal.map(Goal::text),
            ratio: ratio.map(rounded),
            ..self
        }
    }
}

/// To three decimals: more would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

// === impl Goal ===

impl Goal {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= bound,
            Self::AtMost(bound) => ratio <= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {bound:.2}"),
            Self::AtMost(bound) => format!("<= {bound:.2}"),
        }
    }
}

/// Writes the rows as a JSON array.
pub(crate) fn write(rows: &[Row], path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(rows)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the comparison, then every subject with its spread over the rounds, then what failed.
#[expect(
    clippy::print_stdout,
    reason = "the table is what the benchmark is for"
)]
pub(crate) fn print(rows: &[Row], measured: &Measured) {
    println!(
        "\n{:<66} {:>9} {:>9} {:>4}  {:>6} {:>8}  met  peer",
        "", "ours", "peer", "", "ratio", "goal"
    );
    for row in rows {
        let met = match row.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "",
        };
        println!(
            "{:<66} {:>9} {:>9} {:>4}  {:>6} {:>8}  {met:<3}  {}",
            row.name,
            number(row.ours),
            if row.peer_name.is_some() {
                number(row.peer)
            } else {
                String::new()
            },
            row.unit,
            row.ratio
                .map(|ratio| format!("{ratio:.2}"))
                .unwrap_or_default(),
            row.goal.as_deref().unwrap_or_default(),
            row.peer_name.unwrap_or_default(),
        );
    }
    println!(
        "\n{:<60} {:>7} {:>9} {:>19} {:>8} {:>8}",
        "each subject", "clients", "1/s", "min - max", "p50 ms", "p99 ms"
    );
    for (&(who, route, clients), samples) in &measured.samples {
        let cell = (who, route, clients);
        let rates = || samples.iter().map(|sample| sample.rate);
        let spread = format!(
            "{:.0} - {:.0}",
            rates().fold(f64::INFINITY, f64::min),
            rates().fold(0.0, f64::max)
        );
        println!(
            "{:<60} {clients:>7} {:>9} {spread:>19} {:>8} {:>8}",
            format!("{} {}", who.name(), route.name()),
            number(measured.median(cell, |sample| sample.rate)),
            number(measured.median(cell, |sample| sample.p50)),
            number(measured.median(cell, |sample| sample.p99)),
        );
    }
    for (&(who, route, clients), failure) in &measured.failures {
        println!(
            "\nNO FIGURE for {} {}, {}: {failure}",
            who.name(),
            route.name(),
            count(clients)
        );
    }
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "failed".to_owned(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.2}"),
    }
}
