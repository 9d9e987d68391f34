//! The conformance runner: plays the cases under `tests/conformance/` against our server and against
//! upstream's, compares, and tells which rows of the specification hold.
//!
//! It is a test target without the test harness. Arguments select cases by a part of their id; a run
//! of all cases also plays the deliberate faults and checks `docs/conformance.md`
//! (`UPDATE_GOLDEN=1` rewrites it).

#![expect(clippy::print_stdout, reason = "the report of a run is what it prints")]

mod case;
mod client;
mod fault_list;
mod faults;
mod gadgets;
mod judge;
mod normalise;
mod page;
mod pattern;
mod play;
mod rows;
mod subjects;
#[path = "../../examples/wardle/wardle/mod.rs"]
#[allow(dead_code, reason = "shared with the example")]
mod wardle;

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;

use case::{Case, Compare, Route};
use fault_list::FAULTS;
use futures::StreamExt as _;
use judge::{Played, Verdict, compare, judge};
use page::Results;
use play::{Transcript, play};
use subjects::Subject;

/// Cases played at a time.
const AT_ONCE: usize = 6;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let filters: Vec<String> = arguments
        .into_iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    runtime_kit::tls::install_default_provider();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run(&filters)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("the run broke off: {error:#}");
            println!("0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        },
    }
}

/// Plays; `false` when something failed.
async fn run(filters: &[String]) -> anyhow::Result<bool> {
    let sections = rows::load()?;
    let mut cases = case::load()?;
    let all = filters.is_empty();
    cases.retain(|case| all || filters.iter().any(|filter| case.id.contains(filter)));
    if cases.is_empty() {
        println!("0 passed, 0 failed, 0 skipped");
        return Ok(true);
    }
    let (ours, oracle) = tokio::try_join!(Subject::ours(), Subject::oracle())?;
    let (together, alone): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| !case.exclusive);
    let mut results = Results::new();
    let mut transcripts = HashMap::new();
    for (cases, at_once) in [(together, AT_ONCE), (alone, 1)] {
        let mut playing = futures::stream::iter(cases)
            .map(|case| async {
                let played = play_everywhere(&case, &ours, &oracle).await;
                (case, played)
            })
            .buffer_unordered(at_once);
        while let Some((case, played)) = playing.next().await {
            let verdict = judge(&case, &played);
            tell(&case, &verdict, !all);
            if let Some((_, Some(oracle))) = played.get(&Route::Direct) {
                transcripts.insert(case.id.clone(), oracle.clone());
            }
            results.push((case, verdict));
        }
    }
    ours.check_running()?;
    oracle.check_running()?;
    results
        .sort_by(|(a, _), (b, _)| (&a.section, &a.rows, &a.id).cmp(&(&b.section, &b.rows, &b.id)));
    let mut problems = deviations_of_p0(&sections, &results);
    problems.extend(unknown_rows(&sections, &results));
    if all {
        problems.extend(unnoticed_faults(&results, &ours, &transcripts).await);
        problems.extend(stale_page(&page::render(&sections, &results, FAULTS.len())));
        print!("{}", page::sections(&sections, &results));
    }
    ours.stop().await?;
    for problem in &problems {
        println!("FAILED: {problem}");
    }
    Ok(summary(&results, problems.len()))
}

async fn play_everywhere(case: &Case, ours: &Subject, oracle: &Subject) -> Played {
    let mut played = BTreeMap::new();
    for route in &case.routes {
        let mine = play(case, ours, *route, None);
        let pair = if case.compare == Compare::Ours {
            (mine.await, None)
        } else {
            let (mine, theirs) = tokio::join!(mine, play(case, oracle, *route, None));
            (mine, Some(theirs))
        };
        played.insert(*route, pair);
    }
    played
}

/// Prints what became of a case; how a known failure fails is for who asks for that case.
fn tell(case: &Case, verdict: &Verdict, in_full: bool) {
    match verdict {
        Verdict::Passed => {},
        Verdict::Deviates(reason) => println!("deviates: {}: {reason}", case.id),
        Verdict::KnownFailure(what, lines) => {
            println!("known failure: {}: {what}", case.id);
            if in_full {
                for line in lines {
                    println!("    {line}");
                }
            }
        },
        Verdict::Failed(lines) => {
            println!("FAILED: {} (rows {:?}): {}", case.id, case.rows, case.title);
            for line in lines {
                println!("    {line}");
            }
        },
    }
}

/// P0 rows have no deviations.
fn deviations_of_p0(sections: &[rows::Section], results: &Results) -> Vec<String> {
    let p0 = |row: &u16| {
        sections
            .iter()
            .flat_map(|section| &section.rows)
            .any(|known| known.number == *row && known.priority == "P0")
    };
    results
        .iter()
        .filter(|(case, verdict)| {
            matches!(verdict, Verdict::Deviates(_)) && case.rows.iter().any(p0)
        })
        .map(|(case, _)| format!("{} deviates from a P0 row", case.id))
        .collect()
}

fn unknown_rows(sections: &[rows::Section], results: &Results) -> Vec<String> {
    let known = |row: &u16| {
        sections
            .iter()
            .flat_map(|section| &section.rows)
            .any(|known| known.number == *row)
    };
    results
        .iter()
        .flat_map(|(case, _)| case.rows.iter().map(move |row| (case, row)))
        .filter(|(_, row)| !known(row))
        .map(|(case, row)| format!("{} covers row {row}, which is not in rows.yaml", case.id))
        .collect()
}

/// Faults that none of the cases they name notices.
async fn unnoticed_faults(
    results: &Results,
    ours: &Subject,
    oracle: &HashMap<String, Transcript>,
) -> Vec<String> {
    let outcomes = futures::stream::iter(FAULTS).map(|fault| async move {
        for id in fault.cases {
            let passing = results
                .iter()
                .find(|(case, verdict)| case.id == *id && *verdict == Verdict::Passed);
            let Some((case, _)) = passing else {
                continue;
            };
            let played = play(case, ours, Route::Direct, Some(fault.name)).await;
            let differs = oracle
                .get(case.id.as_str())
                .is_some_and(|oracle| !compare(&played, oracle).is_empty());
            if !played.failures.is_empty() || differs {
                return None;
            }
        }
        Some(format!(
            "no passing case of {:?} notices the fault {}: {}",
            fault.cases, fault.name, fault.what
        ))
    });
    let unnoticed: Vec<_> = outcomes
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    println!(
        "{} of {} deliberate faults are noticed",
        FAULTS.len() - unnoticed.len(),
        FAULTS.len()
    );
    unnoticed
}

fn stale_page(page: &str) -> Option<String> {
    let path = page::path();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, page)
            .err()
            .map(|error| format!("{}: {error}", path.display()));
    }
    let current = std::fs::read_to_string(&path).is_ok_and(|text| text == page);
    (!current).then(|| {
        "docs/conformance.md is stale: UPDATE_GOLDEN=1 make conformance rewrites it".to_owned()
    })
}

fn summary(results: &Results, problems: usize) -> bool {
    let count = |wanted: fn(&Verdict) -> bool| {
        results
            .iter()
            .filter(|(_, verdict)| wanted(verdict))
            .count()
    };
    let deviating = count(|verdict| matches!(verdict, Verdict::Deviates(_)));
    let known = count(|verdict| matches!(verdict, Verdict::KnownFailure(..)));
    let failed = count(|verdict| matches!(verdict, Verdict::Failed(_))) + problems;
    let passed = count(|verdict| *verdict == Verdict::Passed) + deviating;
    println!("{deviating} of those that passed deviate with a reason; {known} fail as is known");
    println!("{passed} passed, {failed} failed, 0 skipped");
    failed == 0
}
