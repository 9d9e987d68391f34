//! Label selectors as kubectl users write them, as a `LabelSelector`.
//!
//! `geo=eu,tier!=free,zone in (a,b),spot,!legacy`: equality is kept as matchLabels, the rest as
//! matchExpressions. Names and values are checked by the server.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// `Err` is a sentence for the user.
pub(crate) fn parse_selector(text: &str) -> Result<LabelSelector, String> {
    let mut labels = BTreeMap::new();
    let mut expressions = Vec::new();
    for term in split_terms(text)? {
        match parse_term(term).ok_or_else(|| format!("{term:?} in {text:?} is no requirement"))? {
            Term::Equal(key, value) => {
                if labels.insert(key.to_owned(), value.to_owned()).is_some() {
                    return Err(format!("{key:?} is required twice in {text:?}"));
                }
            },
            Term::Expression(expression) => expressions.push(expression),
        }
    }
    Ok(LabelSelector {
        match_labels: (!labels.is_empty()).then_some(labels),
        match_expressions: (!expressions.is_empty()).then_some(expressions),
    })
}

enum Term<'a> {
    Equal(&'a str, &'a str),
    Expression(LabelSelectorRequirement),
}

/// Splits at commas outside of parentheses.
fn split_terms(text: &str) -> Result<Vec<&str>, String> {
    let mut terms = Vec::new();
    let (mut start, mut within) = (0, false);
    for (index, character) in text.char_indices() {
        match character {
            '(' if !within => within = true,
            ')' if within => within = false,
            '(' | ')' => return Err(format!("parentheses do not match in {text:?}")),
            ',' if !within => {
                terms.push(text[start..index].trim());
                start = index + 1;
            },
            _ => {},
        }
    }
    if within {
        return Err(format!("parentheses do not match in {text:?}"));
    }
    terms.push(text[start..].trim());
    Ok(terms)
}

fn parse_term(term: &str) -> Option<Term<'_>> {
    let expression = |key: &str, operator: &str, values: Option<Vec<String>>| {
        let operator = operator.to_owned();
        is_word(key).then(|| {
            Term::Expression(LabelSelectorRequirement {
                key: key.to_owned(),
                operator,
                values,
            })
        })
    };
    if let Some(key) = term.strip_prefix('!') {
        return expression(key.trim(), "DoesNotExist", None);
    }
    if let Some((key, value)) = term.split_once("!=") {
        let value = value.trim();
        return (value.is_empty() || is_word(value))
            .then(|| expression(key.trim(), "NotIn", Some(vec![value.to_owned()])))?;
    }
    if let Some((key, value)) = term.split_once('=') {
        let (key, value) = (key.trim(), value.trim_start_matches('=').trim());
        let whole = is_word(key) && (value.is_empty() || is_word(value));
        return whole.then_some(Term::Equal(key, value));
    }
    if let Some((head, values)) = term.split_once('(') {
        let values: Vec<_> = values
            .strip_suffix(')')?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = head.split_whitespace();
        let (key, operator) = (words.next()?, words.next()?);
        let operator = match operator {
            "in" => "In",
            "notin" => "NotIn",
            _ => return None,
        };
        let whole = words.next().is_none() && values.iter().all(|value| is_word(value));
        return whole.then(|| expression(key, operator, Some(values)))?;
    }
    expression(term, "Exists", None)
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "()=!,".contains(c))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> serde_json::Value {
        serde_json::to_value(parse_selector(text).expect("a selector")).expect("json")
    }

    #[test]
    fn equality_becomes_match_labels() {
        let expected = json!({"matchLabels": {"geo": "eu", "tier": "gold"}});
        assert_eq!(parsed("geo=eu,tier==gold"), expected);
        assert_eq!(parsed(" geo = eu , tier=gold"), expected);
    }

    #[test]
    fn everything_else_becomes_match_expressions() {
        let expected = json!({"matchExpressions": [
            {"key": "tier", "operator": "NotIn", "values": ["free"]},
            {"key": "zone", "operator": "In", "values": ["a", "b"]},
            {"key": "asn", "operator": "NotIn", "values": ["1", "2"]},
            {"key": "spot", "operator": "Exists"},
            {"key": "example.com/legacy", "operator": "DoesNotExist"},
        ]});
        let text = "tier!=free,zone in (a, b),asn notin (1,2),spot,!example.com/legacy";
        assert_eq!(parsed(text), expected);
    }

    #[test]
    fn what_does_not_parse_is_refused() {
        for text in [
            "",
            ",",
            "=eu",
            "geo=eu,",
            "zone in a",
            "zone in (a",
            "a b",
            "x within (a)",
            "geo=eu,geo=us",
        ] {
            assert!(parse_selector(text).is_err(), "{text:?}");
        }
    }
}
