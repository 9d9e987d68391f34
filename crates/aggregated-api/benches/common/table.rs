//! How every benchmark tells its results: a table for people, and the same rows as a file.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// One line of the table, one object of the JSON file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// What is measured.
    name: String,
    /// Unit of `ours` and `peer`.
    unit: &'static str,
    /// Our figure; null when it could not be taken.
    ours: Option<f64>,
    /// The peer's, of the same run.
    peer: Option<f64>,
    /// Who that is.
    peer_name: Option<&'static str>,
    /// `ours` / `peer`.
    ratio: Option<f64>,
    /// What the ratio should be, such as `>= 0.85`; `none`: our figure should be 0.
    goal: Option<String>,
    /// Whether it is; null when there is no goal or no figure.
    met: Option<bool>,
}

/// A bound on a ratio.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// The more the better.
    AtLeast(f64),
    /// The less the better.
    AtMost(f64),
}

impl Row {
    /// A figure by itself.
    pub(crate) fn new(name: String, unit: &'static str, ours: Option<f64>) -> Self {
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

    /// The same beside that of a peer.
    pub(crate) fn beside(
        self,
        peer: Option<f64>,
        peer_name: &'static str,
        goal: Option<Goal>,
    ) -> Self {
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

    /// Says that there should be none of it at all.
    pub(crate) fn none_wanted(self) -> Self {
        Self {
            met: self.ours.map(|ours| ours.abs() < f64::EPSILON),
            goal: Some("none".to_owned()),
            ..self
        }
    }
}

/// To three decimals: more would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

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

/// Prints the rows.
#[expect(
    clippy::print_stdout,
    reason = "the table is what the benchmark is for"
)]
pub(crate) fn print(rows: &[Row]) {
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
}

/// A figure as tables have it.
pub(crate) fn number(value: Option<f64>) -> String {
    match value {
        None => "failed".to_owned(),
        Some(value) if value.abs() >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.2}"),
    }
}
