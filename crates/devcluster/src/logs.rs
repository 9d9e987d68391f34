//! The log files of processes, and printing their ends when a test panics.
//!
//! A panic hook, installed with the first process group, prints what each live process logged since the
//! last print, so that a failing test shows what the control plane and our own programs said.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once, Weak};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::process::Shared;

const LINES_ON_PANIC: usize = 40;

/// The log of one process.
#[derive(Debug, Clone)]
pub(crate) struct LogFile {
    name: String,
    path: PathBuf,
    /// Bytes that a panic has printed already.
    printed: Arc<AtomicUsize>,
}

impl LogFile {
    pub(crate) fn new(name: &str, folder: &Path) -> Self {
        Self {
            name: name.to_owned(),
            path: folder.join(format!("{name}.log")),
            printed: Arc::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn open(&self) -> Result<File> {
        File::options()
            .create(true)
            .append(true)
            .open(&self.path)
            .map_err(Error::file("open", &self.path))
    }

    pub(crate) fn text(&self) -> String {
        fs::read(&self.path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    pub(crate) fn tail(&self, lines: usize) -> String {
        last_lines(&self.text(), lines)
    }

    fn unprinted(&self) -> String {
        let text = self.text();
        let from = self.printed.swap(text.len(), Ordering::Relaxed);
        last_lines(text.get(from..).unwrap_or_default(), LINES_ON_PANIC)
    }
}

/// The last `count` lines of `text`.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

static GROUPS: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// From now on, a panic of any thread prints the logs of `group` and makes its reaper keep the data.
pub(crate) fn print_on_panic(group: &Arc<Shared>) {
    let mut groups = GROUPS.lock();
    groups.retain(|known| known.strong_count() > 0);
    groups.push(Arc::downgrade(group));
    drop(groups);
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            print_all();
        }));
    });
}

#[expect(
    clippy::print_stderr,
    reason = "a failing test shows the logs; eprintln is what the test harness captures"
)]
fn print_all() {
    // Why try_lock: the panicking thread may hold a lock itself, and a hook must not wait.
    let Some(groups) = GROUPS.try_lock() else {
        return;
    };
    for group in groups.iter().filter_map(Weak::upgrade) {
        group.keep_data();
        let Some(logs) = group.logs.try_lock() else {
            continue;
        };
        for log in logs.iter() {
            let text = log.unprinted();
            if !text.is_empty() {
                eprintln!(
                    "--- end of the log of {} ({}) ---\n{text}",
                    log.name,
                    log.path.display()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_printed_once_and_only_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = LogFile::new("x", folder.path());
        let lines: Vec<String> = (0..100).map(|i| format!("line {i}")).collect();
        fs::write(log.path(), lines.join("\n")).unwrap();
        let printed = log.unprinted();
        assert!(
            printed.starts_with("line 60\n") && printed.ends_with("line 99"),
            "{printed}"
        );
        assert_eq!(log.unprinted(), "");
    }
}
