//! An error with its sources on one line, for logs and for what a user reads on standard error.
//!
//! Used wherever an error leaves the program as text. House errors do not repeat their source in
//! their own text; foreign ones often do, so a source that was just said is left out.

use std::error::Error;
use std::fmt;

/// `error: source: its source`, leaving out sources whose text was already given.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

/// Displays an error with its sources; see [`chain`].
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn link(text: &'static str, source: Option<Link>) -> Link {
        Link {
            text,
            source: source.map(Box::new),
        }
    }

    #[test]
    fn sources_follow_in_order_and_repeated_ones_are_left_out() {
        let error = link(
            "cannot read the store",
            Some(link(
                "io: disk full",
                Some(link("disk full", Some(link("ENOSPC", None)))),
            )),
        );
        assert_eq!(
            chain(&error).to_string(),
            "cannot read the store: io: disk full: ENOSPC"
        );
    }
}
