//! What became of a case: its answers held against expectation and oracle, and against what the case
//! says of itself.

use std::collections::BTreeMap;

use crate::case::{Case, Compare, Route};
use crate::normalise::{differences, transcript};
use crate::play::Transcript;

/// Most lines that are told of one case and way.
const LINES: usize = 12;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As the row demands, on every way.
    Passed,
    /// As the row demands but for a deviation with a reason.
    Deviates(String),
    /// It fails, as it says it does; where, one line each.
    KnownFailure(String, Vec<String>),
    /// Otherwise.
    Failed(Vec<String>),
}

/// The transcripts of one case, by way: ours, and the oracle's when it was asked.
pub(crate) type Played = BTreeMap<Route, (Transcript, Option<Transcript>)>;

/// Decides.
pub(crate) fn judge(case: &Case, played: &Played) -> Verdict {
    let mut by_route = Vec::new();
    let mut about_the_oracle = Vec::new();
    for (route, (ours, oracle)) in played {
        let mut lines = ours.failures.clone();
        if let Some(oracle) = oracle {
            lines.extend(compare(ours, oracle));
            about_the_oracle.extend(
                oracle
                    .failures
                    .iter()
                    .map(|failure| format!("{}, the oracle: {failure}", route.name())),
            );
        }
        let more = lines.len().saturating_sub(LINES);
        lines.truncate(LINES);
        if more > 0 {
            lines.push(format!("{more} more"));
        }
        by_route.push((*route, lines));
    }
    let problems = merged(by_route);
    let asked = case.compare != Compare::Ours;
    let disagrees = case.oracle_disagrees.is_some() || case.deviation.is_some();
    if asked && disagrees && about_the_oracle.is_empty() {
        return Verdict::Failed(vec![
            "the oracle meets the expectation too: the mark is stale".to_owned(),
        ]);
    }
    if !disagrees && !about_the_oracle.is_empty() {
        return Verdict::Failed(about_the_oracle);
    }
    match (&case.known_failure, &case.deviation, problems.is_empty()) {
        (Some(_), _, true) => Verdict::Failed(vec![
            "it passes: take the mark knownFailure away".to_owned(),
        ]),
        (Some(what), _, false) => Verdict::KnownFailure(what.clone(), problems),
        (None, _, false) => Verdict::Failed(problems),
        (None, Some(reason), true) => Verdict::Deviates(reason.clone()),
        (None, None, true) => Verdict::Passed,
    }
}

/// Lines with the way they were found on; those of one way are left out where they say the same as
/// those of the other.
fn merged(by_route: Vec<(Route, Vec<String>)>) -> Vec<String> {
    if let [(_, first), (_, second)] = by_route.as_slice()
        && !first.is_empty()
        && first.len() == second.len()
    {
        return first
            .iter()
            .map(|line| format!("both ways: {line}"))
            .collect();
    }
    by_route
        .into_iter()
        .flat_map(|(route, lines)| {
            lines
                .into_iter()
                .map(move |line| format!("{}: {line}", route.name()))
        })
        .collect()
}

/// Where our answers differ from the oracle's.
pub(crate) fn compare(ours: &Transcript, oracle: &Transcript) -> Vec<String> {
    let (ours, oracle) = (transcript(&ours.answers), transcript(&oracle.answers));
    if ours.len() != oracle.len() {
        return vec![format!(
            "ours came {} steps far, the oracle {}",
            ours.len(),
            oracle.len()
        )];
    }
    ours.iter()
        .zip(&oracle)
        .flat_map(|((number, ours), (_, oracle))| {
            differences(ours, oracle, &format!("step {number}: "))
        })
        .collect()
}
