//! What two correct servers may answer differently, each with the reason. Nothing else is forgiven.
//!
//! [`RULES`] are the rules by name, for the page; [`transcript`] applies them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use crate::gadgets;

/// Every rule: what is put in place of what, and why.
pub(crate) const RULES: [(&str, &str); 18] = [
    (
        "headers",
        "only those that clients act on are compared: content-type, retry-after, warning, cache-control, vary, location, content-encoding, x-content-type-options, and that there is an etag and an audit-id; Date and Content-Length say nothing, and the transfer coding is the HTTP library's",
    ),
    (
        "deprecation warning",
        "the sample calls its v1alpha1 deprecated in every answer; ours deprecates nothing, and the header is row 213's",
    ),
    (
        "resourceVersion",
        "two stores count differently; an object's version becomes its rank among all object versions of the case, a list's, table's or bookmark's the number of object versions that are not newer, so order, equality and staleness are still compared",
    ),
    (
        "uid",
        "random; numbered by first appearance, so that equal stays equal",
    ),
    (
        "timestamps",
        "the clock; a time of the right form becomes <time>, any other text stays as it is",
    ),
    (
        "null creationTimestamp",
        "Go encodes a zero time as null, or not at all, depending on the type; clients read both alike",
    ),
    (
        "managedFields",
        "ours has none yet: a named deviation that ends with server-side apply",
    ),
    (
        "generation",
        "the sample's strategies set none; ours sets it for every kind, as recommended for new APIs",
    ),
    (
        "empty spec and status",
        "Go always encodes these structs; leaving an empty one out is the same to every client",
    ),
    (
        "kind of list items",
        "typed Go lists leave kind and apiVersion of items out, CustomResourceDefinitions and ours give them; clients accept both",
    ),
    (
        "form of errors",
        "Go indents an error that it cannot negotiate and ends it without a newline; nobody reads errors by their spaces, and what row 28 asks is a case of its own",
    ),
    ("server addresses", "each server has its own"),
    (
        "continue",
        "opaque; only that there is one is compared, what it leads to is a step of its own",
    ),
    (
        "numbers of revisions in messages",
        "two stores count differently",
    ),
    (
        "storage version hash",
        "it is computed from the storage version: the sample stores flunders as v1alpha1, ours as v1beta1",
    ),
    (
        "group of the gadgets",
        "ours serves it beside the sample group, while the oracle's control plane has it as a definition; it is taken out of lists of groups",
    ),
    (
        "descriptions",
        "prose for people; that a description is there is still compared",
    ),
    (
        "column of the age",
        "the sample's columns are those of Go's default convertor, Name and Created At; ours are those of CustomResourceDefinitions, Name and Age with the age rendered; both are cut to the name, and a case of its own checks ours",
    ),
];

const HEADERS: [&str; 8] = [
    "content-type",
    "retry-after",
    "warning",
    "cache-control",
    "vary",
    "location",
    "content-encoding",
    "x-content-type-options",
];

static TIME: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$").ok());
static REVISION_TEXTS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(resource version: |current: |in record \(|precondition \(|\()\d+").ok()
});

/// Applies every rule to the answers of one server.
pub(crate) fn transcript(answers: &[(usize, Value)]) -> Vec<(usize, Value)> {
    let mut ranks = Ranks::default();
    for (_, answer) in answers {
        ranks.collect(answer);
    }
    let mut uids = BTreeMap::new();
    answers
        .iter()
        .map(|(number, answer)| {
            let mut answer = answer.clone();
            if let Some(headers) = answer.get_mut("headers") {
                *headers = allowed_headers(headers);
            }
            if answer["status"]
                .as_u64()
                .is_some_and(|status| status >= 400)
                && let Some(members) = answer.as_object_mut()
            {
                members.remove("pretty");
                members.remove("newline");
            }
            rewrite(&mut answer, &ranks, &mut uids);
            (*number, answer)
        })
        .collect()
}

fn allowed_headers(headers: &Value) -> Value {
    let mut kept = Map::new();
    for name in HEADERS {
        if let Some(value) = headers.get(name)
            && !(name == "warning" && value.as_str().is_some_and(is_deprecation))
        {
            kept.insert(name.to_owned(), value.clone());
        }
    }
    for name in ["etag", "audit-id"] {
        if headers.get(name).is_some() {
            kept.insert(name.to_owned(), json!("<present>"));
        }
    }
    Value::Object(kept)
}

fn is_deprecation(warning: &str) -> bool {
    warning.contains("is deprecated in v1.3+")
}

/// The versions of the objects of a case, in order.
#[derive(Default)]
struct Ranks(BTreeSet<u64>);

impl Ranks {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(metadata) = members.get("metadata")
                    && metadata.get("name").is_some()
                    && let Some(version) = version(metadata)
                {
                    self.0.insert(version);
                }
                members.values().for_each(|value| self.collect(value));
            },
            Value::Array(items) => items.iter().for_each(|value| self.collect(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {},
        }
    }

    /// How many object versions are not newer.
    fn rank(&self, version: u64) -> usize {
        self.0.range(..=version).count()
    }
}

fn version(metadata: &Value) -> Option<u64> {
    metadata.get("resourceVersion")?.as_str()?.parse().ok()
}

fn rewrite(value: &mut Value, ranks: &Ranks, uids: &mut BTreeMap<String, usize>) {
    match value {
        Value::Object(members) => {
            rewrite_object(members, ranks, uids);
            members
                .values_mut()
                .for_each(|value| rewrite(value, ranks, uids));
        },
        Value::Array(items) => items
            .iter_mut()
            .for_each(|value| rewrite(value, ranks, uids)),
        Value::String(text) => {
            if TIME.as_ref().is_some_and(|time| time.is_match(text)) {
                "<time>".clone_into(text);
            }
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => {},
    }
}

fn rewrite_object(
    members: &mut Map<String, Value>,
    ranks: &Ranks,
    uids: &mut BTreeMap<String, usize>,
) {
    if let Some(Value::Object(metadata)) = members.get_mut("metadata") {
        rewrite_metadata(metadata, ranks, uids);
    }
    for name in ["spec", "status"] {
        if members.get(name) == Some(&json!({})) {
            members.remove(name);
        }
    }
    for name in ["uid"] {
        if let Some(Value::String(uid)) = members.get_mut(name) {
            *uid = numbered(uid, uids);
        }
    }
    if let Some(Value::String(message)) = members.get_mut("message")
        && let Some(texts) = REVISION_TEXTS.as_ref()
    {
        *message = texts.replace_all(message, "${1}<revision>").into_owned();
    }
    let list_kind = members
        .get("kind")
        .and_then(Value::as_str)
        .map(ToOwned::to_owned);
    if let (Some(kind), Some(Value::Array(items))) = (list_kind, members.get_mut("items")) {
        let item_kind = kind.strip_suffix("List").unwrap_or_default();
        for item in items.iter_mut().filter_map(Value::as_object_mut) {
            if item_kind != "PartialObjectMetadata"
                && item.get("kind").and_then(Value::as_str) == Some(item_kind)
            {
                item.remove("kind");
                item.remove("apiVersion");
            }
        }
    }
    if let Some(addresses) = members.get_mut("serverAddressByClientCIDRs") {
        *addresses = json!("<addresses>");
    }
    if let Some(Value::Array(groups)) = members.get_mut("groups") {
        groups.retain(|group| group["name"] != gadgets::GROUP);
    }
    if let Some(Value::String(hash)) = members.get_mut("storageVersionHash") {
        "<hash>".clone_into(hash);
    }
    if let Some(Value::String(description)) = members.get_mut("description") {
        "<text>".clone_into(description);
    }
    cut_table(members);
}

fn rewrite_metadata(
    metadata: &mut Map<String, Value>,
    ranks: &Ranks,
    uids: &mut BTreeMap<String, usize>,
) {
    let named = metadata.contains_key("name");
    if let Some(Value::String(version)) = metadata.get_mut("resourceVersion")
        && let Ok(number) = version.parse()
    {
        let rank = ranks.rank(number);
        *version = if named {
            format!("<version {rank}>")
        } else {
            format!("<at or after version {rank}>")
        };
    }
    metadata.remove("managedFields");
    metadata.remove("generation");
    if metadata.get("creationTimestamp") == Some(&Value::Null) {
        metadata.remove("creationTimestamp");
    }
    if let Some(Value::String(uid)) = metadata.get_mut("uid") {
        *uid = numbered(uid, uids);
    }
    if let Some(Value::String(token)) = metadata.get_mut("continue")
        && !token.is_empty()
    {
        "<token>".clone_into(token);
    }
}

fn numbered(uid: &str, uids: &mut BTreeMap<String, usize>) -> String {
    if uid.starts_with("<uid ") {
        return uid.to_owned();
    }
    let next = uids.len() + 1;
    let number = *uids.entry(uid.to_owned()).or_insert(next);
    format!("<uid {number}>")
}

fn cut_table(members: &mut Map<String, Value>) {
    if members.get("kind") != Some(&json!("Table")) {
        return;
    }
    if let Some(Value::Array(columns)) = members.get_mut("columnDefinitions") {
        columns.truncate(1);
    }
    if let Some(Value::Array(rows)) = members.get_mut("rows") {
        for row in rows {
            if let Some(Value::Array(cells)) = row.get_mut("cells") {
                cells.truncate(1);
            }
        }
    }
}

/// Where two normalised values differ, one line each.
pub(crate) fn differences(ours: &Value, oracle: &Value, at: &str) -> Vec<String> {
    match (ours, oracle) {
        (Value::Object(mine), Value::Object(theirs)) => {
            let names: BTreeSet<_> = mine.keys().chain(theirs.keys()).collect();
            names
                .into_iter()
                .flat_map(|name| {
                    let at = format!("{at}/{name}");
                    match (mine.get(name), theirs.get(name)) {
                        (Some(mine), Some(theirs)) => differences(mine, theirs, &at),
                        (mine, theirs) => vec![line(&at, mine, theirs)],
                    }
                })
                .collect()
        },
        (Value::Array(mine), Value::Array(theirs)) if mine.len() == theirs.len() => mine
            .iter()
            .zip(theirs)
            .enumerate()
            .flat_map(|(index, (mine, theirs))| differences(mine, theirs, &format!("{at}/{index}")))
            .collect(),
        _ if ours == oracle => Vec::new(),
        _ => vec![line(at, Some(ours), Some(oracle))],
    }
}

fn line(at: &str, ours: Option<&Value>, oracle: Option<&Value>) -> String {
    let text = |value: Option<&Value>| {
        value.map_or_else(|| "nothing".to_owned(), crate::pattern::shortened)
    };
    format!("{at}: ours {}, the oracle {}", text(ours), text(oracle))
}
