//! Cases as they stand in `tests/conformance/<section>/*.yaml`, read and checked.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// One case: requests that are played against each server, and what is expected of the answers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    /// Unique name; `<id>-…` are its namespaces.
    pub(crate) id: String,
    /// The rows of the specification it covers.
    pub(crate) rows: Vec<u16>,
    /// What holds when it passes, as a sentence.
    pub(crate) title: String,
    /// Ways it is played.
    #[serde(default = "both_routes")]
    pub(crate) routes: Vec<Route>,
    /// Plays while no other case does: it sees or changes what all share.
    #[serde(default)]
    pub(crate) exclusive: bool,
    /// The answers are compared with, unless a step says otherwise.
    #[serde(default)]
    pub(crate) compare: Compare,
    /// The source file that makes upstream's server break its row: only the expectation counts.
    #[serde(default)]
    pub(crate) oracle_disagrees: Option<String>,
    /// Why our answers intentionally differ from the oracle's: only the expectation counts.
    #[serde(default)]
    pub(crate) deviation: Option<String>,
    /// What our server still does wrong: the case has to fail.
    #[serde(default)]
    pub(crate) known_failure: Option<String>,
    /// In order.
    pub(crate) steps: Vec<Step>,
    /// Section of the specification: the folder it stands in.
    #[serde(skip)]
    pub(crate) section: String,
}

fn both_routes() -> Vec<Route> {
    vec![Route::Direct, Route::Aggregated]
}

/// A way to a server.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Route {
    /// As kube-aggregator sends: front-proxy certificate and `X-Remote-*`.
    Direct,
    /// Through kube-apiserver.
    Aggregated,
}

impl Route {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Aggregated => "aggregated",
        }
    }
}

/// What answers are held against.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Compare {
    /// The expectation, and the oracle's answer to the same request.
    #[default]
    Oracle,
    /// The expectation only, which the oracle has to meet too.
    Expected,
    /// The expectation only; the oracle is not asked.
    Ours,
}

/// One step; exactly one of the verbs is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Step {
    /// Sends a request and reads the whole answer.
    #[serde(default)]
    pub(crate) request: Option<Request>,
    /// Opens a stream under a name.
    #[serde(default)]
    pub(crate) watch: Option<Request>,
    /// Reads events of a stream.
    #[serde(default)]
    pub(crate) events: Option<Events>,
    /// Expects a stream to end, with nothing more sent.
    #[serde(default)]
    pub(crate) ended: Option<String>,
    /// Gives a stream up.
    #[serde(default)]
    pub(crate) close: Option<String>,
    /// Runs kubectl.
    #[serde(default)]
    pub(crate) kubectl: Option<Kubectl>,
    /// Forgets history up to this revision.
    #[serde(default)]
    pub(crate) compact: Option<String>,
    /// Expected of the answer: a pattern for `{status, headers, body}`.
    #[serde(default)]
    pub(crate) expect: Option<Value>,
    /// Variables taken from the answer, by JSON pointer.
    #[serde(default)]
    pub(crate) capture: BTreeMap<String, String>,
    /// Overrides the case's.
    #[serde(default)]
    pub(crate) compare: Option<Compare>,
    /// Parts of the answer left out of the comparison, by JSON pointer, each with a reason.
    #[serde(default)]
    pub(crate) ignore: BTreeMap<String, String>,
    /// Asks again until the expectation holds, for these seconds.
    #[serde(default)]
    pub(crate) until: Option<u64>,
    /// Sends so often, with `${i}` counting from 1.
    #[serde(default)]
    pub(crate) repeat: Option<u32>,
}

/// A request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Request {
    /// Name of a stream.
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default = "get")]
    pub(crate) method: String,
    pub(crate) path: String,
    /// Encoded in the order of the names.
    #[serde(default)]
    pub(crate) query: BTreeMap<String, String>,
    /// A query sent as it stands, instead.
    #[serde(default)]
    pub(crate) raw_query: Option<String>,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// A JSON value, or text sent as it stands.
    #[serde(default)]
    pub(crate) body: Option<Value>,
    /// A text body is repeated so often.
    #[serde(default)]
    pub(crate) body_times: Option<usize>,
    /// Who sends it.
    #[serde(default = "admin", rename = "as")]
    pub(crate) user: String,
}

fn get() -> String {
    "GET".to_owned()
}

fn admin() -> String {
    "admin".to_owned()
}

/// A run of kubectl as an administrator of the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Kubectl {
    pub(crate) args: Vec<String>,
    /// Standard input.
    #[serde(default)]
    pub(crate) input: String,
    /// What `kubectl edit` runs.
    #[serde(default)]
    pub(crate) editor: Option<String>,
}

/// Events to be read.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Events {
    /// The stream.
    pub(crate) of: String,
    /// Seconds they may take.
    #[serde(default = "ten")]
    pub(crate) within: u64,
    /// Their order says nothing: they are sorted by type and name.
    #[serde(default)]
    pub(crate) sorted: bool,
    /// One pattern per event.
    pub(crate) expect: Vec<Value>,
}

fn ten() -> u64 {
    10
}

/// The folder of the cases.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance")
}

/// Reads every case, in the order of the files.
///
/// # Errors
/// A file that is no list of cases, an id used twice, a step that is none.
pub(crate) fn load() -> anyhow::Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut ids = HashSet::new();
    for section in sorted(&folder())? {
        if !section.is_dir() {
            continue;
        }
        let name = section.file_name().unwrap_or_default().to_string_lossy();
        for file in sorted(&section)? {
            let read = || format!("{}", file.display());
            let text = std::fs::read_to_string(&file).with_context(read)?;
            let listed: Vec<Case> = serde_saphyr::from_str(&text).with_context(read)?;
            for mut case in listed {
                check(&case).with_context(|| format!("{}: {}", file.display(), case.id))?;
                ensure!(ids.insert(case.id.clone()), "{}: used twice", case.id);
                case.section = name.to_uppercase();
                cases.push(case);
            }
        }
    }
    Ok(cases)
}

fn sorted(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(folder)
        .with_context(|| format!("{}", folder.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

fn check(case: &Case) -> anyhow::Result<()> {
    ensure!(!case.rows.is_empty(), "covers no row");
    ensure!(!case.title.is_empty(), "has no title");
    for step in &case.steps {
        let verbs = [
            step.request.is_some(),
            step.watch.is_some(),
            step.events.is_some(),
            step.ended.is_some(),
            step.close.is_some(),
            step.compact.is_some(),
            step.kubectl.is_some(),
        ];
        if verbs.into_iter().filter(|set| *set).count() != 1 {
            bail!("a step does exactly one thing: {step:?}");
        }
        ensure!(
            step.kubectl.is_none() || !case.routes.contains(&Route::Direct),
            "kubectl goes through kube-apiserver"
        );
        ensure!(
            step.ignore.values().all(|reason| !reason.is_empty()),
            "what is left out of the comparison needs a reason"
        );
    }
    Ok(())
}

impl Case {
    /// What a step's answer is held against.
    pub(crate) fn compare_of(&self, step: &Step) -> Compare {
        if self.oracle_disagrees.is_some() || self.deviation.is_some() {
            return match self.compare {
                Compare::Ours => Compare::Ours,
                Compare::Oracle | Compare::Expected => Compare::Expected,
            };
        }
        step.compare.unwrap_or(self.compare)
    }
}
