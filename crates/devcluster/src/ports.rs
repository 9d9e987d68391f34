//! Free loopback ports that stay free until they are used.
//!
//! Asking the kernel for port 0 and closing the socket leaves a gap in which another cluster, or an
//! outgoing connection, takes the port. So ports come from below the ephemeral range, and a lock on a
//! file per port keeps other clusters on this machine away while the owner lives.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};

use crate::error::{Error, Result};
use crate::settings;

const FIRST: u16 = 15_000;
const LAST: u16 = 31_999;

/// A loopback port no other cluster takes while this value lives.
#[derive(Debug)]
pub struct ReservedPort {
    number: u16,
    _lock: File,
}

impl ReservedPort {
    /// Reserves a port that nobody listens on.
    pub fn reserve() -> Result<Self> {
        // Why not the temporary folder: there it would belong to whichever user came first.
        let folder = settings::cache_folder()?.join("ports");
        fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        let span = LAST - FIRST + 1;
        let start: u16 = rand::random_range(0..span);
        for step in 0..span {
            let number = FIRST + (start + step) % span;
            let path = folder.join(number.to_string());
            // A lock file that cannot be opened is skipped: there are enough ports.
            let Ok(lock) = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)
            else {
                continue;
            };
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self {
                    number,
                    _lock: lock,
                });
            }
        }
        Err(Error::NoPort {
            from: FIRST,
            to: LAST,
        })
    }

    /// The port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_not_handed_out_twice() {
        let ports: Vec<_> = (0..50).map(|_| ReservedPort::reserve().unwrap()).collect();
        let mut numbers: Vec<_> = ports.iter().map(ReservedPort::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
    }
}
