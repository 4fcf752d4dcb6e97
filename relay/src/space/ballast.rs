//! The ballast: files that only reserve space, to be removed when the disk is full.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::marks::PIECES;

/// Block size for writing a piece where the file system cannot preallocate space. The content
/// is not zeros, because some file systems store zeros without allocating space.
const BLOCK: usize = 1 << 20;

/// The pieces of the ballast. Each is its own file, so that one can be removed and the other
/// kept. Blocks on the disk.
#[derive(Debug)]
pub(super) struct BallastFiles {
    dir: PathBuf,
    count: u32,
}

impl BallastFiles {
    /// Finds the existing pieces. An incomplete piece, which a crash may leave, is removed.
    pub(super) fn open_existing(data: &Path, size: u64) -> Self {
        let dir = data.join("ballast");
        let mut pieces = Self { dir, count: 0 };
        for number in 0..PIECES {
            let whole = fs::metadata(pieces.path(number)).is_ok_and(|file| file.len() == size);
            // Pieces are numbered from zero without gaps; anything else is removed and created
            // again.
            if whole && pieces.count == number {
                pieces.count += 1;
            } else {
                drop(fs::remove_file(pieces.path(number)));
            }
        }
        pieces
    }

    /// The ballast of another relay: neither read nor changed.
    pub(super) fn unmanaged(data: &Path) -> Self {
        let dir = data.join("ballast");
        Self { dir, count: 0 }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Removes one piece and waits until its space is usable. File systems with a journal
    /// release it only when the journal is written.
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
        let created = create_piece(&path, size);
        if created.is_err() {
            drop(fs::remove_file(&path));
        } else {
            self.count += 1;
        }
        created
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.join(number.to_string())
    }
}

fn create_piece(path: &Path, size: u64) -> io::Result<()> {
    let file = File::create(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, size) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_piece(&file, size)?,
        Err(error) => return Err(error.into()),
    }
    file.sync_all()
}

fn write_piece(mut file: &File, size: u64) -> io::Result<()> {
    let mut block = vec![0_u8; BLOCK];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = size;
    while left > 0 {
        for bytes in block.chunks_exact_mut(8) {
            // Xorshift, so that the content cannot be compressed.
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
    fn ballast_pieces_are_created_removed_and_found_again() {
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
    fn ballast_pieces_of_another_size_are_removed() {
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
    fn a_ballast_piece_can_be_written_without_preallocation() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("written")).unwrap();
        write_piece(&file, SIZE + 5).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE + 5);
    }
}
