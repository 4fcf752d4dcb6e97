//! The lease on disk, beside the attempt: how long a shim may go on that does not answer the
//! next daemon. It never contains the token. The shim uses its own copy of the lease; this file
//! is only for the case that it cannot be asked.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;

use crate::clock::BootTime;
use crate::storage::atomic_file;
use crate::storage::attempt_dir::LEASE_FILE;

const MAGIC: [u8; 8] = *b"BTLEASE1";
/// Magic, limit, grant, checksum of the three.
const SIZE: usize = MAGIC.len() + 8 + 8 + 4;

/// Replaces the previous lease. Not synced: after a reboot no shim is left that it could apply
/// to.
pub(crate) fn write_lease(directory: &Path, lease: LeaseClock) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(directory.join(LEASE_FILE))?;
    file.write_all_at(&encode(lease), 0)
}

/// The lease that was written last; `None` when there is no valid one.
pub(crate) fn read_lease(directory: &Path) -> Option<LeaseClock> {
    decode(&atomic_file::read(&directory.join(LEASE_FILE)).ok()?)
}

fn encode(lease: LeaseClock) -> [u8; SIZE] {
    let mut block = [0; SIZE];
    let (body, checksum) = block.split_at_mut(SIZE - 4);
    let granted = u64::try_from(lease.ttl().as_millis()).unwrap_or(u64::MAX);
    let numbers = [lease.limit().as_millis(), granted].map(u64::to_be_bytes);
    body[..8].copy_from_slice(&MAGIC);
    body[8..].copy_from_slice(numbers.as_flattened());
    checksum.copy_from_slice(&crc32fast::hash(body).to_be_bytes());
    block
}

fn decode(block: &[u8]) -> Option<LeaseClock> {
    let block: &[u8; SIZE] = block.try_into().ok()?;
    let number = |at: usize| Some(u64::from_be_bytes(*block[at..].first_chunk::<8>()?));
    let limit = BootTime::from_millis(number(8)?);
    let lease = LeaseClock::from_stored(limit, Duration::from_millis(number(16)?));
    (*block == encode(lease)).then_some(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(limit: u64) -> LeaseClock {
        LeaseClock::from_stored(BootTime::from_millis(limit), Duration::from_secs(30))
    }

    #[test]
    fn the_last_lease_is_read_and_a_torn_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_lease(dir.path()), None);
        for limit in [500, 900] {
            write_lease(dir.path(), lease(limit)).unwrap();
            assert_eq!(read_lease(dir.path()), Some(lease(limit)));
        }
        let whole = std::fs::read(dir.path().join(LEASE_FILE)).unwrap();
        for cut in 0..whole.len() {
            assert_eq!(decode(&whole[..cut]), None);
            let mut torn = whole.clone();
            torn[cut] ^= 1;
            assert_eq!(decode(&torn), None);
        }
    }
}
