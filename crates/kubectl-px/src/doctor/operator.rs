//! The operator's admin endpoint, for what only the operator can find out.

use crawl_api::operator_view::{InstanceView, ProbeView, ProviderView, ProvidersView, ProxyView};
use kube::{Client, Config};
use runtime_kit::chain;
use serde::de::DeserializeOwned;

use super::next::provisioning_remedy;
use super::report::{Finding, Level};

/// How to reach it.
pub(super) const HOW: &str = "kubectl port-forward -n NAMESPACE POD 8080, and --operator-url \
    http://127.0.0.1:8080";

/// The endpoint. It is asked once for each view, and never in the background.
pub(super) struct Operator(Client);

impl Operator {
    /// One that nobody has spoken to yet.
    pub(super) fn at(url: &str) -> Result<Self, String> {
        let uri: http::Uri = url.parse().map_err(|error| format!("no URL: {error}"))?;
        let mut config = Config::new(uri);
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| chain(&error).to_string())?;
        Ok(Self(client))
    }

    /// The text of a path.
    pub(super) async fn text(&self, path: &str) -> Result<String, String> {
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|error| error.to_string())?;
        let answer = self.0.request_text(request).await;
        answer.map_err(|error| chain(&error).to_string())
    }

    async fn view<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let text = self.text(path).await?;
        serde_json::from_str(&text)
            .map_err(|error| format!("{path} is not what this version expects: {error}"))
    }
}

/// What the accounts say.
pub(super) async fn providers(operator: &Operator) -> Vec<Finding> {
    match operator.view::<ProvidersView>("/providers").await {
        Ok(ProvidersView { providers }) => providers.iter().map(judge).collect(),
        Err(error) => vec![Finding::new(Level::Warn, "accounts", error)],
    }
}

fn judge(view: &ProviderView) -> Finding {
    let ProviderView {
        name,
        account,
        checked_at: _,
        refusal,
        calls_left,
        rest_seconds,
        quota_errors,
        last_quota_error,
    } = view;
    let subject = format!("account of {name}");
    if let Some(refusal) = refusal {
        let message = format!("{account}: {}: {}", refusal.reason, refusal.message);
        return Finding::new(Level::Fail, subject, message)
            .remedy(provisioning_remedy(&refusal.reason));
    }
    let mut message = format!("{account} accepts its credentials");
    if let Some(left) = calls_left {
        message.extend([format!("; {left} calls are left for now")]);
    }
    if *rest_seconds > 0 {
        message.extend([format!("; it wants to be left alone for {rest_seconds} s")]);
    }
    if let Some(last) = last_quota_error {
        message.extend([format!(
            "; lacked quota or stock {quota_errors} times, last at {}: {}",
            last.at, last.message
        )]);
    }
    Finding::new(Level::Ok, subject, message)
}

/// One proxy at its provider and in the health engine.
pub(super) async fn proxy(
    operator: &Operator,
    namespace: &str,
    name: &str,
) -> Result<ProxyView, String> {
    operator.view(&format!("/proxies/{namespace}/{name}")).await
}

/// In lines.
pub(super) fn render(view: &ProxyView) -> String {
    let ProxyView {
        uid: _,
        at,
        instance,
        refusal,
        probe,
    } = view;
    let provider = match (instance, refusal) {
        (Some(instance), _) => render_instance(instance),
        (None, Some(refusal)) => format!("{}: {}", refusal.reason, refusal.message),
        (None, None) => "no instance".to_owned(),
    };
    let probe = probe
        .as_ref()
        .map_or_else(|| "this replica does not probe it".to_owned(), render_probe);
    format!("provider, asked at {at}: {provider}\nprobes: {probe}\n")
}

fn render_instance(instance: &InstanceView) -> String {
    let InstanceView {
        id,
        name,
        state,
        ip,
        zone,
        created,
    } = instance;
    let ip = ip.as_deref().unwrap_or("without address");
    format!("{state}, {ip}, zone {zone}, {id} ({name}), created {created}")
}

fn render_probe(probe: &ProbeView) -> String {
    let ProbeView {
        healthy,
        reason,
        message,
        since,
        last_probe: _,
        latency_milliseconds,
        exit_ip,
    } = probe;
    let verdict = match healthy {
        Some(true) => "healthy",
        Some(false) => "unhealthy",
        None => "undecided",
    };
    let mut text = format!("{verdict} since {since}, {reason}: {message}");
    if let Some(exit) = exit_ip {
        text.extend([format!(", exit {exit}")]);
    }
    if let Some(took) = latency_milliseconds {
        text.extend([format!(", took {took} ms")]);
    }
    text
}

#[cfg(test)]
#[path = "operator_tests.rs"]
mod tests;
