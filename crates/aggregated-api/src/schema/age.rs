//! How long ago something was, as kubectl's tables show it.

use jiff::{SignedDuration, Timestamp};

/// Deviation of clocks, in seconds, within which a time in the future still reads as now.
const SKEW_SECONDS: i64 = 1;

/// The time from `then` to `now` with two or three significant figures: `5s`, `3m20s`, `2d4h`. The
/// steps are those of `HumanDuration` in `k8s.io/apimachinery/pkg/util/duration`.
pub fn human_age(then: Timestamp, now: Timestamp) -> String {
    let age = now.duration_since(then);
    let seconds = age.as_secs();
    if seconds < -SKEW_SECONDS {
        return "<invalid>".to_owned();
    }
    let age = age.max(SignedDuration::ZERO);
    let (seconds, minutes, hours) = (age.as_secs(), age.as_mins(), age.as_hours());
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if years < 2 => format!("{days}d"),
        () if years < 8 => two(years, "y", days % 365, "d"),
        () => format!("{years}y"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_shows_them() {
        const MINUTE: i64 = 60;
        const HOUR: i64 = 60 * MINUTE;
        const DAY: i64 = 24 * HOUR;
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (2 * MINUTE, "2m"),
            (3 * MINUTE + 20, "3m20s"),
            (10 * MINUTE + 20, "10m"),
            (179 * MINUTE, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * MINUTE, "3h5m"),
            (8 * HOUR + 5 * MINUTE, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 4 * HOUR, "2d4h"),
            (9 * DAY + 4 * HOUR, "9d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (740 * DAY, "2y10d"),
            (3000 * DAY, "8y"),
        ] {
            let then = Timestamp::UNIX_EPOCH;
            let now = Timestamp::from_second(seconds).unwrap();
            assert_eq!(human_age(then, now), expected, "{seconds}");
        }
    }
}
