//! The ballast: files that are good for nothing but being removed when the disk is full.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::marks::PIECES;

/// Where the file system cannot promise space, it is written. Not zeros: some file systems store those in nothing.
const BLOCK: usize = 1 << 20;

/// Pieces are files of their own, so that one can go and the other stay. Blocks on the disk.
#[derive(Debug)]
pub(super) struct BallastFiles {
    dir: PathBuf,
    count: u32,
}

impl BallastFiles {
    /// What lies there; half a piece, which a crash may leave, is removed.
    pub(super) fn open_existing(data: &Path, size: u64) -> Self {
        let dir = data.join("ballast");
        let mut pieces = Self { dir, count: 0 };
        for number in 0..PIECES {
            let whole = fs::metadata(pieces.path(number)).is_ok_and(|file| file.len() == size);
            // Held are the first so many; whatever does not fit into that is made anew.
            if whole && pieces.count == number {
                pieces.count += 1;
            } else {
                drop(fs::remove_file(pieces.path(number)));
            }
        }
        pieces
    }

    /// Somebody else's: not looked at, and not touched.
    pub(super) fn unmanaged(data: &Path) -> Self {
        let dir = data.join("ballast");
        Self { dir, count: 0 }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Removes one, and waits until its space can be used: file systems with a journal keep it until that is written.
    pub(super) fn remove_one(&mut self) -> io::Result<()> {
        let Some(last) = self.count.checked_sub(1) else {
            return Ok(());
        };
        match fs::remove_file(self.path(last)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => self.count = last,
        }
        File::open(&self.dir)?.sync_all()
    }

    pub(super) fn refill(&mut self, size: u64) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let path = self.path(self.count);
        let made = make(&path, size);
        if made.is_err() {
            drop(fs::remove_file(&path));
        } else {
            self.count += 1;
        }
        made
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.join(number.to_string())
    }
}

fn make(path: &Path, size: u64) -> io::Result<()> {
    let file = File::create(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, size) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write(&file, size)?,
        Err(error) => return Err(error.into()),
    }
    file.sync_all()
}

fn write(mut file: &File, size: u64) -> io::Result<()> {
    let mut block = vec![0_u8; BLOCK];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = size;
    while left > 0 {
        for bytes in block.chunks_exact_mut(8) {
            // Xorshift: nothing that could be packed.
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            bytes.copy_from_slice(&seed.to_le_bytes());
        }
        let part = usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK));
        file.write_all(&block[..part])?;
        left -= part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 << 20;

    fn on_disk(dir: &Path) -> u64 {
        let files = fs::read_dir(dir.join("ballast")).unwrap();
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum()
    }

    #[test]
    fn pieces_are_refilled_given_up_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut pieces = BallastFiles::open_existing(dir.path(), SIZE);
        assert_eq!(pieces.count(), 0);
        pieces.refill(SIZE).unwrap();
        pieces.refill(SIZE).unwrap();
        assert_eq!(
            (pieces.count(), on_disk(dir.path())),
            (PIECES, u64::from(PIECES) * SIZE)
        );
        pieces.remove_one().unwrap();
        assert_eq!(BallastFiles::open_existing(dir.path(), SIZE).count(), 1);
        assert_eq!(on_disk(dir.path()), SIZE);
        pieces.remove_one().unwrap();
        pieces.remove_one().unwrap();
        assert_eq!((pieces.count(), on_disk(dir.path())), (0, 0));
    }

    #[test]
    fn half_a_piece_and_one_of_another_size_are_not_held() {
        let dir = tempfile::tempdir().unwrap();
        let mut pieces = BallastFiles::open_existing(dir.path(), SIZE);
        pieces.refill(SIZE).unwrap();
        fs::write(dir.path().join("ballast/1"), "half").unwrap();
        assert_eq!(BallastFiles::open_existing(dir.path(), SIZE).count(), 1);
        assert_eq!(on_disk(dir.path()), SIZE);
        assert_eq!(BallastFiles::open_existing(dir.path(), 2 * SIZE).count(), 0);
        assert_eq!(on_disk(dir.path()), 0);
    }

    #[test]
    fn a_piece_can_be_written_where_space_cannot_be_promised() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("written")).unwrap();
        write(&file, SIZE + 5).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE + 5);
    }
}
