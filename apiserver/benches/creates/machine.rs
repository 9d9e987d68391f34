//! The machine under the benchmark: what a sync costs, how much memory a process has, whether others are
//! busy, and whether a folder is on a disk.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use runtime_kit::Clock;

/// Syncs that are timed.
const SYNCS: usize = 100;
const QUIET_INTERVAL: Duration = Duration::from_millis(100);
/// Share of the processors that may be busy.
const QUIET_SHARE: f64 = 0.25;

/// Median time of writing 4 KiB in place and syncing them (fdatasync), in milliseconds.
pub(crate) fn sync_milliseconds(folder: &Path, clock: &Arc<dyn Clock>) -> Result<f64> {
    let path = folder.join("fsync-probe");
    let mut file = File::create(&path).context("cannot create a file to sync")?;
    let page = [0x5a_u8; 4096];
    file.write_all(&page)?;
    file.sync_all()?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begin = clock.elapsed();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&page)?;
        file.sync_data()?;
        times.push(clock.elapsed().saturating_sub(begin).as_secs_f64() * 1000.0);
    }
    std::fs::remove_file(path)?;
    Ok(median(times))
}

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

/// Resident memory of a process, MiB.
pub(crate) fn resident_mib(pid: i32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmRSS")?;
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
