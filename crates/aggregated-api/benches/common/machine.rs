//! The machine under a benchmark: how much memory a process has, whether others are busy, and whether a
//! folder is on a disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use runtime_kit::Clock;

const QUIET_INTERVAL: Duration = Duration::from_millis(100);
/// Share of the processors that may be busy.
const QUIET_SHARE: f64 = 0.25;

/// The middle of a list; of two middles, the mean.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    if values.len() % 2 == 1 {
        at(middle)
    } else {
        f64::midpoint(at(middle.wrapping_sub(1)), at(middle))
    }
}

/// Of a sorted list.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted
        .get(sorted.len() * percent / 100)
        .or_else(|| sorted.last())
        .copied()
        .unwrap_or(0.0)
}

/// Resident memory of a process, MiB.
pub(crate) fn resident_mib(pid: i32) -> Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// A line of `/proc/<pid>/status` that counts kibibytes, in MiB.
pub(crate) fn status_mib(pid: i32, name: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .with_context(|| format!("no {name} of process {pid}"))?;
    Ok(kib.parse::<f64>()? / 1024.0)
}

/// Refuses a folder in memory: a durable write would cost nothing there.
pub(crate) fn require_disk(folder: &Path) -> Result<()> {
    let kind = statfs(folder).context("cannot find out what file system the store is on")?;
    ensure!(
        kind.filesystem_type() != TMPFS_MAGIC,
        "{} is in memory (tmpfs): set CARGO_TARGET_DIR to a folder on a disk",
        folder.display()
    );
    Ok(())
}

/// Waits until the machine is idle, `patience` at most: what watchers and collectors still do for the last
/// subject must not slow the next.
pub(crate) async fn wait_until_quiet(patience: Duration, clock: &Arc<dyn Clock>) -> Result<()> {
    let end = clock.elapsed() + patience;
    let mut before = processor_times()?;
    while clock.elapsed() < end {
        clock.sleep(QUIET_INTERVAL).await;
        let now = processor_times()?;
        let (all, idle) = (now.0 - before.0, now.1 - before.1);
        if all > 0.0 && (all - idle) / all < QUIET_SHARE {
            break;
        }
        before = now;
    }
    Ok(())
}

/// All and idle ticks of all processors since boot.
fn processor_times() -> Result<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user nice system idle iowait …; the guest times at the end are part of user and nice.
    let all = ticks.iter().take(8).sum();
    let idle = ticks.iter().skip(3).take(2).sum();
    Ok((all, idle))
}
