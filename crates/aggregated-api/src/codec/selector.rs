//! Label and field selectors, in the grammar of `k8s.io/apimachinery/pkg/labels` and `fields`.

use std::collections::{BTreeMap, BTreeSet};

use crate::http::status::ApiError;
use crate::registry::meta::{label_key_faults, label_value_faults};

/// A parsed `labelSelector`; all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

impl LabelSelector {
    /// Parses the text of the query parameter.
    ///
    /// # Errors
    /// 400 when it does not follow the grammar, or names a key or value that no label can have.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        Parser::new(text)
            .selector()
            .map(Self)
            .map_err(ApiError::bad_request)
    }

    /// Whether every object matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an object with these labels matches.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.operator {
                Operator::Exists => value.is_some(),
                Operator::Absent => value.is_none(),
                Operator::In(set) => value.is_some_and(|v| set.contains(v)),
                Operator::NotIn(set) => value.is_none_or(|v| !set.contains(v)),
                Operator::Greater(bound) => number(value).is_some_and(|n| n > *bound),
                Operator::Less(bound) => number(value).is_some_and(|n| n < *bound),
            }
        })
    }
}

fn number(value: Option<&String>) -> Option<i64> {
    value.and_then(|v| v.parse().ok())
}

/// Characters that are tokens, alone or, for the operators, in pairs.
const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", ",", "(", ")", ">", "<"];

/// Reads tokens as they are asked for. The end of the text is a token too, an empty one; texts of
/// errors are those of `k8s.io/apimachinery/pkg/labels`.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    fn peek(&mut self) -> &'a str {
        let space = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
        self.rest = self.rest.trim_start_matches(space);
        if let Some(symbol) = SYMBOLS.iter().find(|s| self.rest.starts_with(**s)) {
            return symbol;
        }
        let end = self.rest.find(|c| space(c) || "=!,()<>".contains(c));
        self.rest
            .get(..end.unwrap_or(self.rest.len()))
            .unwrap_or_default()
    }

    fn take(&mut self) -> &'a str {
        let token = self.peek();
        self.rest = self.rest.get(token.len()..).unwrap_or_default();
        token
    }

    fn selector(mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        let first = self.peek();
        if first.is_empty() {
            return Ok(requirements);
        }
        if !is_word(first) && first != "!" {
            return Err(format!(
                "found '{first}', expected: !, identifier, or 'end of string'"
            ));
        }
        loop {
            let requirement = self.requirement();
            requirements
                .push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
            match self.take() {
                "" => return Ok(requirements),
                "," => {},
                other => {
                    return Err(format!("found '{other}', expected: ',' or 'end of string'"));
                },
            }
            let next = self.peek();
            if !is_word(next) && next != "!" {
                return Err(format!("found '{next}', expected: identifier after ','"));
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == "!";
        if absent {
            self.take();
        }
        let key = self.take();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        let faults = label_key_faults(key);
        if !faults.is_empty() {
            return Err(format!(
                "<nil>: Invalid value: {key:?}: {}",
                faults.join("; ")
            ));
        }
        let operator = match self.peek() {
            _ if absent => Operator::Absent,
            "" | "," => Operator::Exists,
            _ => match self.take() {
                "=" | "==" => Operator::In(checked(key, [self.value()?])?),
                "!=" => Operator::NotIn(checked(key, [self.value()?])?),
                "in" => Operator::In(checked(key, self.set()?)?),
                "notin" => Operator::NotIn(checked(key, self.set()?)?),
                ">" => Operator::Greater(self.bound(key)?),
                "<" => Operator::Less(self.bound(key)?),
                other => {
                    return Err(format!(
                        "found '{other}', expected: in, notin, =, ==, !=, gt, lt"
                    ));
                },
            },
        };
        Ok(Requirement {
            key: key.to_owned(),
            operator,
        })
    }

    /// What an operator compares with; nothing is the empty value.
    fn value(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            "" | "," => Ok(""),
            word if is_word(word) => Ok(self.take()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    fn bound(&mut self, key: &str) -> Result<i64, String> {
        let text = self.value()?;
        let Ok(bound) = text.parse() else {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            let mut errors = vec![format!("values[0]: Invalid value: {text:?}: {why}")];
            errors.extend(checked(key, [text]).err());
            return Err(aggregate(&errors));
        };
        checked(key, [text]).map(|_| bound)
    }

    /// Values in parentheses; one that is left out is the empty value.
    fn set(&mut self) -> Result<BTreeSet<&'a str>, String> {
        let open = self.take();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = BTreeSet::new();
        loop {
            let next = self.peek();
            if is_word(next) {
                values.insert(self.take());
            } else if next == "," || next == ")" {
                values.insert("");
            } else {
                return Err(format!("found '{next}', expected: ',', ')' or identifier"));
            }
            match self.take() {
                ")" => return Ok(values),
                "," => {},
                other => return Err(format!("found '{other}', expected: ',' or ')'")),
            }
        }
    }
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !SYMBOLS.contains(&token)
}

/// The values, if each can be one of a label.
fn checked<'a>(
    key: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<String>, String> {
    let values: Vec<_> = values.into_iter().map(ToOwned::to_owned).collect();
    let errors: Vec<_> = values
        .iter()
        .enumerate()
        .filter_map(|(index, value)| {
            let faults = label_value_faults(value);
            (!faults.is_empty()).then(|| {
                let why = faults.join("; ");
                format!("values[{index}][{key}]: Invalid value: {value:?}: {why}")
            })
        })
        .collect();
    if errors.is_empty() {
        Ok(values)
    } else {
        Err(aggregate(&errors))
    }
}

fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// A parsed `fieldSelector` over `metadata.name` and `metadata.namespace`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<(Field, bool, String)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
}

impl FieldSelector {
    /// Parses the text of the query parameter. A backslash takes its meaning from `\`, `,` and `=`
    /// in a value.
    ///
    /// # Errors
    /// 400 for a field that cannot be selected by, or a term that cannot be read.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let terms = split_terms(text)
            .into_iter()
            .filter(|term| !term.is_empty())
            .map(|term| {
                let (field, equal, value) = split_term(term).ok_or_else(|| {
                    format!("invalid selector: '{text}'; can't understand '{term}'")
                })?;
                Ok((field, equal, unescaped(value)?))
            })
            .collect::<Result<Vec<_>, String>>()
            .map_err(ApiError::bad_request)?;
        terms
            .into_iter()
            .map(|(field, equal, value)| match field {
                "metadata.name" => Ok((Field::Name, equal, value)),
                "metadata.namespace" => Ok((Field::Namespace, equal, value)),
                other => Err(ApiError::bad_request(format!(
                    "{other:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                ))),
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The selector for one name.
    pub fn name(name: &str) -> Self {
        Self(vec![(Field::Name, true, name.to_owned())])
    }

    /// Whether every object matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one name that can match, when the selector fixes it.
    pub fn exact_name(&self) -> Option<&str> {
        self.0.iter().find_map(|(field, equal, value)| {
            (*field == Field::Name && *equal).then_some(value.as_str())
        })
    }

    /// The one namespace that can match, when the selector fixes it.
    pub fn exact_namespace(&self) -> Option<&str> {
        self.0.iter().find_map(|(field, equal, value)| {
            (*field == Field::Namespace && *equal).then_some(value.as_str())
        })
    }

    /// Whether an object of this name matches.
    pub fn matches(&self, namespace: &str, name: &str) -> bool {
        self.0.iter().all(|(field, equal, value)| {
            let actual = match field {
                Field::Name => name,
                Field::Namespace => namespace,
            };
            (actual == value) == *equal
        })
    }
}

/// Whether a text can be a segment of a path, as `IsPathSegmentName` of apimachinery has it.
///
/// # Errors
/// What keeps it from that.
pub(crate) fn is_path_segment(name: &str) -> Result<(), String> {
    let faults = path_segment_faults(name);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join(";"))
    }
}

/// What keeps a text from being a segment of a path, one by one.
pub(crate) fn path_segment_faults(name: &str) -> Vec<String> {
    if matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|part| name.contains(part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

/// The terms between commas that no backslash precedes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c| {
        let here = std::mem::take(&mut escaped);
        escaped = c == '\\' && !here;
        c == ',' && !here
    })
    .collect()
}

/// Field, whether it has to be equal, and value, split at the first operator.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let (field, value) = term.split_once('=')?;
    match field.strip_suffix('!') {
        Some(field) => Some((field, false, value)),
        None => Some((field, true, value.strip_prefix('=').unwrap_or(value))),
    }
}

fn unescaped(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut rest = value.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: {sequence}"
                    ));
                },
            },
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                ));
            },
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        text.split(',')
            .filter_map(|pair| pair.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    }

    #[test]
    fn label_selectors_match_as_kubernetes_defines_them() {
        for (selector, object, expected) in [
            ("", "a=1", true),
            ("a=1", "a=1", true),
            ("a==1", "a=2", false),
            ("a!=1", "b=1", true),
            ("a!=1", "a=1", false),
            ("a", "a=1", true),
            ("!a", "a=1", false),
            ("!a", "b=1", true),
            ("a in (x, y),!b", "a=y", true),
            ("a in (x,y)", "a=z", false),
            ("a notin (x,y)", "c=1", true),
            ("a notin (x)", "a=x", false),
            ("a>3", "a=4", true),
            ("a<3", "a=4", false),
            ("a=", "a=", true),
            ("example.com/a=b,c", "example.com/a=b,c=", true),
        ] {
            let parsed = LabelSelector::parse(selector).unwrap();
            assert_eq!(
                parsed.matches(&labels(object)),
                expected,
                "{selector} on {object}"
            );
        }
    }

    #[test]
    fn label_selectors_may_leave_values_out_and_name_labels_after_operators() {
        for (selector, object, expected) in [
            ("a in ()", "a=", true),
            ("a in (x,)", "a=", true),
            ("a in (,,x)", "a=x", true),
            ("a in (,x)", "a=y", false),
            ("a=,b", "a=,b=1", true),
            ("a=in", "a=in", true),
            ("in in (notin)", "in=notin", true),
            ("!in", "a=1", true),
            (" a\t=\n1 ", "a=1", true),
        ] {
            let parsed = LabelSelector::parse(selector).expect(selector);
            assert_eq!(
                parsed.matches(&labels(object)),
                expected,
                "{selector} on {object}"
            );
        }
    }

    // The texts are those of k8s.io/apimachinery/pkg/labels/selector.go.
    #[test]
    fn malformed_label_selectors_are_refused_with_the_reason() {
        for (bad, why) in [
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            (
                "a in x",
                "unable to parse requirement: found 'x' expected: '('",
            ),
            ("a in (x", "found '', expected: ',' or ')'"),
            ("a in (=", "found '=', expected: ',', ')' or identifier"),
            (
                "=x",
                "found '=', expected: !, identifier, or 'end of string'",
            ),
            (
                ",",
                "found ',', expected: !, identifier, or 'end of string'",
            ),
            ("a,", "found '', expected: identifier after ','"),
            ("a==b=c", "found '=', expected: ',' or 'end of string'"),
            (
                "a=(b",
                "unable to parse requirement: found '(', expected: identifier",
            ),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            (
                "%",
                "unable to parse requirement: <nil>: Invalid value: \"%\": name part must consist of",
            ),
            ("a in (x))", "found ')', expected: ',' or 'end of string'"),
            ("-a=1", "Invalid value: \"-a\""),
            (
                "a=-b",
                "unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid label must be an empty string",
            ),
            (
                "a in (b,-c)",
                "unable to parse requirement: values[0][a]: Invalid value: \"-c\": ",
            ),
            ("a=ü", "Invalid value: \"ü\""),
        ] {
            let error = LabelSelector::parse(bad).expect_err(bad);
            assert_eq!(error.code(), 400, "{bad}");
            assert!(error.to_string().contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn field_selectors_know_name_and_namespace_only() {
        let selector = FieldSelector::parse("metadata.name=x,metadata.namespace!=n").unwrap();
        assert!(selector.matches("m", "x"));
        assert!(!selector.matches("n", "x"));
        assert!(!selector.matches("m", "y"));
        assert_eq!(selector.exact_name(), Some("x"));
        let escaped = FieldSelector::parse(r"metadata.name==a\,b\=c\\,").unwrap();
        assert_eq!(escaped.exact_name(), Some(r"a,b=c\"));
    }

    // The texts are those of k8s.io/apimachinery/pkg/fields/selector.go.
    #[test]
    fn malformed_field_selectors_are_refused_with_the_reason() {
        for (bad, why) in [
            (
                "spec.foo=1",
                r#""spec.foo" is not a known field selector: only "metadata.name", "metadata.namespace""#,
            ),
            (
                "metadata.name",
                "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
            ),
            (
                r"metadata.name=\x",
                r"invalid field selector: invalid escape sequence: \x",
            ),
            (
                r"metadata.name=x\",
                r"invalid field selector: invalid escape sequence: \",
            ),
            (
                "metadata.name=x=y",
                "invalid field selector: unescaped character in value: 61",
            ),
        ] {
            let error = FieldSelector::parse(bad).expect_err(bad);
            assert_eq!(
                (error.code().as_u16(), error.to_string()),
                (400, why.to_owned())
            );
        }
    }
}
