//! The filter of a list, as far as it is faked: `(field = "value") (field = "value")`, which all
//! have to hold. The real grammar has more; what is not known here is refused like nonsense.

use serde_json::Value;

/// A condition on an instance.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter(Vec<(String, String)>);

// === impl Filter ===

impl Filter {
    /// Reads a filter; `None` when it is not of the form.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut terms = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (term, after) = rest.strip_prefix('(')?.split_once(')')?;
            let (field, value) = term.split_once('=')?;
            let value = value.trim().strip_prefix('"')?.strip_suffix('"')?;
            terms.push((field.trim().to_owned(), value.to_owned()));
            rest = after.trim_start();
        }
        Some(Self(terms))
    }

    pub(super) fn holds(&self, instance: &Value) -> bool {
        let Self(terms) = self;
        terms.iter().all(|(field, wanted)| {
            // Why: label names may not contain a dot, so that one split is the whole path.
            let found = match field.split_once('.') {
                Some((outer, inner)) => instance.get(outer).and_then(|value| value.get(inner)),
                None => instance.get(field),
            };
            found.and_then(Value::as_str) == Some(wanted)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_term_has_to_hold() {
        let instance = json!({"name": "a", "labels": {"team": "x", "tier": "y"}});
        for (text, wanted) in [
            ("", true),
            (r#"(labels.team = "x")"#, true),
            (r#"(labels.team = "x") (labels.tier="y")"#, true),
            (r#"(labels.team = "x") (labels.tier = "z")"#, false),
            (r#"(labels.none = "x")"#, false),
            (r#"(name = "a")"#, true),
        ] {
            assert_eq!(
                Filter::read(text).unwrap().holds(&instance),
                wanted,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_of_the_form_is_refused() {
        for text in ["labels.team", "(a = b)", r#"(a = "b""#, r#"a = "b""#] {
            assert_eq!(Filter::read(text), None, "{text}");
        }
    }
}
