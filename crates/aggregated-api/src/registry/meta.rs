//! `ObjectMeta`: what the server sets, and what a client may write, after
//! `k8s.io/apimachinery/pkg/api/validation`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rand::RngExt;

use crate::codec::selector::path_segment_faults;
use crate::http::status::FieldError;

/// Most bytes of all annotations together.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;
/// Characters of a generated suffix: no vowels, so that no words appear.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Longest prefix kept of a generateName.
const MAX_GENERATED_BASE: usize = 58;

/// A name from a `generateName` prefix.
pub fn generate_name(base: &str) -> String {
    let mut rng = rand::rng();
    let mut name: String = base.chars().take(MAX_GENERATED_BASE).collect();
    for _ in 0..5 {
        let index = rng.random_range(0..SUFFIX_ALPHABET.len());
        name.push(SUFFIX_ALPHABET.get(index).copied().map_or('x', char::from));
    }
    name
}

/// Drops what only the server may set on create.
pub fn wipe_system_fields(meta: &mut ObjectMeta) {
    meta.uid = None;
    meta.creation_timestamp = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.self_link = None;
    meta.resource_version = None;
    meta.generation = None;
    meta.managed_fields = None;
}

/// Leaves out what is empty, as Go's `omitempty` does.
pub fn omit_empty(meta: &mut ObjectMeta) {
    fn filled<T>(field: &mut Option<T>, is_empty: impl Fn(&T) -> bool) {
        if field.as_ref().is_some_and(is_empty) {
            *field = None;
        }
    }
    filled(&mut meta.labels, BTreeMap::is_empty);
    filled(&mut meta.annotations, BTreeMap::is_empty);
    filled(&mut meta.finalizers, Vec::is_empty);
    filled(&mut meta.owner_references, Vec::is_empty);
    for text in [
        &mut meta.name,
        &mut meta.generate_name,
        &mut meta.namespace,
        &mut meta.resource_version,
    ] {
        filled(text, String::is_empty);
    }
}

/// Keeps, on update, what only the server may set.
pub fn keep_system_fields(new: &mut ObjectMeta, old: &ObjectMeta) {
    new.uid.clone_from(&old.uid);
    new.creation_timestamp.clone_from(&old.creation_timestamp);
    new.deletion_timestamp.clone_from(&old.deletion_timestamp);
    new.deletion_grace_period_seconds = old.deletion_grace_period_seconds;
    new.generation = old.generation;
    new.self_link = None;
    new.managed_fields.clone_from(&old.managed_fields);
}

/// What `k8s.io/apimachinery/pkg/api/validate/content` calls a label key, as it shows it.
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
/// Part of a DNS-1123 subdomain, shown likewise.
const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// What keeps `name` from being a DNS-1123 subdomain; nothing when it is one.
pub fn subdomain_faults(name: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if name.len() > 253 {
        faults.push(too_long(253));
    }
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |part: &str| {
        part.starts_with(lower)
            && part.ends_with(lower)
            && part.chars().all(|c| lower(c) || c == '-')
    };
    if !name.split('.').all(label) {
        faults.push(format!("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{DNS_LABEL}(\\.{DNS_LABEL})*')"));
    }
    faults
}

/// What keeps `key` from being a label or annotation key (`[prefix/]name`); nothing when it is one.
pub fn label_key_faults(key: &str) -> Vec<String> {
    let rule = format!(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{LABEL_KEY}')"
    );
    let mut faults = Vec::new();
    let name = match key.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        },
        Some(("", name)) => {
            faults.push("prefix part must be non-empty".to_owned());
            name
        },
        Some((prefix, name)) => {
            let prefix = subdomain_faults(prefix);
            faults.extend(prefix.into_iter().map(|why| format!("prefix part {why}")));
            name
        },
        None => key,
    };
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        faults.push(format!("name part {}", too_long(63)));
    }
    if !is_label_name(name) {
        faults.push(format!("name part {rule}"));
    }
    faults
}

/// What keeps `value` from being the value of a label; nothing when it is one.
pub fn label_value_faults(value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if value.len() > 63 {
        faults.push(too_long(63));
    }
    if !value.is_empty() && !is_label_name(value) {
        faults.push(format!("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({LABEL_KEY})?')"));
    }
    faults
}

fn is_label_name(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || "-_.".contains(c))
}

fn too_long(bytes: usize) -> String {
    format!("must be no more than {bytes} bytes")
}

/// What is wrong with the name of a new object: `of_kind` tells what its kind asks of a segment of a path.
pub fn validate_name(name: &str, of_kind: impl FnOnce(&str) -> Vec<String>) -> Vec<FieldError> {
    const FIELD: &str = "metadata.name";
    if name.is_empty() {
        let why = "name or generateName is required";
        return vec![FieldError::required(FIELD, why)];
    }
    let mut faults = path_segment_faults(name);
    if faults.is_empty() {
        faults = of_kind(name);
    }
    faults
        .iter()
        .map(|why| FieldError::invalid(FIELD, &name, why))
        .collect()
}

/// What is wrong with the metadata of an object to be stored, its name aside.
pub fn validate(meta: &ObjectMeta, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if namespaced && meta.namespace.as_deref().unwrap_or_default().is_empty() {
        errors.push(FieldError::required("metadata.namespace", ""));
    }
    for (key, value) in meta.labels.iter().flatten() {
        for why in label_key_faults(key) {
            errors.push(FieldError::invalid("metadata.labels", key, &why));
        }
        for why in label_value_faults(value) {
            errors.push(FieldError::invalid("metadata.labels", value, &why));
        }
    }
    let mut size = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        size += key.len() + value.len();
        for why in label_key_faults(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", key, &why));
        }
    }
    if size > MAX_ANNOTATIONS_BYTES {
        errors.push(FieldError::too_long("metadata.annotations", 262_144));
    }
    validate_finalizers(meta, &mut errors);
    validate_owners(meta, &mut errors);
    errors
}

fn validate_finalizers(meta: &ObjectMeta, errors: &mut Vec<FieldError>) {
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    for finalizer in finalizers {
        for why in label_key_faults(finalizer) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, &why));
        }
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.push(FieldError::invalid(
            "metadata.finalizers",
            &finalizers,
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
}

fn validate_owners(meta: &ObjectMeta, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
    for (index, owner) in meta.owner_references.iter().flatten().enumerate() {
        let at = |field: &str| format!("metadata.ownerReferences[{index}].{field}");
        for (field, value) in [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                errors.push(FieldError::required(at(field), "must not be empty"));
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            errors.push(FieldError::invalid(
                at("kind"),
                &owner.kind,
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        controllers += u8::from(owner.controller == Some(true));
    }
    if controllers > 1 {
        errors.push(FieldError::invalid(
            "metadata.ownerReferences",
            &"",
            "Only one reference can have Controller set to true",
        ));
    }
}

/// What is wrong with a change of metadata.
pub fn validate_update(new: &ObjectMeta, old: &ObjectMeta) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.deletion_timestamp.is_some() {
        let before: BTreeSet<_> = old.finalizers.iter().flatten().collect();
        let added: Vec<_> = new
            .finalizers
            .iter()
            .flatten()
            .filter(|f| !before.contains(f))
            .collect();
        if !added.is_empty() {
            let shown: Vec<_> = added.iter().map(|f| format!("{f:?}")).collect();
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                &format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    shown.join(", ")
                ),
            ));
        }
    }
    errors
}

/// Removes owner references with a uid that occurred before; returns those uids.
pub fn dedupe_owners(meta: &mut ObjectMeta) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut duplicates = Vec::new();
    if let Some(owners) = &mut meta.owner_references {
        owners.retain(|owner| {
            let first = seen.insert(owner.uid.clone());
            if !first {
                duplicates.push(owner.uid.clone());
            }
            first
        });
    }
    duplicates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_keep_58_characters_and_add_five() {
        let name = generate_name(&"a".repeat(80));
        assert_eq!(name.len(), 63);
        assert!(
            name[58..].bytes().all(|b| SUFFIX_ALPHABET.contains(&b)),
            "{name}"
        );
    }

    #[test]
    fn names_are_dns_subdomains() {
        for good in ["a", "a-b.c1", "0"] {
            assert!(subdomain_faults(good).is_empty(), "{good}");
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".", "a/b"] {
            assert_eq!(subdomain_faults(bad).len(), 1, "{bad}");
        }
    }

    #[test]
    fn label_keys_and_values_are_judged_part_by_part() {
        let long = "x".repeat(64);
        for (key, expected) in [
            ("app", vec![]),
            ("example.com/App_1", vec![]),
            (
                "",
                vec!["name part must be non-empty", "name part must consist of"],
            ),
            ("/app", vec!["prefix part must be non-empty"]),
            ("Example.com/app", vec!["prefix part a lowercase RFC 1123"]),
            ("a/b/c", vec!["a valid label key must consist of"]),
            ("-a", vec!["name part must consist of"]),
            (
                long.as_str(),
                vec!["name part must be no more than 63 bytes"],
            ),
        ] {
            let faults = label_key_faults(key);
            assert_eq!(faults.len(), expected.len(), "{key}: {faults:?}");
            for (fault, start) in faults.iter().zip(expected) {
                assert!(fault.starts_with(start), "{key}: {fault}");
            }
        }
        for (value, count) in [("", 0), ("a.b", 0), ("-b", 1), ("ü", 1), (&long, 1)] {
            assert_eq!(label_value_faults(value).len(), count, "{value}");
        }
    }

    #[test]
    fn finalizers_cannot_be_added_while_deleting() {
        let old = ObjectMeta {
            deletion_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                jiff::Timestamp::UNIX_EPOCH,
            )),
            finalizers: Some(vec!["a.b/c".to_owned()]),
            ..ObjectMeta::default()
        };
        let mut new = old.clone();
        assert!(validate_update(&new, &old).is_empty());
        new.finalizers = Some(vec!["x.y/z".to_owned()]);
        assert_eq!(
            validate_update(&new, &old)[0].to_string(),
            r#"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"x.y/z"}"#
        );
    }
}
