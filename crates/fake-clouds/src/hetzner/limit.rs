//! The rate limit of a project: so many requests an hour, which come back one by one.

use std::time::Duration;

use jiff::Timestamp;

use crate::now::Now;

const HOUR: Duration = Duration::from_hours(1);

/// How much of the limit is used.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// When all of it is back.
    full_at: Duration,
}

/// What the headers of an answer say of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Requests an hour.
    pub(super) limit: u32,
    /// Requests that are left.
    pub(super) remaining: u32,
    /// When all of them are back.
    pub(super) reset: Timestamp,
}

// === impl Limit ===

impl Limit {
    /// Takes one request off the limit, and says what is left.
    ///
    /// # Errors
    /// Nothing was left.
    pub(super) fn take(&mut self, limit: u32, now: Now) -> Result<Standing, Standing> {
        let each = HOUR / limit.max(1);
        let full_at = self.full_at.max(now.elapsed);
        let after = full_at + each;
        if after.saturating_sub(now.elapsed) > HOUR {
            return Err(standing(limit, full_at, each, now));
        }
        self.full_at = after;
        Ok(standing(limit, after, each, now))
    }
}

fn standing(limit: u32, full_at: Duration, each: Duration, now: Now) -> Standing {
    let used = full_at.saturating_sub(now.elapsed);
    let requests = used.as_millis().div_ceil(each.as_millis().max(1));
    let used_requests = u32::try_from(requests).unwrap_or(u32::MAX);
    Standing {
        limit,
        remaining: limit.saturating_sub(used_requests),
        reset: now.wall + used,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Now {
        let elapsed = Duration::from_secs(seconds);
        Now {
            wall: Timestamp::UNIX_EPOCH + elapsed,
            elapsed,
        }
    }

    /// "When your limit is 3600 requests per hour, the number of remaining requests will increase
    /// by 1 every second."
    #[test]
    fn requests_come_back_one_by_one() {
        let mut limit = Limit::default();
        let first = limit.take(3600, at(0)).unwrap();
        assert_eq!((first.limit, first.remaining), (3600, 3599));
        assert_eq!(first.reset, at(1).wall);
        for _ in 1..3600 {
            limit.take(3600, at(0)).unwrap();
        }
        let empty = limit.take(3600, at(0)).unwrap_err();
        assert_eq!((empty.remaining, empty.reset), (0, at(3600).wall));
        assert_eq!(limit.take(3600, at(1)).unwrap().remaining, 0);
        limit.take(3600, at(1)).unwrap_err();
        assert_eq!(limit.take(3600, at(11)).unwrap().remaining, 9);
    }
}
