//! What doctor found, and how it is printed.

use serde_json::{Value, json};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Could not be found out, or worth knowing.
    Note,
    /// It will need somebody.
    Warn,
    /// It does not work.
    Fail,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// How bad it is.
    pub(crate) level: Level,
    /// What was looked at.
    pub(crate) subject: String,
    /// What was found.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    /// A finding without a remedy.
    pub(crate) fn new(
        level: Level,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            level,
            subject: subject.into(),
            message: message.into(),
            remedy: None,
        }
    }

    /// Adds what to do about it.
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// One finding a line, what to do below it.
pub(crate) fn render(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for Finding {
        level,
        subject,
        message,
        remedy,
    } in findings
    {
        text.extend([format!(
            "{:<4}  {subject:<width$}  {message}\n",
            level.as_str()
        )]);
        if let Some(remedy) = remedy {
            text.extend([format!("{:<4}  {:<width$}  -> {remedy}\n", "", "")]);
        }
    }
    text
}

/// The text with every control character but ends of lines written out, as kubectl does. Why:
/// whoever may write an object in some namespace must not get at the terminal of who looks at all.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The same for programs.
pub(crate) fn to_json(findings: &[Finding]) -> Value {
    let items: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "level": finding.level.as_str().to_lowercase(),
                "subject": finding.subject,
                "message": finding.message,
                "remedy": finding.remedy,
            })
        })
        .collect();
    json!({"findings": items})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_object_says_does_nothing_to_the_terminal() {
        let finding = Finding::new(Level::Warn, "proxies", "a/b: \u{1b}[2J\u{9b}31m\rgrün");
        assert_eq!(
            visible(&render(&[finding])),
            "warn  proxies  a/b: \\u{1b}[2J\\u{9b}31m\\rgrün\n"
        );
    }
}
