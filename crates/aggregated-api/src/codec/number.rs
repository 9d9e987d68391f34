//! Numbers and durations of a query, read as Go's `strconv` and `time` read them, whose errors clients
//! are shown.

use std::str::FromStr;
use std::time::Duration;

/// A decimal number that may have a sign.
///
/// # Errors
/// The text of `strconv.ParseInt`.
pub(crate) fn parse_int(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    parse("ParseInt", text, digits)
}

/// A decimal number without a sign.
///
/// # Errors
/// The text of `strconv.ParseUint`.
pub(crate) fn parse_uint(text: &str) -> Result<u64, String> {
    parse("ParseUint", text, text)
}

fn parse<T: FromStr>(function: &str, text: &str, digits: &str) -> Result<T, String> {
    let refuse = |why: &str| format!("strconv.{function}: parsing {text:?}: {why}");
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refuse("invalid syntax"));
    }
    text.parse().map_err(|_| refuse("value out of range"))
}

/// Go's duration syntax: `1h2m3.5s`, `300ms`. One below zero is none.
///
/// # Errors
/// The text of `time.ParseDuration`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| invalid())?;
        if tail.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        total += number
            * match unit {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
            };
        rest = tail;
    }
    if text.starts_with('-') {
        return Ok(Duration::ZERO);
    }
    Duration::try_from_secs_f64(total).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_refused_as_strconv_does() {
        fn syntax<T>(function: &str, text: &str) -> Result<T, String> {
            Err(format!(
                "strconv.{function}: parsing {text:?}: invalid syntax"
            ))
        }
        for (text, expected) in [
            ("7", Ok(7)),
            ("01", Ok(1)),
            ("+1", syntax("ParseUint", "+1")),
            ("-1", syntax("ParseUint", "-1")),
            ("", syntax("ParseUint", "")),
            (" 1", syntax("ParseUint", " 1")),
            ("1_0", syntax("ParseUint", "1_0")),
            ("18446744073709551615", Ok(u64::MAX)),
            (
                "18446744073709551616",
                Err(
                    "strconv.ParseUint: parsing \"18446744073709551616\": value out of range"
                        .to_owned(),
                ),
            ),
        ] {
            assert_eq!(parse_uint(text), expected, "{text}");
        }
        for (text, expected) in [
            ("+1", Ok(1)),
            ("-5", Ok(-5)),
            ("-", syntax("ParseInt", "-")),
            ("+-1", syntax("ParseInt", "+-1")),
            ("abc", syntax("ParseInt", "abc")),
            (
                "-9223372036854775809",
                Err(
                    "strconv.ParseInt: parsing \"-9223372036854775809\": value out of range"
                        .to_owned(),
                ),
            ),
        ] {
            assert_eq!(parse_int(text), expected, "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("+1.5s"), Ok(Duration::from_millis(1500)));
        for nothing in ["0", "-0", "-1s"] {
            assert_eq!(parse_duration(nothing), Ok(Duration::ZERO), "{nothing}");
        }
        for (bad, why) in [
            ("", r#"time: invalid duration """#),
            ("-", r#"time: invalid duration "-""#),
            ("5", r#"time: missing unit in duration "5""#),
            ("1m5", r#"time: missing unit in duration "1m5""#),
            ("s", r#"time: invalid duration "s""#),
            ("5d", r#"time: unknown unit "d" in duration "5d""#),
            ("foo", r#"time: invalid duration "foo""#),
        ] {
            assert_eq!(parse_duration(bad), Err(why.to_owned()), "{bad}");
        }
    }
}
