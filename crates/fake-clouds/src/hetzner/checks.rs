//! What Hetzner Cloud refuses although the types allow it: rules that its documentation states in
//! prose (Servers, "Create a Server"; Labels; Label Selector).

use regex::Regex;
use serde_json::Value;

use super::state::text;

/// The longest user data, in bytes.
const MAX_USER_DATA: usize = 32 * 1024;
/// The server types, images and locations that exist.
pub(super) const SERVER_TYPES: [&str; 5] = ["cx23", "cx33", "cpx11", "cpx22", "cax11"];
const IMAGES: [&str; 3] = ["debian-12", "debian-13", "ubuntu-24.04"];
pub(super) const LOCATIONS: [&str; 6] = ["fsn1", "nbg1", "hel1", "ash", "hil", "sin"];

/// Checks the body of a create.
///
/// # Errors
/// The field, and in words what Hetzner Cloud would not take.
pub(super) fn check(body: &Value) -> Result<(), (&'static str, String)> {
    let name = text(body, "name");
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    if name.len() > 253 || !matches(&format!(r"{label}(?:\.{label})*"), &name) {
        return Err(("name", format!("{name:?} is no hostname as per RFC 1123")));
    }
    let is_known = |known: &[&str], text: &str| known.contains(&text) || is_id(text);
    let known: [(&'static str, &[&str]); 3] = [
        ("server_type", &SERVER_TYPES),
        ("image", &IMAGES),
        ("location", &LOCATIONS),
    ];
    for (field, known) in known {
        let text = text(body, field);
        if body.get(field).is_some() && !is_known(known, &text) {
            return Err((field, format!("{field} {text:?} not found")));
        }
    }
    if text(body, "user_data").len() > MAX_USER_DATA {
        return Err(("user_data", "user data is longer than 32 KiB".into()));
    }
    let labels = body.get("labels").and_then(Value::as_object);
    for key in labels.into_iter().flatten().map(|(key, _)| key) {
        if !is_label_key(key) {
            return Err(("labels", format!("{key:?} is no label key")));
        }
    }
    let has = |at: &str| {
        let flag = body.pointer(at).and_then(Value::as_bool);
        flag.unwrap_or(true)
    };
    let networks = body.get("networks").and_then(Value::as_array);
    let is_private = networks.is_some_and(|networks| !networks.is_empty());
    if !has("/public_net/enable_ipv4") && !has("/public_net/enable_ipv6") && !is_private {
        let what = "a server needs a public address or a network";
        return Err(("public_net", what.into()));
    }
    Ok(())
}

/// A selector of labels, as far as it is faked: `k==v` and `k=v`, which all have to hold. What is
/// not known here is refused like nonsense.
pub(super) fn selector(text: &str) -> Option<Vec<(String, String)>> {
    let term = |term: &str| {
        let (key, value) = term.split_once('=')?;
        let value = value.strip_prefix('=').unwrap_or(value);
        let is_value = matches("(?:[a-zA-Z0-9](?:[a-zA-Z0-9._-]*[a-zA-Z0-9])?)?", value);
        (is_label_key(key) && is_value).then(|| (key.to_owned(), value.to_owned()))
    };
    text.split(',').map(term).collect()
}

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let prefix_fits = prefix.is_none_or(|prefix| {
        prefix.len() <= 253
            && prefix != "hetzner.cloud"
            && matches(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?", prefix)
    });
    prefix_fits && matches("[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?", name)
}

fn is_id(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|id| id > 0)
}

fn matches(pattern: &str, text: &str) -> bool {
    Regex::new(&format!("^(?:{pattern})$")).is_ok_and(|whole| whole.is_match(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        json!({"name": "a-1", "server_type": "cx23", "image": "debian-12", "location": "fsn1"})
    }

    #[test]
    fn what_the_documentation_asks_for_is_enough() {
        check(&good()).unwrap();
    }

    #[test]
    fn what_the_documentation_forbids_is_refused() {
        for (field, value) in [
            ("name", json!("a_b")),
            ("name", json!("-a")),
            ("name", json!("a".repeat(64))),
            ("server_type", json!("e2-micro")),
            ("image", json!("windows")),
            ("location", json!("europe-west1-b")),
            ("user_data", json!("x".repeat(32 * 1024 + 1))),
            ("labels", json!({"-a": "x"})),
            ("labels", json!({"hetzner.cloud/a": "x"})),
            (
                "public_net",
                json!({"enable_ipv4": false, "enable_ipv6": false}),
            ),
        ] {
            let mut body = good();
            body[field] = value.clone();
            assert_eq!(check(&body).unwrap_err().0, field, "{value}");
        }
        let mut longest = good();
        longest["user_data"] = json!("x".repeat(32 * 1024));
        check(&longest).unwrap();
    }

    #[test]
    fn a_selector_is_read_or_refused() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        for (text, wanted) in [
            ("a==b", Some(vec![pair("a", "b")])),
            ("a=b,c==", Some(vec![pair("a", "b"), pair("c", "")])),
            ("a", None),
            ("", None),
            ("a==b c", None),
            ("a in (b)", None),
        ] {
            assert_eq!(selector(text), wanted, "{text}");
        }
    }
}
