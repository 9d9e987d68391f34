//! What `kubectl create lease` prints, in each form.

use serde_json::Value;

use crate::environment::{BypassFlags, build_variables, render_exports};
use crate::failure::Failure;
use crate::leases::{Lease, resource_name};

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OutputFormat {
    /// `proxylease.leases.crawl.example.com/NAME`.
    Name,
    /// The object.
    Json,
    /// The object.
    Yaml,
    /// The URL of the proxy and nothing else.
    Url,
    /// `export` lines for a shell.
    Env,
}

/// `--dry-run`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DryRun {
    /// Take a lease.
    #[default]
    None,
    /// Print what would be sent.
    Client,
    /// Let the server check it without taking a lease.
    Server,
}

/// The lines for a lease the server answered.
pub(crate) fn render_lease(
    lease: &Lease,
    format: Option<OutputFormat>,
    dry_run: DryRun,
    bypass: &BypassFlags,
    api_server: Option<&str>,
) -> Result<String, Failure> {
    match format {
        None | Some(OutputFormat::Name | OutputFormat::Json | OutputFormat::Yaml) => {
            let object = serde_json::to_value(&lease.object).map_err(encode)?;
            render_object(&object, format, dry_run)
        },
        Some(OutputFormat::Url) => Ok(format!("{}\n", lease.proxy_url()?)),
        Some(OutputFormat::Env) => {
            let variables = build_variables(lease, lease.proxy_url()?, bypass, api_server);
            Ok(render_exports(&variables))
        },
    }
}

/// The lines for an object, whether the server has seen it or not.
pub(crate) fn render_object(
    object: &Value,
    format: Option<OutputFormat>,
    dry_run: DryRun,
) -> Result<String, Failure> {
    let metadata = &object["metadata"];
    let name = metadata["name"]
        .as_str()
        .or_else(|| metadata["generateName"].as_str());
    let id = format!("{}/{}", resource_name(), name.unwrap_or_default());
    let suffix = match dry_run {
        DryRun::None => "",
        DryRun::Client => " (dry run)",
        DryRun::Server => " (server dry run)",
    };
    match format {
        None => Ok(format!("{id} created{suffix}\n")),
        Some(OutputFormat::Name) => Ok(format!("{id}\n")),
        Some(OutputFormat::Json) => {
            let text = serde_json::to_string_pretty(&sorted(object)).map_err(encode)?;
            Ok(format!("{}\n", indent_by_four(&text)))
        },
        Some(OutputFormat::Yaml) => serde_saphyr::to_string(&sorted(object)).map_err(encode),
        Some(OutputFormat::Url | OutputFormat::Env) => Err(Failure::Usage(
            "a dry run takes no proxy: use -o name, json or yaml".to_owned(),
        )),
    }
}

fn encode(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::Output(std::io::Error::other(error))
}

/// kubectl prints the keys of objects in alphabetical order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut entries: Vec<_> = fields.iter().map(|(k, v)| (k.clone(), sorted(v))).collect();
            entries.sort_by(|(left, _), (right, _)| left.cmp(right));
            Value::Object(entries.into_iter().collect())
        },
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// kubectl indents JSON by four; a line's own leading spaces are all indentation.
fn indent_by_four(text: &str) -> String {
    let indent = |line: &str| {
        let depth = line.len() - line.trim_start_matches(' ').len();
        format!("{}{line}", " ".repeat(depth))
    };
    text.lines().map(indent).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({"kind": "ProxyLease", "apiVersion": "leases.crawl.example.com/v1alpha1",
            "metadata": {"name": "shop-0"}, "spec": {"ttlSeconds": 300, "schemes": ["http"]}})
    }

    fn rendered(format: Option<OutputFormat>, dry_run: DryRun) -> String {
        render_object(&object(), format, dry_run).expect("rendered")
    }

    #[test]
    fn the_plain_form_and_its_dry_runs_read_like_kubectl_create() {
        let id = "proxylease.leases.crawl.example.com/shop-0";
        assert_eq!(rendered(None, DryRun::None), format!("{id} created\n"));
        assert_eq!(
            rendered(None, DryRun::Client),
            format!("{id} created (dry run)\n")
        );
        assert_eq!(
            rendered(None, DryRun::Server),
            format!("{id} created (server dry run)\n")
        );
        assert_eq!(
            rendered(Some(OutputFormat::Name), DryRun::Client),
            format!("{id}\n")
        );
    }

    #[test]
    fn objects_are_printed_with_sorted_keys() {
        assert_eq!(
            rendered(Some(OutputFormat::Yaml), DryRun::Client),
            "apiVersion: leases.crawl.example.com/v1alpha1\nkind: ProxyLease\nmetadata:\n  \
             name: shop-0\nspec:\n  schemes:\n  - http\n  ttlSeconds: 300\n"
        );
        let text = rendered(Some(OutputFormat::Json), DryRun::Client);
        assert!(
            text.starts_with("{\n    \"apiVersion\": \"leases."),
            "{text}"
        );
        assert!(text.contains("\n        \"name\": \"shop-0\"\n"), "{text}");
    }

    #[test]
    fn a_dry_run_has_no_url() {
        let failure = render_object(&object(), Some(OutputFormat::Url), DryRun::Client)
            .expect_err("there is no proxy");
        assert!(failure.to_string().contains("dry run"));
    }
}
