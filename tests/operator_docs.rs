//! docs/troubleshooting.md explains every condition and every reason there is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

const SOURCE: &str = include_str!("../crates/crawl-api/src/conditions.rs");
const PAGE: &str = include_str!("../docs/troubleshooting.md");

#[test]
fn every_condition_and_reason_has_its_row() {
    let constants: BTreeSet<_> = SOURCE
        .lines()
        .filter(|line| line.starts_with("pub const "))
        .map(|line| line.split('"').nth(1).unwrap())
        .collect();
    let rows: BTreeSet<_> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let missing: Vec<_> = constants.difference(&rows).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(constants.len() > 50, "{}", constants.len());
}
