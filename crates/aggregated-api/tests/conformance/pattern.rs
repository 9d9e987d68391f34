//! Variables in cases, and patterns that answers are matched with.
//!
//! A pattern is a JSON value. Objects match when each of their members does, whatever else the answer
//! has; arrays match item by item; anything else must be equal. An object with one member whose name
//! begins with `$` is an operator.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

/// Variables of a case, by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Puts variables in: `${name}`, and `${name+N}` for a number.
///
/// # Errors
/// A variable that is not set, or is no number where one is needed.
pub(crate) fn fill(text: &str, variables: &Variables) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, tail)) = rest.split_once("${") {
        let (name, after) = tail
            .split_once('}')
            .ok_or_else(|| format!("{text:?}: a variable without its end"))?;
        out.push_str(before);
        let (name, plus) = name
            .split_once('+')
            .map_or((name, None), |(n, p)| (n, Some(p)));
        let value = variables
            .get(name)
            .ok_or_else(|| format!("{text:?}: the variable {name} is not set"))?;
        match plus {
            None => out.push_str(value),
            Some(plus) => {
                let sum = value
                    .parse::<u64>()
                    .ok()
                    .zip(plus.parse::<u64>().ok())
                    .map(|(value, plus)| value + plus)
                    .ok_or_else(|| format!("{text:?}: {value:?} is no number"))?;
                out.push_str(&sum.to_string());
            },
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// [`fill`] in every string of a value, member names included.
///
/// # Errors
/// As [`fill`].
pub(crate) fn fill_value(value: &Value, variables: &Variables) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => Value::String(fill(text, variables)?),
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| fill_value(item, variables))
                .collect::<Result<_, _>>()?,
        ),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, value)| Ok((fill(name, variables)?, fill_value(value, variables)?)))
                .collect::<Result<_, String>>()?,
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

/// What does not match, one line each; empty when all does.
pub(crate) fn mismatches(pattern: &Value, found: Option<&Value>, at: &str) -> Vec<String> {
    if let Some((operator, argument)) = operator(pattern) {
        return operate(operator, argument, found, at);
    }
    let Some(found) = found else {
        return vec![format!("{at}: missing, expected {pattern}")];
    };
    match (pattern, found) {
        (Value::Object(members), Value::Object(_)) => members
            .iter()
            .flat_map(|(name, pattern)| {
                mismatches(pattern, found.get(name), &format!("{at}/{name}"))
            })
            .collect(),
        (Value::Array(patterns), Value::Array(items)) => {
            if patterns.len() != items.len() {
                return vec![format!(
                    "{at}: {} items, expected {}: {}",
                    items.len(),
                    patterns.len(),
                    shortened(found)
                )];
            }
            patterns
                .iter()
                .zip(items)
                .enumerate()
                .flat_map(|(index, (pattern, item))| {
                    mismatches(pattern, Some(item), &format!("{at}/{index}"))
                })
                .collect()
        },
        _ if pattern == found => Vec::new(),
        _ => vec![format!("{at}: {}, expected {pattern}", shortened(found))],
    }
}

fn operator(pattern: &Value) -> Option<(&str, &Value)> {
    let members = pattern.as_object()?;
    let (name, argument) = members.iter().next()?;
    (members.len() == 1 && name.starts_with('$')).then_some((name.as_str(), argument))
}

fn operate(operator: &str, argument: &Value, found: Option<&Value>, at: &str) -> Vec<String> {
    let text = found.map_or_else(String::new, |found| {
        found
            .as_str()
            .map_or_else(|| found.to_string(), ToOwned::to_owned)
    });
    let number = |text: &str| text.parse::<u64>().ok();
    let wanted = argument
        .as_str()
        .map_or_else(|| argument.to_string(), ToOwned::to_owned);
    let holds = match operator {
        "$absent" => found.is_none(),
        "$present" => found.is_some_and(|found| !found.is_null()),
        "$regex" => Regex::new(&wanted).is_ok_and(|regex| regex.is_match(&text)),
        "$contains" => match found {
            Some(Value::Array(items)) => items.iter().any(|item| {
                mismatches(argument, Some(item), at).is_empty()
                    || item.as_str().is_some_and(|item| item.contains(&wanted))
            }),
            Some(Value::Object(members)) => members
                .values()
                .any(|member| mismatches(argument, Some(member), at).is_empty()),
            _ => text.contains(&wanted),
        },
        "$notContains" => !text.contains(&wanted),
        "$not" => !mismatches(argument, found, at).is_empty(),
        "$anyOf" => argument.as_array().is_some_and(|patterns| {
            patterns
                .iter()
                .any(|pattern| mismatches(pattern, found, at).is_empty())
        }),
        "$length" => found.is_some_and(|found| {
            let length = match found {
                Value::Array(items) => items.len(),
                Value::Object(members) => members.len(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => text.len(),
            };
            Some(length) == argument.as_u64().and_then(|n| usize::try_from(n).ok())
        }),
        "$above" => number(&text) > number(&wanted) && number(&wanted).is_some(),
        "$atLeast" => number(&text) >= number(&wanted) && number(&wanted).is_some(),
        _ => false,
    };
    if holds {
        Vec::new()
    } else if let Some(place) = text.find(&wanted).filter(|_| operator == "$notContains") {
        let start = place.saturating_sub(CONTEXT);
        let around: String = text.chars().skip(start).take(2 * CONTEXT).collect();
        vec![format!("{at}: …{around}…, expected {operator} {argument}")]
    } else {
        let found = found.map_or_else(|| "missing".to_owned(), shortened);
        vec![format!("{at}: {found}, expected {operator} {argument}")]
    }
}

/// Characters told before and after a text that should not be there.
const CONTEXT: usize = 80;

/// A value for a line of a report.
pub(crate) fn shortened(value: &Value) -> String {
    const MOST: usize = 300;
    let text = value.to_string();
    if text.chars().count() <= MOST {
        return text;
    }
    let mut cut: String = text.chars().take(MOST).collect();
    cut.push('…');
    cut
}
