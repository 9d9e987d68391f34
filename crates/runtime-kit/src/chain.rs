//! An error with its sources on one line, for logs, for conditions and for what a user reads on
//! standard error.
//!
//! Used wherever an error leaves the program as text. House errors do not repeat their source in
//! their own text; foreign ones often do, so a source that was just said is left out. Refusals of
//! the API server are told by their message and code.

use std::error::Error;
use std::fmt;

use kube::core::Status;

/// `error: source: its source`, leaving out sources whose text was already given.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

/// Bytes of an error that are told. Why so few: each goes into conditions of objects that everybody
/// watches, and what servers answer may be a page of any length.
const MAX_BYTES: usize = 4_096;

/// The beginning of a text, with a mark when there was more: at most `bytes` long.
pub fn shortened(text: &str, bytes: usize) -> String {
    const MORE: char = '…';
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes.saturating_sub(MORE.len_utf8()));
    let kept = text.get(..end).unwrap_or_default();
    format!("{kept}{MORE}")
}

/// Displays an error with its sources; see [`chain`].
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = describe(self.0);
        let mut all = said.clone();
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = describe(error);
            if !said.contains(&text) {
                all.push_str(": ");
                all.push_str(&text);
                said = text;
            }
            source = error.source();
        }
        f.write_str(&shortened(&on_one_line(&all), MAX_BYTES))
    }
}

/// Why: servers answer with pages, and may answer with what makes a terminal do something.
fn on_one_line(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    let words = text.split(|c: char| c.is_control() || c.is_whitespace());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Why: kube displays a refusal with the debug form of the whole Status, and errors around it
/// repeat that, so the text of a source is replaced wherever an error has it in its own.
fn describe(error: &(dyn Error + 'static)) -> String {
    if let Some(status) = refusal(error) {
        let what = [&status.message, &status.reason]
            .into_iter()
            .find(|text| !text.is_empty());
        return match (what, status.code) {
            (Some(what), 0) => what.clone(),
            (Some(what), code) => format!("{what} ({code})"),
            (None, code) => format!("the API server answered with {code}"),
        };
    }
    let text = error.to_string();
    match error.source() {
        Some(source) => {
            let raw = source.to_string();
            if raw.is_empty() {
                text
            } else {
                text.replace(&raw, &describe(source))
            }
        },
        None => text,
    }
}

fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return Some(status);
    }
    let boxed = error.downcast_ref::<Box<Status>>().map(AsRef::as_ref);
    boxed.or_else(|| error.downcast_ref())
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

    /// As a gateway answers with a page, and a hostile server with whatever it likes.
    #[test]
    fn what_others_say_stays_one_line_of_bounded_length() {
        let page = link(
            "cannot list",
            Some(link("<html>\r\n <title>502</title>\u{1b}[2J", None)),
        );
        assert_eq!(
            chain(&page).to_string(),
            "cannot list: <html> <title>502</title> [2J"
        );
        let text = "é".repeat(100_000);
        let long = link(Box::leak(text.into_boxed_str()), None);
        let told = chain(&long).to_string();
        assert!(told.len() <= 4_096 && told.ends_with('…'), "{}", told.len());
    }

    #[test]
    fn a_refusal_of_the_api_server_is_told_by_its_message_and_code_however_deep_it_is() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot list: {0}")]
        struct Repeats(#[source] kube::Error);

        #[derive(Debug, thiserror::Error)]
        #[error("watch failed")]
        struct Silent(#[source] Repeats);

        let refused = || {
            let message = "secrets \"nope\" is forbidden";
            let status = Status::failure(message, "Forbidden").with_code(403);
            kube::Error::Api(Box::new(status))
        };
        let told = "secrets \"nope\" is forbidden (403)";
        assert_eq!(chain(&refused()).to_string(), told);
        assert_eq!(
            chain(&Repeats(refused())).to_string(),
            format!("cannot list: {told}")
        );
        assert_eq!(
            chain(&Silent(Repeats(refused()))).to_string(),
            format!("watch failed: cannot list: {told}")
        );
        let kube::Error::Api(status) = refused() else {
            panic!("built above");
        };
        let event = kube::runtime::watcher::Error::WatchError(status);
        assert!(
            chain(&event).to_string().ends_with(told),
            "{}",
            chain(&event)
        );
        assert!(!chain(&event).to_string().contains("Status {"));
    }
}
