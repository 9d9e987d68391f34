//! Durations on the command line: `300` (seconds), `5m`, `1h30m`.

use jiff::SignedDuration;

/// Whole seconds within `min..=max`; `Err` is a sentence for the user.
pub(crate) fn parse_seconds(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let wrong =
        || format!("{text:?} is not a duration in whole seconds, like 300, 90s, 5m or 1h30m");
    let seconds = if let Ok(seconds) = text.parse::<i64>() {
        seconds
    } else {
        let duration: SignedDuration = text.parse().map_err(|_| wrong())?;
        if duration.subsec_nanos() != 0 {
            return Err(wrong());
        }
        duration.as_secs()
    };
    u32::try_from(seconds)
        .ok()
        .filter(|seconds| (min..=max).contains(seconds))
        .ok_or_else(|| format!("{text} is out of range: {min} to {max} seconds"))
}

/// `--ttl`.
pub(crate) fn parse_ttl(text: &str) -> Result<u32, String> {
    parse_seconds(text, 10, 86_400)
}

/// `--wait`.
pub(crate) fn parse_wait(text: &str) -> Result<u32, String> {
    parse_seconds(text, 0, 3_600)
}

/// `--request-timeout`; 0 is none.
pub(crate) fn parse_timeout(text: &str) -> Result<u32, String> {
    parse_seconds(text, 0, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_numbers_are_seconds_and_units_are_understood() {
        for (text, seconds) in [("300", 300), ("90s", 90), ("5m", 300), ("1h30m", 5_400)] {
            assert_eq!(parse_ttl(text), Ok(seconds), "{text}");
        }
        assert_eq!(parse_wait("0"), Ok(0));
    }

    #[test]
    fn what_is_no_duration_or_out_of_range_is_refused_with_the_range() {
        for text in ["", "soon", "-5m", "1.5s", "5 minutes ago"] {
            assert!(parse_ttl(text).is_err(), "{text:?}");
        }
        assert_eq!(
            parse_ttl("9").expect_err("short"),
            "9 is out of range: 10 to 86400 seconds"
        );
        assert_eq!(
            parse_wait("-1").expect_err("negative"),
            "-1 is out of range: 0 to 3600 seconds"
        );
        assert!(parse_ttl("25h").is_err());
        assert!(parse_wait("2h").is_err());
    }
}
