//! What a benchmark says while it runs, on standard error.

use std::sync::Arc;

use runtime_kit::Clock;

/// Lines with the time since the start.
pub(crate) struct Progress {
    clock: Arc<dyn Clock>,
}

impl Progress {
    /// Time starts now.
    pub(crate) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
        }
    }

    /// Says a line.
    #[expect(
        clippy::print_stderr,
        reason = "whoever waits for minutes wants to see how far it is"
    )]
    pub(crate) fn say(&self, line: &str) {
        eprintln!("[{:>4} s] {line}", self.clock.elapsed().as_secs());
    }
}

/// The last word of a run that failed.
#[expect(clippy::print_stderr, reason = "there is no log")]
pub(crate) fn fail(error: &anyhow::Error) {
    eprintln!("the benchmark failed: {error:#}");
}
