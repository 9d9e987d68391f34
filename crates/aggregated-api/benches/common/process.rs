//! What a process under a benchmark has used.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::machine;

/// The most memory that was resident since [`forget_peak`], MiB.
pub(crate) fn peak_mib(pid: i32) -> Result<f64> {
    machine::status_mib(pid, "VmHWM:")
}

/// Lets [`peak_mib`] begin anew.
pub(crate) fn forget_peak(pid: i32) -> Result<()> {
    // 5: "reset the peak resident set size", proc_pid_clear_refs(5).
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5")
        .context("cannot reset the peak of memory")
}

/// Processor time that a process has used, user and system.
pub(crate) fn processor_time(pid: i32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may have blanks; utime and stime are fields 14 and 15.
    let (_, fields) = stat.rsplit_once(')').context("no name in /proc stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    // USER_HZ is 100 wherever Linux runs on these processors.
    Ok(Duration::from_millis(ticks * 10))
}
