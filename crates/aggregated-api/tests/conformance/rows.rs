//! The rows of the specification, as listed in `tests/conformance/rows.yaml`.

use anyhow::Context as _;
use serde::Deserialize;

use crate::case::folder;

/// A section of the specification.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Section {
    /// Its letter.
    #[serde(rename = "section")]
    pub(crate) letter: String,
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
}

/// A requirement.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// Its number.
    #[serde(rename = "row")]
    pub(crate) number: u16,
    /// `P0`, `P1` or `P2`.
    pub(crate) priority: String,
    pub(crate) title: String,
    /// The test that shows it, where no request can.
    #[serde(default)]
    pub(crate) elsewhere: Option<String>,
}

/// Reads the rows.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn load() -> anyhow::Result<Vec<Section>> {
    let name = "rows.yaml";
    let text = std::fs::read_to_string(folder().join(name)).context(name)?;
    serde_saphyr::from_str(&text).context(name)
}
