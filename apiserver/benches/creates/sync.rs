//! What a sync to disk costs on this machine.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use runtime_kit::Clock;

use crate::machine;

/// Syncs that are timed.
const SYNCS: usize = 100;

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
    Ok(machine::median(times))
}
