//! One proxy: the object, the provider, the probes and the leases side by side, and what is next.

use crawl_api::conditions as c;
use crawl_api::endpoint::ProxyEndpoint;
use crawl_api::names;
use crawl_api::operator_view::ProxyView;
use crawl_api::proxy::Proxy;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::next::{Next, next_action};
use super::operator::{self, Operator};
use crate::failure::Failure;
use crate::fleet::{ask, id, proxies};
use crate::kube_flags::Session;

/// What each side says.
#[derive(Debug)]
pub(crate) struct Views {
    proxy: Proxy,
    /// What lease-apiserver shows, or why it cannot be seen.
    endpoint: Result<ProxyEndpoint, String>,
    events: Vec<Event>,
    /// What the operator finds when asked now, or why not; none: it was not asked.
    live: Option<Result<ProxyView, String>>,
    next: Next,
}

/// How many events are shown.
const EVENTS: usize = 10;

/// Reads everything.
pub(crate) async fn look(
    session: &Session,
    name: &str,
    operator_url: Option<&str>,
) -> Result<Views, Failure> {
    let proxy = ask(session, "get", async || proxies(session).get(name).await).await?;
    let endpoints: Api<ProxyEndpoint> = Api::namespaced(session.client.clone(), &session.namespace);
    let endpoint = ask(session, "get", async || endpoints.get(name).await).await;
    let events: Api<Event> = Api::namespaced(session.client.clone(), &session.namespace);
    let uid = proxy.uid().unwrap_or_default();
    let about = ListParams::default().fields(&format!("regarding.uid={uid}"));
    // Why: events are for reading along; whoever may not see them still sees the rest.
    let events = ask(session, "list", async || events.list(&about).await).await;
    let mut events = events.map(|list| list.items).unwrap_or_default();
    events.sort_by_key(seen);
    let first = events.len().saturating_sub(EVENTS);
    let live = match operator_url.map(Operator::at) {
        None => None,
        Some(Err(error)) => Some(Err(error)),
        Some(Ok(operator)) => Some(operator::proxy(&operator, &session.namespace, name).await),
    };
    Ok(Views {
        live,
        next: next_action(&proxy),
        endpoint: endpoint.map_err(|failure| failure.to_string()),
        events: events.split_off(first),
        proxy,
    })
}

fn seen(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .map(|series| series.last_observed_time.0);
    let time = event.event_time.as_ref().map(|time| time.0);
    series.or(time)
}

impl Views {
    /// For people.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}, {}\n\n", id(&self.proxy), self.proxy.phase().as_str());
        let columns = self.columns();
        let widths = columns.each_ref().map(|(_, lines)| {
            let longest = lines.iter().map(|line| line.chars().count()).max();
            longest.unwrap_or_default().max(8)
        });
        let rows = columns
            .iter()
            .map(|(_, lines)| lines.len())
            .max()
            .unwrap_or_default();
        let row = |cells: [&str; 4]| {
            let cells: Vec<_> = cells
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        text.push_str(&row(columns.each_ref().map(|(title, _)| *title)));
        for index in 0..rows {
            let cell = |(_, lines): &(&str, Vec<String>)| lines.get(index).cloned();
            let cells = columns
                .each_ref()
                .map(|column| cell(column).unwrap_or_default());
            text.push_str(&row(cells.each_ref().map(String::as_str)));
        }
        let live = match &self.live {
            None => format!(
                "not asked; to have the provider and the probes asked now: {}\n",
                operator::HOW
            ),
            Some(Err(error)) => format!("{error}\n"),
            Some(Ok(view)) => operator::render(view),
        };
        text.push_str("\nLIVE\n");
        text.push_str(&live);
        text.push_str("\nCONDITIONS\n");
        for condition in self
            .proxy
            .status
            .iter()
            .flat_map(|status| &status.conditions)
        {
            let since = condition.last_transition_time.0;
            text.extend([format!(
                "{}={} since {since}, {}: {}\n",
                condition.type_, condition.status, condition.reason, condition.message
            )]);
        }
        if !self.events.is_empty() {
            text.push_str("\nEVENTS\n");
        }
        for event in &self.events {
            let at = seen(event).map(|at| at.to_string()).unwrap_or_default();
            let reason = event.reason.as_deref().unwrap_or_default();
            let note = event.note.as_deref().unwrap_or_default();
            text.extend([format!("{at} {reason}: {note}\n")]);
        }
        let at = self
            .next
            .at
            .map(|at| format!(", at {at}"))
            .unwrap_or_default();
        text.extend([format!("\nNEXT\n{}{at}\n", self.next.action)]);
        text
    }

    fn columns(&self) -> [(&'static str, Vec<String>); 4] {
        let spec = &self.proxy.spec;
        let status = self.proxy.status.clone().unwrap_or_default();
        let reason = |type_| {
            let condition = self.proxy.condition(type_);
            condition.map_or_else(
                || "unknown".to_owned(),
                |condition| condition.reason.clone(),
            )
        };
        let or_none = |what: &str, value: Option<String>| {
            format!("{what} {}", value.unwrap_or_else(|| "none".to_owned()))
        };
        let generation = self.proxy.metadata.generation.unwrap_or_default();
        let observed = status.observed_generation.unwrap_or_default();
        let mut object = vec![
            format!("phase {}", status.phase.as_str()),
            format!("generation {generation}, seen {observed}"),
        ];
        for (name, set) in [
            ("cordoned", spec.cordoned),
            ("drain", spec.drain),
            ("paused", spec.paused),
        ] {
            if set {
                object.push(format!("spec.{name}"));
            }
        }
        if let Some(deleted) = &self.proxy.metadata.deletion_timestamp {
            object.push(format!("deleted {}", deleted.0));
        }
        let hash = self.proxy.annotations().get(names::ANNOTATION_SPEC_HASH);
        let provider = match &spec.provider {
            None => vec![reason(c::PROVISIONED), "run by somebody else".to_owned()],
            Some(provider) => vec![
                format!("{provider}: {}", reason(c::PROVISIONED)),
                or_none("id", status.provider_id.clone()),
                or_none("ip", status.ip.clone()),
                or_none("zone", status.zone.clone()),
                or_none("sent", hash.cloned()),
            ],
        };
        let endpoint = status.endpoint.as_ref();
        let address =
            endpoint.map(|at| format!("{}:{} ({})", at.host, at.port, at.scheme.as_str()));
        let latency = status.latency_milliseconds.map(|ms| format!("{ms} ms"));
        let probed = status
            .last_health_check_time
            .as_ref()
            .map(|time| time.0.to_string());
        let probe = vec![
            reason(c::HEALTHY),
            or_none("at", address),
            or_none("exit", status.exit_ip.clone()),
            or_none("took", latency),
            or_none("changed", probed),
        ];
        let leases = match &self.endpoint {
            Err(said) => vec![said.clone()],
            Ok(endpoint) => {
                let view = endpoint.status.clone().unwrap_or_default();
                vec![
                    format!("accepting {}", view.accepting),
                    format!("active {} of {}", view.active, view.max),
                    or_none("reason", view.reason),
                ]
            },
        };
        [
            ("OBJECT", object),
            ("PROVIDER", provider),
            ("PROBE", probe),
            ("LEASES", leases),
        ]
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let (endpoint, unseen) = match &self.endpoint {
            Ok(endpoint) => (Some(endpoint), None),
            Err(said) => (None, Some(said)),
        };
        let (live, live_error) = match &self.live {
            None => (None, None),
            Some(Ok(view)) => (Some(view), None),
            Some(Err(error)) => (None, Some(error)),
        };
        json!({
            "live": live,
            "liveError": live_error,
            "proxy": self.proxy,
            "endpoint": endpoint,
            "endpointError": unseen,
            "events": self.events,
            "next": {"action": self.next.action, "at": self.next.at},
        })
    }
}
