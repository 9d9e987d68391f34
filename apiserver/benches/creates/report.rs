//! The rows: what is compared with what, and the goals of the design.

use crate::memory::Resident;
use crate::rounds::Measured;
use crate::subjects::{CLIENTS, Route, Who};
use crate::table::{Goal, Row, number};

/// What a lease may cost over an instant answer besides one sync, milliseconds.
const ALLOWANCE: f64 = 0.15;

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

/// Prints every subject with its spread over the rounds, then what failed.
#[expect(clippy::print_stdout, reason = "tables are what the benchmark is for")]
pub(crate) fn print(measured: &Measured) {
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
