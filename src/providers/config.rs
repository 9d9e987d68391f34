//! The providers file: which accounts this installation has.
//!
//! Read once at start by `app`. It is strict, because a provider that is silently left out looks
//! like a cloud that is down: whatever is wrong stops the process with file, line and remedy.
//!
//! ```yaml
//! providers:
//!   - name: local
//!     type: mock
//!     mock: {url: "http://127.0.0.1:7070", zone: local-a}
//! ```

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;
use url::Url;

use super::allowance::{Limits, Rate};
pub use super::gcp::GcpAccount;
pub use super::hetzner::HetznerAccount;

/// The types this build knows, for messages.
const KNOWN_TYPES: &str = "mock, gcp, hetzner";

/// The providers of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// At least one, names unique.
    pub providers: Vec<Entry>,
}

/// One provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What `Proxy.spec.provider` says.
    pub name: String,
    /// Where its instances run.
    pub account: Account,
    /// How many calls its account takes within an hour; the default of its type when absent.
    pub calls_per_hour: Option<u32>,
    /// How many instances are created within a minute; the default of its type when absent.
    pub creates_per_minute: Option<u32>,
}

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

// === impl Entry ===

impl Entry {
    /// What its account allows.
    pub(super) fn limits(&self) -> Limits {
        let default = self.account.default_limits();
        let burst = default.calls.map_or(u32::MAX, Rate::burst);
        let set = |count: Option<u32>, window, burst| {
            count.and_then(|count| Rate::new(count, window, burst))
        };
        Limits {
            calls: set(self.calls_per_hour, HOUR, burst).or(default.calls),
            creates: set(self.creates_per_minute, MINUTE, u32::MAX).or(default.creates),
        }
    }
}

/// An account, by type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// A mock cloud.
    Mock(MockAccount),
    /// A project at Compute Engine.
    Gcp(Box<GcpAccount>),
    /// A project at Hetzner Cloud.
    Hetzner(Box<HetznerAccount>),
}

// === impl Account ===

impl Account {
    /// What the cloud limits the rate of calls by: the same for two providers that share it.
    pub(super) fn limited_as(&self) -> String {
        match self {
            Self::Mock(mock) => format!("mock {}", mock.url),
            Self::Gcp(gcp) => format!("gcp {}", gcp.project),
            // Why the file: a token is good for one project, which it does not name.
            Self::Hetzner(hetzner) => format!("hetzner {}", hetzner.token_file.display()),
        }
    }

    /// What the cloud says that it takes, see the page of each provider in `docs/providers/`; a mock
    /// takes everything.
    fn default_limits(&self) -> Limits {
        match self {
            Self::Mock(_) => Limits::default(),
            Self::Gcp(_) => Limits {
                calls: Rate::new(1_500, MINUTE, 300),
                creates: Rate::new(60, MINUTE, u32::MAX),
            },
            Self::Hetzner(_) => Limits {
                calls: Rate::new(3_600, HOUR, u32::MAX),
                creates: Rate::new(30, MINUTE, u32::MAX),
            },
        }
    }
}

/// The block `mock`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MockAccount {
    /// Where the mock cloud's API listens.
    pub url: Url,
    /// The zone for proxies that name none.
    #[serde(default = "default_mock_zone")]
    pub zone: String,
}

fn default_mock_zone() -> String {
    "local-a".into()
}

/// Why the providers file cannot be used. Every message names the file and the remedy, and the
/// line when there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{}: cannot read the providers file: {source}; {}", path.display(), remedy(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}: {problem}; {remedy}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "of the many kinds, three have a remedy of their own"
)]
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidData => "save it as UTF-8 text",
        ErrorKind::IsADirectory => "name a file in it with --providers-config",
        ErrorKind::PermissionDenied => "let the operator read it",
        _ => "create it, or name another with --providers-config",
    }
}

impl Config {
    /// Reads the providers file.
    ///
    /// # Errors
    /// The file is missing, or anything in it is not as it must be.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        parse(&text).map_err(|Problem { line, what, remedy }| Error::Content {
            path: path.into(),
            line,
            problem: what,
            remedy,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    providers: Spanned<Option<Vec<Spanned<RawEntry>>>>,
}

/// What a file that was refused says of types. Why: a type that this build does not know comes with
/// a block that it does not know either, and the type is the cause.
#[derive(Deserialize)]
struct TypesOnly {
    providers: Vec<TypeOnly>,
}

#[derive(Deserialize)]
struct TypeOnly {
    name: String,
    #[serde(rename = "type")]
    type_: Spanned<String>,
}

/// An entry before its type block is matched with its type. Blocks are kept apart, so that a
/// missing, foreign or additional one can be named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    name: Spanned<String>,
    #[serde(rename = "type")]
    type_: Spanned<String>,
    #[serde(default)]
    mock: Option<Spanned<MockAccount>>,
    #[serde(default)]
    gcp: Option<Spanned<GcpAccount>>,
    #[serde(default)]
    hetzner: Option<Spanned<HetznerAccount>>,
    #[serde(default, rename = "callsPerHour")]
    calls_per_hour: Option<Spanned<u32>>,
    #[serde(default, rename = "createsPerMinute")]
    creates_per_minute: Option<Spanned<u32>>,
}

struct Problem {
    line: u64,
    what: String,
    remedy: String,
}

fn problem<T>(at: &Spanned<T>, what: String, remedy: impl Into<String>) -> Problem {
    Problem {
        line: at.referenced.line(),
        what,
        remedy: remedy.into(),
    }
}

fn parse(text: &str) -> Result<Config, Problem> {
    let is_blank = |line: &str| {
        let line = line.trim();
        line.is_empty() || line == "---" || line.starts_with('#')
    };
    if text.lines().all(is_blank) {
        return Err(Problem {
            line: 1,
            what: "the providers file is empty".into(),
            remedy: "add the key providers with at least one provider".into(),
        });
    }
    let File { providers } = serde_saphyr::from_str(text)
        .map_err(|error| find_unknown_type(text).unwrap_or_else(|| unreadable(&error)))?;
    let list = providers.value.as_deref().unwrap_or_default();
    if list.is_empty() {
        return Err(problem(
            &providers,
            "providers is an empty list".into(),
            "add at least one provider",
        ));
    }
    let mut lines = BTreeMap::new();
    let mut entries = Vec::new();
    for entry in list {
        let RawEntry {
            name,
            type_,
            mock,
            gcp,
            hetzner,
            calls_per_hour,
            creates_per_minute,
        } = &entry.value;
        check_name(name)?;
        if let Some(first) = lines.insert(name.value.clone(), name.referenced.line()) {
            return Err(problem(
                name,
                format!(
                    "provider name {:?} is used already on line {first}",
                    name.value
                ),
                "give each provider a name of its own",
            ));
        }
        check_blocks(&entry.value)?;
        let account = match (mock, gcp, hetzner) {
            (Some(block), _, _) => {
                check_url(block)?;
                check_zone(block)?;
                Account::Mock(block.value.clone())
            },
            (None, Some(block), _) => {
                let checked = block.value.check();
                checked.map_err(|(what, remedy)| problem(block, what, remedy))?;
                Account::Gcp(Box::new(block.value.clone()))
            },
            (None, None, Some(block)) => {
                let checked = block.value.check();
                checked.map_err(|(what, remedy)| problem(block, what, remedy))?;
                Account::Hetzner(Box::new(block.value.clone()))
            },
            (None, None, None) => return Err(unknown_type(&name.value, type_)),
        };
        entries.push(Entry {
            name: name.value.clone(),
            account,
            calls_per_hour: check_count("callsPerHour", calls_per_hour.as_ref())?,
            creates_per_minute: check_count("createsPerMinute", creates_per_minute.as_ref())?,
        });
    }
    Ok(Config { providers: entries })
}

/// Checks that there is one block, that of the type.
fn check_blocks(entry: &RawEntry) -> Result<(), Problem> {
    let RawEntry {
        name,
        type_,
        mock,
        gcp,
        hetzner,
        calls_per_hour: _,
        creates_per_minute: _,
    } = entry;
    let blocks = [
        (
            "mock",
            line(mock.as_ref()),
            "add mock: {url: http://ADDRESS:PORT}",
        ),
        (
            "gcp",
            line(gcp.as_ref()),
            "add gcp: {project: PROJECT, zones: [ZONE]}",
        ),
        (
            "hetzner",
            line(hetzner.as_ref()),
            "add hetzner: {tokenFile: FILE, locations: [LOCATION]}",
        ),
    ];
    let (name, type_name) = (&name.value, type_.value.as_str());
    let Some((_, own, add)) = blocks.iter().find(|(block, _, _)| *block == type_name) else {
        return Err(unknown_type(name, type_));
    };
    let foreign = blocks.iter().filter(|(block, _, _)| *block != type_name);
    for (block, line, _) in foreign {
        if let Some(line) = line {
            return Err(Problem {
                line: *line,
                what: format!("provider {name:?} is of type {type_name} and has a block {block}"),
                remedy: "correct or remove the key".into(),
            });
        }
    }
    if own.is_none() {
        let what = format!("provider {name:?} is of type {type_name} but has no block {type_name}");
        return Err(problem(type_, what, *add));
    }
    Ok(())
}

/// The line of a block that is there.
fn line<T>(block: Option<&Spanned<T>>) -> Option<u64> {
    block.map(|block| block.referenced.line())
}

/// Why: the name is matched with `Proxy.spec.provider`, whose pattern this is.
fn check_name(name: &Spanned<String>) -> Result<(), Problem> {
    let text = &name.value;
    if text.is_empty() {
        let remedy = "give it the name that Proxy.spec.provider shall use";
        return Err(problem(name, "a provider has an empty name".into(), remedy));
    }
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edge = |c: char| c == '-';
    if text.len() > 63 || !text.bytes().all(inner) || text.starts_with(edge) || text.ends_with(edge)
    {
        let remedy = "use at most 63 lower-case letters, digits and inner dashes";
        return Err(problem(
            name,
            format!("provider name {text:?} is malformed"),
            remedy,
        ));
    }
    Ok(())
}

fn check_url(block: &Spanned<MockAccount>) -> Result<(), Problem> {
    let url = &block.value.url;
    if url.scheme() == "http" && url.has_host() {
        return Ok(());
    }
    let remedy = "write it as http://ADDRESS:PORT";
    Err(problem(
        block,
        format!("mock.url {url} cannot be used"),
        remedy,
    ))
}

fn check_zone(block: &Spanned<MockAccount>) -> Result<(), Problem> {
    if !block.value.zone.trim().is_empty() {
        return Ok(());
    }
    let remedy = "name the zone, or leave the key out";
    Err(problem(block, "mock.zone is empty".into(), remedy))
}

fn check_count(key: &str, count: Option<&Spanned<u32>>) -> Result<Option<u32>, Problem> {
    let Some(count) = count else {
        return Ok(None);
    };
    if count.value >= Rate::LEAST {
        return Ok(Some(count.value));
    }
    let what = format!("{key} is {}", count.value);
    let remedy = format!("use {} or more, or leave the key out", Rate::LEAST);
    Err(problem(count, what, remedy))
}

fn unknown_type(name: &str, type_: &Spanned<String>) -> Problem {
    problem(
        type_,
        format!("provider {name:?} has the unknown type {:?}", type_.value),
        format!("use one of: {KNOWN_TYPES}"),
    )
}

fn find_unknown_type(text: &str) -> Option<Problem> {
    let TypesOnly { providers } = serde_saphyr::from_str(text).ok()?;
    let unknown = |entry: &&TypeOnly| {
        !KNOWN_TYPES
            .split(", ")
            .any(|known| known == entry.type_.value)
    };
    let TypeOnly { name, type_ } = providers.iter().find(unknown)?;
    Some(unknown_type(name, type_))
}

fn unreadable(error: &serde_saphyr::Error) -> Problem {
    let line = error.location().map_or(1, |location| location.line());
    let text = error.without_snippet().to_string();
    let first = text.lines().next().unwrap_or_default();
    // Why: the parser repeats the place, which the message has already, in front or behind.
    let first = first.split(" at line ").next().unwrap_or_default();
    // Why: behind these the parser says how a program may ask for something else.
    let first = first.split(", set DuplicateKeyPolicy").next();
    let first = first.unwrap_or_default().trim().to_owned();
    if first.starts_with("multiple YAML documents") {
        return Problem {
            line,
            what: "a second YAML document begins here".into(),
            remedy: "keep one document: put all providers into one list".into(),
        };
    }
    let remedy = if first.contains("unknown field") || first.contains("duplicate mapping key") {
        "correct or remove the key"
    } else if first.contains("missing field") {
        "add the key"
    } else {
        "see config/samples/providers-config.yaml"
    };
    Problem {
        line,
        what: first,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::unwrap_in_result,
        reason = "a folder that cannot be made fails the test"
    )]
    fn read(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("providers.yaml");
        std::fs::write(&path, text).unwrap();
        Config::read(&path).map_err(|error| {
            let text = error.to_string();
            text.replace(&format!("{}/", dir.path().display()), "")
        })
    }

    #[test]
    fn a_good_file_gives_its_providers_with_defaults() {
        let config = read(
            "providers:\n- name: local\n  type: mock\n  mock: {url: 'http://127.0.0.1:7070'}\n",
        )
        .unwrap();
        let [
            Entry {
                name,
                account: Account::Mock(MockAccount { url, zone }),
                calls_per_hour: None,
                creates_per_minute: None,
            },
        ] = config.providers.as_slice()
        else {
            panic!("{config:?}")
        };
        assert_eq!((name.as_str(), zone.as_str()), ("local", "local-a"));
        assert_eq!(url.as_str(), "http://127.0.0.1:7070/");
    }

    #[test]
    fn every_fault_is_named_with_file_line_and_remedy() {
        let entry = |name: &str| {
            format!("- name: {name}\n  type: mock\n  mock: {{url: 'http://127.0.0.1:1'}}\n")
        };
        let twice = format!("providers:\n{}{}", entry("a"), entry("a"));
        let cases = [
            (
                "unknown top key",
                "providers: []\nregions: []\n",
                2,
                "regions",
                "correct or remove the key",
            ),
            (
                "no list",
                "providers:\n",
                1,
                "empty list",
                "add at least one provider",
            ),
            (
                "comments only",
                "# providers:\n---\n",
                1,
                "empty",
                "add the key providers",
            ),
            (
                "two documents",
                "providers:\n- name: a\n  type: mock\n  mock: {url: 'http://h:1'}\n---\n{}\n",
                6,
                "second YAML document",
                "one list",
            ),
            (
                "key twice",
                "providers:\n- name: a\n  name: b\n  type: mock\n",
                3,
                "duplicate mapping key: name",
                "correct or remove the key",
            ),
            (
                "unknown type with its block",
                "providers:\n- name: a\n  type: ec2\n  ec2: {region: r}\n",
                3,
                "unknown type \"ec2\"",
                "use one of: mock, gcp",
            ),
            (
                "empty zone",
                "providers:\n- name: a\n  type: mock\n  mock: {url: 'http://h:1', zone: ''}\n",
                4,
                "mock.zone is empty",
                "leave the key out",
            ),
            (
                "too few calls",
                "providers:\n- name: a\n  type: mock\n  callsPerHour: 5\n  mock: {url: 'http://h:1'}\n",
                4,
                "callsPerHour is 5",
                "use 20 or more",
            ),
            ("missing list", "{}\n", 1, "providers", "add the key"),
            ("empty file", " ", 1, "empty", "add the key providers"),
            (
                "empty list",
                "providers: []\n",
                1,
                "empty list",
                "add at least one provider",
            ),
            (
                "empty name",
                "providers:\n- name: ''\n  type: mock\n  mock: {url: 'http://h:1'}\n",
                2,
                "empty name",
                "Proxy.spec.provider",
            ),
            (
                "bad name",
                "providers:\n- name: A_b\n  type: mock\n  mock: {url: 'http://h:1'}\n",
                2,
                "A_b",
                "lower-case",
            ),
            (
                "duplicate name",
                &twice,
                5,
                "used already on line 2",
                "name of its own",
            ),
            (
                "unknown type",
                "providers:\n- name: a\n  type: cloud9\n",
                3,
                "unknown type \"cloud9\"",
                "use one of: mock, gcp",
            ),
            (
                "missing type block",
                "providers:\n- name: a\n  type: mock\n",
                3,
                "no block mock",
                "add mock:",
            ),
            (
                "wrong type block",
                "providers:\n- name: a\n  type: mock\n  ec2: {region: r}\n",
                4,
                "ec2",
                "correct or remove the key",
            ),
            (
                "gcp without block",
                "providers:\n- name: a\n  type: gcp\n",
                3,
                "no block gcp",
                "add gcp: {project: PROJECT, zones: [ZONE]}",
            ),
            (
                "gcp without project",
                "providers:\n- name: a\n  type: gcp\n  gcp: {zones: [europe-west1-b]}\n",
                4,
                "missing field `project`",
                "add the key",
            ),
            (
                "gcp with an empty project",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: '', zones: [e-b]}\n",
                4,
                "gcp.project",
                "gcloud projects list",
            ),
            (
                "gcp without zones",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: p, zones: []}\n",
                4,
                "gcp.zones is empty",
                "name at least one zone",
            ),
            (
                "gcp with a zone twice",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: p, zones: [e-b, e-b]}\n",
                4,
                "e-b twice",
                "once",
            ),
            (
                "gcp with a region for a zone",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: p, zones: [Europe]}\n",
                4,
                "\"Europe\"",
                "europe-west1-b",
            ),
            (
                "gcp that would send tokens in the clear",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: p, zones: [e-b], endpoint: 'http://h'}\n",
                4,
                "gcp.endpoint http://h/",
                "https",
            ),
            (
                "gcp with a label of the operator",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: p, zones: [e-b], labels: {crawl-cluster: x}}\n",
                4,
                "crawl-cluster",
                "another name",
            ),
            (
                "gcp with a small disk",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: p, zones: [e-b], disk: {sizeGigabytes: 5}}\n",
                4,
                "sizeGigabytes 5",
                "10 or more",
            ),
            (
                "gcp with an unknown key of its disk",
                "providers:\n- name: a\n  type: gcp\n  gcp: {project: p, zones: [e-b], disk: {size: 5}}\n",
                4,
                "size",
                "correct or remove the key",
            ),
            (
                "hetzner without its block",
                "providers:\n- name: a\n  type: hetzner\n",
                3,
                "no block hetzner",
                "tokenFile",
            ),
            (
                "hetzner with a block of another type",
                "providers:\n- name: a\n  type: hetzner\n  mock: {url: 'http://h:1'}\n",
                4,
                "has a block mock",
                "correct or remove the key",
            ),
            (
                "hetzner without a token file",
                "providers:\n- name: a\n  type: hetzner\n  hetzner: {locations: [fsn1]}\n",
                4,
                "tokenFile",
                "add the key",
            ),
            (
                "hetzner without locations",
                "providers:\n- name: a\n  type: hetzner\n  hetzner: {tokenFile: t, locations: []}\n",
                4,
                "hetzner.locations is empty",
                "fsn1",
            ),
            (
                "hetzner with an unknown key",
                "providers:\n- name: a\n  type: hetzner\n  hetzner: {tokenFile: t, locations: [fsn1], zones: [a]}\n",
                4,
                "zones",
                "correct or remove the key",
            ),
            (
                "hetzner with a token in place of its file",
                "providers:\n- name: a\n  type: hetzner\n  hetzner: {token: t, locations: [fsn1]}\n",
                4,
                "token",
                "correct or remove the key",
            ),
            (
                "block of another type",
                "providers:\n- name: a\n  type: mock\n  mock: {url: 'http://h:1'}\n  gcp: {project: p, zones: [e-b]}\n",
                5,
                "has a block gcp",
                "correct or remove the key",
            ),
            (
                "missing type",
                "providers:\n- name: a\n  mock: {url: 'http://h:1'}\n",
                3,
                "type",
                "add the key",
            ),
            (
                "unknown key in entry",
                "providers:\n- name: a\n  type: mock\n  zone: x\n  mock: {url: 'http://h:1'}\n",
                4,
                "zone",
                "correct or remove the key",
            ),
            (
                "unknown key in block",
                "providers:\n- name: a\n  type: mock\n  mock:\n    url: 'http://h:1'\n    port: 1\n",
                6,
                "port",
                "correct or remove the key",
            ),
            (
                "missing key in block",
                "providers:\n- name: a\n  type: mock\n  mock: {}\n",
                4,
                "url",
                "add the key",
            ),
            (
                "malformed url",
                "providers:\n- name: a\n  type: mock\n  mock: {url: 'ftp://h'}\n",
                4,
                "ftp://h",
                "http://ADDRESS:PORT",
            ),
            ("not a mapping", "- a\n", 1, "", "samples"),
            ("not YAML", "providers: [\n", 1, "", "samples"),
        ];
        for (case, text, line, problem, remedy) in cases {
            let message = read(text).expect_err(case);
            assert!(
                message.starts_with(&format!("providers.yaml:{line}: ")),
                "{case}: {message}"
            );
            assert!(message.contains(problem), "{case}: {message}");
            assert!(message.contains(remedy), "{case}: {message}");
            assert!(!message.contains('\n'), "{case}: {message}");
            for advice in ["Options", "from_str"] {
                assert!(!message.contains(advice), "{case}: {message}");
            }
        }
    }

    #[test]
    fn every_sample_is_a_good_file_and_together_they_show_every_type() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
        let mut types = Vec::new();
        for entry in std::fs::read_dir(root.join("providers")).unwrap() {
            let path = entry.unwrap().path();
            let config = Config::read(&path).unwrap_or_else(|error| panic!("{error}"));
            types.extend(
                config
                    .providers
                    .into_iter()
                    .map(|entry| match entry.account {
                        Account::Mock(_) => "mock",
                        Account::Gcp(_) => "gcp",
                        Account::Hetzner(_) => "hetzner",
                    }),
            );
        }
        Config::read(&root.join("samples/providers-config.yaml")).unwrap();
        for known in KNOWN_TYPES.split(", ") {
            assert!(types.contains(&known), "{known}");
        }
    }

    #[test]
    fn a_missing_file_is_named_with_the_flag_that_names_another() {
        let error = Config::read(Path::new("/nonexistent/providers.yaml")).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with("/nonexistent/providers.yaml: "),
            "{message}"
        );
        assert!(message.contains("--providers-config"), "{message}");
    }

    #[test]
    fn a_folder_and_a_file_that_is_no_text_have_remedies_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let message = Config::read(dir.path()).unwrap_err().to_string();
        assert!(message.contains("name a file in it"), "{message}");
        let path = dir.path().join("providers.yaml");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        let message = Config::read(&path).unwrap_err().to_string();
        assert!(message.contains("UTF-8 text"), "{message}");
    }
}
