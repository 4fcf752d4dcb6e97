//! A copy of what sled's recovery may overwrite, made before sled opens its files and kept until the decision to start.
//! Recovery zeroes, in place, all of its log that stands behind the first damage; a start that is refused must leave
//! the evidence as it was. Knows the head of sled's segments, as of the pinned version, and nothing else of its format.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::preflight::{Places, files, io_error, remove_dir, snapshots};

const SEGMENT: usize = 512 * 1024;
const HEAD: usize = 20;
/// Beyond this the copy would cost more at a start than it may ever be worth. A refusal stays a refusal: only the
/// damaged bytes are then as sled left them.
const MOST: usize = (1 << 30) / SEGMENT;

#[derive(Debug)]
pub(super) struct Kept {
    places: Places,
    /// The length of sled's file; 0 when nothing was copied.
    len: u64,
    /// Segments that were copied, by number.
    copied: Vec<u64>,
    /// Segments that were empty, by number: they get an empty head again.
    empty: Vec<u64>,
}

/// What sled's recovery does with a segment.
enum Segment {
    /// Covered by the snapshot: not read.
    Settled,
    Empty,
    /// Read, and overwritten if it cannot be understood.
    Open,
}

impl Kept {
    pub(super) fn make(places: &Places) -> Result<Self, OpenError> {
        remove_dir(&places.kept)?;
        let mut kept = Self {
            places: places.clone(),
            len: 0,
            copied: Vec::new(),
            empty: Vec::new(),
        };
        if !places.db_file().exists() {
            return Ok(kept);
        }
        if let Err(error) = kept.copy() {
            tracing::warn!(%error, "opening without a copy of the end of the database");
            kept.len = 0;
            remove_dir(&places.kept)?;
        }
        Ok(kept)
    }

    fn copy(&mut self) -> io::Result<()> {
        let (db, settled) = (File::open(self.places.db_file())?, self.settled());
        let len = db.metadata()?.len();
        for number in 0..len.div_ceil(SEGMENT as u64) {
            match classify(&db, number, settled)? {
                Segment::Settled => {}
                Segment::Empty => self.empty.push(number),
                Segment::Open => self.copied.push(number),
            }
        }
        if self.copied.len() > MOST {
            return Err(io::Error::other(
                "too much was written since the last start",
            ));
        }
        self.check_room()?;
        fs::create_dir(&self.places.kept)?;
        copy_segments(&db, &File::create(self.copy_file())?, &self.copied)?;
        for path in snapshots(&self.places.sled).map_err(io::Error::other)? {
            fs::copy(
                &path,
                self.places.kept.join(path.file_name().unwrap_or_default()),
            )?;
        }
        self.len = len;
        Ok(())
    }

    /// What the copy takes is missing to sled itself.
    fn check_room(&self) -> io::Result<()> {
        let disk = rustix::fs::statvfs(&self.places.dir)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if (self.copied.len() * SEGMENT) as u64 > free / 2 {
            return Err(io::Error::other("the disk has no room for it"));
        }
        Ok(())
    }

    /// Everything as it was.
    pub(super) fn put_back(self) -> Result<(), OpenError> {
        if self.len > 0 {
            for path in snapshots(&self.places.sled)? {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            }
            for path in snapshots(&self.places.kept)? {
                let to = self.places.sled.join(path.file_name().unwrap_or_default());
                fs::rename(&path, &to).map_err(io_error("restore", &to))?;
            }
            self.write_back()
                .map_err(io_error("restore", &self.places.db_file()))?;
        }
        self.discard()
    }

    fn write_back(&self) -> io::Result<()> {
        let db = OpenOptions::new().write(true).open(self.places.db_file())?;
        copy_segments(&File::open(self.copy_file())?, &db, &self.copied)?;
        for number in &self.empty {
            db.write_all_at(&[0; HEAD], number * SEGMENT as u64)?;
        }
        db.set_len(self.len)
    }

    pub(super) fn discard(self) -> Result<(), OpenError> {
        remove_dir(&self.places.kept)
    }

    /// Everything as it was, and a full copy of it for whoever looks into the loss that is now accepted.
    pub(super) fn put_back_and_file_away(self, name: &str) -> Result<Option<PathBuf>, OpenError> {
        let places = self.places.clone();
        self.put_back()?;
        let to = places.quarantine.join(name);
        remove_dir(&to)?;
        match copy_dir(&places.sled, &to) {
            Ok(()) => Ok(Some(to)),
            Err(error) => {
                tracing::warn!(%error, "the damaged database could not be copied to quarantine");
                Ok(None)
            }
        }
    }

    fn copy_file(&self) -> PathBuf {
        self.places.kept.join("db")
    }

    /// Where sled's newest snapshot ends, which its name says; recovery begins with the segment around it.
    fn settled(&self) -> i64 {
        let names = snapshots(&self.places.sled).unwrap_or_default();
        let ends = names.iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            i64::from_str_radix(name.strip_prefix("snap.")?, 16).ok()
        });
        let end = ends.max().unwrap_or(0);
        end - end % SEGMENT as i64
    }
}

fn classify(db: &File, number: u64, settled: i64) -> io::Result<Segment> {
    let mut head = [0; HEAD];
    match db.read_exact_at(&mut head, number * SEGMENT as u64) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Segment::Open),
        Err(error) => return Err(error),
    }
    let crc = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let place: [u8; 8] = head[4..12].try_into().expect("eight of twenty bytes");
    let place = i64::from_le_bytes(place) ^ i64::MAX;
    let whole = crc32fast::hash(&head[4..]) == !crc;
    Ok(match (head == [0; HEAD], whole && place < settled) {
        (true, _) => Segment::Empty,
        (false, true) => Segment::Settled,
        (false, false) => Segment::Open,
    })
}

fn copy_segments(from: &File, to: &File, numbers: &[u64]) -> io::Result<()> {
    let mut buffer = vec![0; SEGMENT];
    for number in numbers {
        let (start, mut filled) = (number * SEGMENT as u64, 0);
        while filled < SEGMENT {
            match from.read_at(&mut buffer[filled..], start + filled as u64)? {
                0 => break,
                more => filled += more,
            }
        }
        to.write_all_at(&buffer[..filled], start)?;
    }
    Ok(())
}

fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for path in files(from)
        .map_err(io::Error::other)?
        .iter()
        .filter(|path| path.is_file())
    {
        fs::copy(path, to.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(())
}
