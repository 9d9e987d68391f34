//! A query string, and its parameters by their type.

use std::time::Duration;

use crate::codec::number::{parse_duration, parse_int};
use crate::http::status::ApiError;

/// Longest time a request other than a watch may take.
const MAX_TIMEOUT: Duration = Duration::from_mins(1);

/// A decoded query string.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes a query string. As by Go's `url.ParseQuery`, a parameter with a semicolon or with an
    /// escape that is none is passed over.
    pub fn parse(text: &str) -> Self {
        Self(
            text.split('&')
                .filter(|pair| is_well_formed(pair))
                .flat_map(|pair| url::form_urlencoded::parse(pair.as_bytes()))
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        )
    }

    /// The first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    pub(super) fn set(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|v| !v.is_empty())
    }

    /// Whether a boolean parameter is on: present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.switch(name) == Some(true)
    }

    /// A boolean parameter, if there is one.
    pub(super) fn switch(&self, name: &str) -> Option<bool> {
        self.get(name)
            .map(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }

    /// A number above zero, if there is one.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let number = parse_int(text).map_err(ApiError::bad_request)?;
        Ok(u64::try_from(number).ok().filter(|n| *n > 0))
    }

    /// The time the client allows for the request; one that is not above zero says nothing.
    ///
    /// # Errors
    /// 400 when `timeout` is no duration.
    pub fn timeout(&self) -> Result<Duration, ApiError> {
        let Some(text) = self.set("timeout") else {
            return Ok(MAX_TIMEOUT);
        };
        match parse_duration(text) {
            Ok(Duration::ZERO) => Ok(MAX_TIMEOUT),
            Ok(duration) => Ok(duration.min(MAX_TIMEOUT)),
            Err(why) => Err(ApiError::bad_request(format!(
                "invalid timeout specified in the request URL - {why}"
            ))),
        }
    }
}

fn is_well_formed(pair: &str) -> bool {
    let escapes = |text: &str| {
        text.split('%').skip(1).all(|after| {
            let mut digits = after.bytes();
            let mut hex = || digits.next().is_some_and(|digit| digit.is_ascii_hexdigit());
            hex() && hex()
        })
    };
    !pair.contains(';') && escapes(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_go_durations_capped_at_a_minute() {
        for (text, seconds) in [
            ("timeout=30s", 30.0),
            ("timeout=1m30s", 60.0),
            ("timeout=0s", 60.0),
            ("timeout=500ms", 0.5),
            ("", 60.0),
        ] {
            let timeout = Query::parse(text).timeout().unwrap().as_secs_f64();
            assert!((timeout - seconds).abs() < 1e-9, "{text}");
        }
        assert!(Query::parse("timeout=foo").timeout().is_err());
    }
}
