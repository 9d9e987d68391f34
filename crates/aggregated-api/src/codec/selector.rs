//! Label and field selectors, in the grammar of `k8s.io/apimachinery/pkg/labels` and `fields`.

use std::collections::BTreeMap;

use crate::http::status::ApiError;

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

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Symbol(&'static str),
}

impl LabelSelector {
    /// Parses the text of the query parameter.
    ///
    /// # Errors
    /// 400 when it does not follow the grammar.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let refuse = |why: &str| {
            ApiError::bad_request(format!("unable to parse requirement: {why} in {text:?}"))
        };
        let tokens = tokens(text).map_err(|why| refuse(&why))?;
        let mut parser = Parser {
            tokens: &tokens,
            at: 0,
        };
        let mut requirements = Vec::new();
        while !parser.done() {
            requirements.push(parser.requirement().map_err(|why| refuse(&why))?);
            if !parser.done() {
                if !parser.eat(",") {
                    return Err(refuse("expected ','"));
                }
                if parser.done() {
                    return Err(refuse("nothing after ','"));
                }
            }
        }
        Ok(Self(requirements))
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

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let symbol = ["==", "!=", "=", "!", ",", "(", ")", ">", "<"]
            .into_iter()
            .find(|symbol| rest.starts_with(symbol));
        if let Some(symbol) = symbol {
            found.push(Token::Symbol(symbol));
            rest = &rest[symbol.len()..];
        } else {
            let end = rest
                .find(|c: char| c.is_whitespace() || "=!,()<>".contains(c))
                .unwrap_or(rest.len());
            let word = &rest[..end];
            if !word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
            {
                return Err(format!("unexpected character {first:?}"));
            }
            found.push(Token::Word(word.to_owned()));
            rest = &rest[end..];
        }
        rest = rest.trim_start();
    }
    Ok(found)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Parser<'_> {
    fn done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let hit = matches!(self.tokens.get(self.at), Some(Token::Symbol(s)) if *s == symbol);
        if hit {
            self.at += 1;
        }
        hit
    }

    fn word(&mut self) -> Option<String> {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => {
                self.at += 1;
                Some(word.clone())
            },
            Some(Token::Symbol(_)) | None => None,
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        if self.eat("!") {
            let key = self.key()?;
            return Ok(Requirement {
                key,
                operator: Operator::Absent,
            });
        }
        let key = self.key()?;
        let operator = if self.eat("==") || self.eat("=") {
            Operator::In(vec![self.word().unwrap_or_default()])
        } else if self.eat("!=") {
            Operator::NotIn(vec![self.word().unwrap_or_default()])
        } else if self.eat(">") {
            Operator::Greater(self.bound()?)
        } else if self.eat("<") {
            Operator::Less(self.bound()?)
        } else {
            match self.word().as_deref() {
                None => Operator::Exists,
                Some("in") => Operator::In(self.set()?),
                Some("notin") => Operator::NotIn(self.set()?),
                Some(other) => return Err(format!("unknown operator {other:?}")),
            }
        };
        Ok(Requirement { key, operator })
    }

    fn key(&mut self) -> Result<String, String> {
        let key = self.word().ok_or("expected a label key")?;
        crate::registry::meta::check_label_key(&key)
            .map_err(|why| format!("invalid label key {key:?}: {why}"))?;
        Ok(key)
    }

    fn bound(&mut self) -> Result<i64, String> {
        let word = self.word().unwrap_or_default();
        word.parse()
            .map_err(|_| format!("{word:?} is not an integer"))
    }

    fn set(&mut self) -> Result<Vec<String>, String> {
        if !self.eat("(") {
            return Err("expected '('".to_owned());
        }
        let mut values = Vec::new();
        loop {
            values.push(self.word().unwrap_or_default());
            if self.eat(")") {
                return Ok(values);
            }
            if !self.eat(",") {
                return Err("expected ',' or ')'".to_owned());
            }
        }
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
    /// Parses the text of the query parameter.
    ///
    /// # Errors
    /// 400 for a field that cannot be selected by, or a term without an operator.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for term in text.split(',').filter(|t| !t.is_empty()) {
            let (field, equal, value) = if let Some((f, v)) = term.split_once("!=") {
                (f, false, v)
            } else if let Some((f, v)) = term.split_once("==") {
                (f, true, v)
            } else if let Some((f, v)) = term.split_once('=') {
                (f, true, v)
            } else {
                return Err(ApiError::bad_request(format!(
                    "invalid selector: {text:?}; can't understand {term:?}"
                )));
            };
            let field = match field {
                "metadata.name" => Field::Name,
                "metadata.namespace" => Field::Namespace,
                other => {
                    return Err(ApiError::bad_request(format!(
                        "field label not supported: {other}"
                    )));
                },
            };
            terms.push((field, equal, value.to_owned()));
        }
        Ok(Self(terms))
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
    fn malformed_label_selectors_are_refused() {
        for bad in [
            "a b",
            "a in x",
            "a in (x",
            "=x",
            ",",
            "a,",
            "a>x",
            "%",
            "a in (x))",
            "-a=1",
        ] {
            let error = LabelSelector::parse(bad).expect_err(bad);
            assert_eq!(error.code(), 400, "{bad}");
        }
    }

    #[test]
    fn field_selectors_know_name_and_namespace_only() {
        let selector = FieldSelector::parse("metadata.name=x,metadata.namespace!=n").unwrap();
        assert!(selector.matches("m", "x"));
        assert!(!selector.matches("n", "x"));
        assert!(!selector.matches("m", "y"));
        assert_eq!(selector.exact_name(), Some("x"));
        assert_eq!(
            FieldSelector::parse("spec.foo=1").unwrap_err().to_string(),
            "field label not supported: spec.foo"
        );
    }
}
