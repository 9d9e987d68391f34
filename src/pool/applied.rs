//! What of a template is written into members that exist, and how a change of it is found.
//!
//! Three states are compared, as `kubectl apply` does it: the template now, what of it was last
//! written into a member
//! ([`names::ANNOTATION_APPLIED_TEMPLATE`]), and, by
//! patching only the difference of these two, the member. So a field that somebody set by hand stays
//! until the template changes that very field. Pure.

use std::collections::BTreeMap;

use crawl_api::names;
use crawl_api::pool::{ProxyTemplate, TemplateMetadata};
use crawl_api::proxy::{Mode, ProxySpec};
use serde_json::{Map, Value, json};

/// Fields of a managed member's spec that need another machine: see
/// [`revision`](super::revision).
const MACHINE: [&str; 5] = ["mode", "provider", "placement", "cloudInit", "port"];
/// The same within `auth`.
const MACHINE_AUTH: [&str; 3] = ["secretRef", "generate", "allowedCIDRs"];

/// What of a template is written into members, in the shape of a Proxy.
pub(super) fn applied(template: &ProxyTemplate) -> Value {
    let ProxyTemplate {
        metadata: TemplateMetadata {
            labels,
            annotations,
        },
        spec,
    } = template;
    let metadata = json!({
        "labels": without(labels, &[names::LABEL_POOL]),
        "annotations": without(annotations, &OURS),
    });
    let mut all = json!({"metadata": metadata, "spec": in_place(spec)});
    prune(&mut all);
    all
}

/// Annotations of a member that are the operator's own, whatever a template says.
const OURS: [&str; 3] = [
    names::ANNOTATION_TEMPLATE_HASH,
    names::ANNOTATION_APPLIED_TEMPLATE,
    names::ANNOTATION_SPEC_HASH,
];

fn without(map: &BTreeMap<String, String>, keys: &[&str]) -> BTreeMap<String, String> {
    let kept = map.iter().filter(|(key, _)| !keys.contains(&key.as_str()));
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn in_place(spec: &ProxySpec) -> Value {
    #[expect(
        clippy::expect_used,
        reason = "it was read from JSON, and its maps have strings as keys"
    )]
    let mut all = serde_json::to_value(spec).expect("a spec becomes JSON");
    let machine: &[&str] = match spec.mode {
        Mode::Managed => &MACHINE,
        Mode::External => &MACHINE[..2],
    };
    if let Some(fields) = all.as_object_mut() {
        fields.retain(|key, _| !machine.contains(&key.as_str()));
    }
    if spec.mode == Mode::Managed
        && let Some(auth) = all.get_mut("auth").and_then(Value::as_object_mut)
    {
        auth.retain(|key, _| !MACHINE_AUTH.contains(&key.as_str()));
    }
    all
}

/// Takes out objects without fields: they would make a part of a member that has none.
fn prune(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.values_mut().for_each(prune);
        fields.retain(|_, field| field.as_object().is_none_or(|map| !map.is_empty()));
    }
}

/// What turns `before` into `after`, as a merge patch (RFC 7386). `None` when they are the same.
pub(super) fn change(before: &Value, after: &Value) -> Option<Value> {
    let (Some(old), Some(new)) = (before.as_object(), after.as_object()) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        let changed = match old.get(key) {
            Some(was) => change(was, value),
            None => Some(value.clone()),
        };
        if let Some(changed) = changed {
            patch.insert(key.clone(), changed);
        }
    }
    for (key, was) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
        patch.insert(key.clone(), removed(was));
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Why field by field: a member's own fields beside them stay.
fn removed(was: &Value) -> Value {
    match was {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, was)| (key.clone(), removed(was)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Value::Null
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(spec: ProxySpec) -> ProxyTemplate {
        ProxyTemplate {
            metadata: TemplateMetadata::default(),
            spec,
        }
    }

    #[test]
    fn only_what_the_template_changed_is_patched() {
        let before = template(ProxySpec::managed("local"));
        let mut after = before.clone();
        after.spec.max_leases = 9;
        after.spec.health_check.interval_seconds = 7;
        after.metadata.labels.insert("geo".into(), "eu".into());
        assert_eq!(
            change(&applied(&before), &applied(&after)),
            Some(json!({
                "metadata": {"labels": {"geo": "eu"}},
                "spec": {"maxLeases": 9, "healthCheck": {"intervalSeconds": 7}},
            }))
        );
        assert_eq!(
            change(&applied(&after), &applied(&before)).unwrap()["metadata"],
            json!({"labels": {"geo": null}})
        );
        assert_eq!(change(&applied(&after), &applied(&after)), None);
    }

    #[test]
    fn what_needs_another_machine_is_never_written_into_a_member() {
        let before = template(ProxySpec::managed("local"));
        let mut after = before.clone();
        after.spec.port = 8080;
        after.spec.provider = Some("other".into());
        after.spec.placement.get_or_insert_default().spot = true;
        after.spec.cloud_init.get_or_insert_default().inline = Some("x".into());
        after.spec.auth.get_or_insert_default().generate = true;
        assert_eq!(change(&applied(&before), &applied(&after)), None);
        after.spec.auth.get_or_insert_default().rotate_seconds = Some(300);
        assert_eq!(
            change(&applied(&before), &applied(&after)),
            Some(json!({"spec": {"auth": {"rotateSeconds": 300}}}))
        );
    }

    #[test]
    fn the_operators_own_labels_and_annotations_are_not_the_templates() {
        let mut own = template(ProxySpec::managed("local"));
        let pool = (names::LABEL_POOL.to_owned(), "other".to_owned());
        own.metadata.labels.extend([pool]);
        let ours = OURS.map(|key| (key.to_owned(), String::new()));
        own.metadata.annotations.extend(ours);
        let plain = template(ProxySpec::managed("local"));
        assert_eq!(applied(&own), applied(&plain));
    }
}
