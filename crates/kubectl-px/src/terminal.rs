//! Writing to standard output and standard error; the only place of this crate that does.

use std::io::Write;

/// What the user asked for. A reader that went away (`| head`) is no failure.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A line beside the output, in the form of kubectl's warnings.
pub(crate) fn warn(text: &str) {
    say(&format!("Warning: {text}"));
}

/// A line on standard error. When that is closed there is nobody left to tell.
#[expect(
    clippy::print_stderr,
    reason = "the one place that writes to standard error"
)]
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}
