//! `kubectl px cordon`, `uncordon` and `drain`: marks proxies in their spec and leaves the rest to
//! the operator.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crawl_api::conditions;
use crawl_api::proxy::Proxy;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::duration::parse_timeout;
use crate::failure::Failure;
use crate::fleet::{Selection, ask, id, proxies};
use crate::kube_flags::{KubeFlags, Session};
use crate::terminal;

/// As whom the marks are set.
pub(crate) const FIELD_MANAGER: &str = "kubectl-px";

/// What a command sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// No new leases.
    Cordon,
    /// No new leases, and those that exist are asked to go.
    Drain,
    /// Neither.
    Uncordon,
}

impl Mark {
    fn spec(self) -> Value {
        match self {
            Self::Cordon => json!({"cordoned": true}),
            Self::Drain => json!({"drain": true}),
            Self::Uncordon => json!({"cordoned": false, "drain": false}),
        }
    }

    fn is_set(self, proxy: &Proxy) -> bool {
        match self {
            Self::Cordon => proxy.spec.cordoned,
            Self::Drain => proxy.spec.drain,
            Self::Uncordon => !proxy.spec.cordoned && !proxy.spec.drain,
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Cordon => "cordoned",
            Self::Drain => "draining",
            Self::Uncordon => "uncordoned",
        }
    }
}

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MarkOutput {
    /// `proxy.crawl.example.com/NAME`, a line each.
    Name,
    /// A List of the objects.
    Json,
}

/// Flags that the three commands share.
#[derive(Debug, clap::Args)]
pub(crate) struct MarkFlags {
    #[command(flatten)]
    selection: Selection,

    /// How the proxies are printed.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<MarkOutput>,

    #[command(flatten)]
    kube: KubeFlags,
}

/// `kubectl px drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct DrainFlags {
    #[command(flatten)]
    mark: MarkFlags,

    /// Wait until no lease is left, and say what is waited for.
    #[arg(long)]
    wait: bool,

    /// How long --wait waits, like 30s or 10m; 0 waits without end.
    #[arg(long, value_name = "DURATION", default_value = "0", allow_hyphen_values = true, value_parser = parse_timeout)]
    timeout: u32,
}

/// Ends with status 1 for every failure, with the reason on standard error.
pub(crate) async fn run_mark(mark: Mark, flags: MarkFlags) -> ExitCode {
    exit(set(mark, &flags, None).await)
}

/// As [`run_mark`], and waits if told to.
pub(crate) async fn run_drain(flags: DrainFlags) -> ExitCode {
    let wait = flags.wait.then_some(flags.timeout);
    exit(set(Mark::Drain, &flags.mark, wait).await)
}

pub(crate) fn exit(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::say(&failure.to_string());
            ExitCode::FAILURE
        },
    }
}

async fn set(mark: Mark, flags: &MarkFlags, wait: Option<u32>) -> Result<(), Failure> {
    let session = flags.kube.session().await.map_err(Failure::Configure)?;
    let found = flags.selection.find(&session).await?;
    if found.is_empty() {
        let namespace = &session.namespace;
        terminal::say(&format!("No proxies found in {namespace} namespace."));
    }
    let api = proxies(&session);
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let mut marked = Vec::new();
    let mut objects = Vec::new();
    for proxy in found {
        let already = mark.is_set(&proxy);
        let proxy = if already {
            proxy
        } else {
            let patch = Patch::Merge(json!({"spec": mark.spec()}));
            ask(&session, "patch", async || {
                api.patch(&proxy.name_any(), &params, &patch).await
            })
            .await?
        };
        match flags.output {
            None => {
                let already = if already { "already " } else { "" };
                print(&format!("{} {already}{}\n", id(&proxy), mark.done()))?;
            },
            Some(MarkOutput::Name) => print(&format!("{}\n", id(&proxy)))?,
            Some(MarkOutput::Json) => objects.push(proxy.clone()),
        }
        marked.push(proxy);
    }
    if flags.output == Some(MarkOutput::Json) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        print(&format!("{list:#}\n"))?;
    }
    match wait {
        None => Ok(()),
        Some(0) => wait_until_drained(&session, &marked).await,
        Some(seconds) => {
            let limit = Duration::from_secs(seconds.into());
            let waiting = wait_until_drained(&session, &marked);
            tokio::time::timeout(limit, waiting).await.map_err(|_| {
                Failure::Usage(format!(
                    "not drained within {seconds}s (--timeout); the drain goes on: kubectl px \
                     doctor NAME says what it waits for"
                ))
            })?
        },
    }
}

pub(crate) fn print(text: &str) -> Result<(), Failure> {
    terminal::print(text).map_err(Failure::Output)
}

/// How far a drain is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done(String),
    Waiting(String),
}

/// `state` is the object as it is now, if it is still there.
fn progress(marked: &Proxy, state: Option<&Proxy>) -> Progress {
    let same = state.filter(|state| state.metadata.uid == marked.metadata.uid);
    let Some(state) = same else {
        return Progress::Done("deleted".to_owned());
    };
    if !state.spec.drain {
        return Progress::Done("not drained: somebody took the mark away".to_owned());
    }
    match state.condition(conditions::DRAINED) {
        // Why: an older one may tell of a drain that ended before.
        Some(drained) if drained.observed_generation >= marked.metadata.generation => {
            if drained.status == "True" {
                Progress::Done(format!("drained ({})", drained.reason))
            } else {
                Progress::Waiting(format!("{}: {}", drained.reason, drained.message))
            }
        },
        Some(_) | None => Progress::Waiting("waiting for proxy-operator".to_owned()),
    }
}

async fn wait_until_drained(session: &Session, marked: &[Proxy]) -> Result<(), Failure> {
    let api = proxies(session);
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    let mut left: Vec<_> = marked.iter().collect();
    while !left.is_empty() {
        let listed = ask(session, "list", async || {
            api.list(&ListParams::default()).await
        })
        .await?;
        let states: BTreeMap<_, _> = listed
            .iter()
            .map(|proxy| (proxy.name_any(), proxy))
            .collect();
        let mut still = Vec::new();
        for proxy in left {
            let now = progress(proxy, states.get(&proxy.name_any()).copied());
            let (Progress::Done(text) | Progress::Waiting(text)) = &now;
            if said.insert(proxy.name_any(), text.clone()).as_ref() != Some(text) {
                terminal::say(&format!("{} {text}", id(proxy)));
            }
            if matches!(now, Progress::Waiting(_)) {
                still.push(proxy);
            }
        }
        left = still;
        if !left.is_empty() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crawl_api::conditions::Statement;
    use crawl_api::proxy::{ProxySpec, ProxyStatus};
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn proxy(generation: i64, drained: Option<(bool, i64)>) -> Proxy {
        let mut proxy = Proxy::new("eu-1", ProxySpec::managed("local"));
        proxy.metadata.uid = Some("u".into());
        proxy.metadata.generation = Some(generation);
        proxy.spec.drain = true;
        let mut status = ProxyStatus::default();
        if let Some((drained, observed)) = drained {
            let reason = conditions::REASON_NO_LEASES;
            let statement = Statement::new(conditions::DRAINED, drained, reason, "2 leases");
            let at = Timestamp::UNIX_EPOCH;
            conditions::set(&mut status.conditions, statement, Some(observed), at);
        }
        proxy.status = Some(status);
        proxy
    }

    #[test]
    fn a_drain_is_done_when_the_operator_says_so_of_this_generation() {
        let marked = proxy(4, None);
        let state = |drained| progress(&marked, Some(&proxy(4, drained)));
        assert_eq!(
            state(None),
            Progress::Waiting("waiting for proxy-operator".into())
        );
        assert_eq!(
            state(Some((true, 3))),
            Progress::Waiting("waiting for proxy-operator".into())
        );
        assert_eq!(
            state(Some((false, 4))),
            Progress::Waiting("NoLeases: 2 leases".into())
        );
        assert_eq!(
            state(Some((true, 4))),
            Progress::Done("drained (NoLeases)".into())
        );
        assert_eq!(progress(&marked, None), Progress::Done("deleted".into()));
    }

    #[test]
    fn uncordon_takes_both_marks_away() {
        assert_eq!(
            Mark::Uncordon.spec(),
            json!({"cordoned": false, "drain": false})
        );
        assert!(!Mark::Uncordon.is_set(&proxy(1, None)));
        assert!(Mark::Drain.is_set(&proxy(1, None)));
        assert!(!Mark::Cordon.is_set(&proxy(1, None)));
    }
}
