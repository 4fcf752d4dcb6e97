//! The outbox of one attempt as a file: checksummed records, appended. A daemon that is killed
//! during an append leaves a torn end, which the next one cuts off. Damage anywhere else ends
//! this attempt and no other. A file whose contents are mostly obsolete is rewritten beside the
//! old one and replaces it atomically.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use baton_proto::worker::OutboxRecord;
use prost::Message;
use rustix::fs::fdatasync;

use super::{
    FrameEntry, FrameOutbox, FrameRecord, LoggedFrameEntry, OUTPUT_LIMIT, OutboxFilePrefix, codec,
};
use crate::frames::ControlFrame;
use crate::storage::atomic_file;
use crate::storage::checked_record;

/// Entries as they are in a file.
pub(crate) type FrameEntries = [LoggedFrameEntry];

/// What the end of a file may look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutboxTail {
    /// Only the daemon was killed: everything written is there, the last record perhaps in
    /// part.
    MayBeTorn,
    /// The machine stopped: the last record may have its full length and wrong contents.
    MayBeCorrupt,
}

/// An attempt's outbox as it was read.
#[derive(Debug)]
pub(crate) struct StoredOutbox {
    pub(crate) outbox: FrameOutbox,
    /// The last control frame that was stored, acknowledged or not: how far the attempt came.
    pub(crate) last_control: Option<ControlFrame>,
    /// The valid part of the file; the rest is cut off when it is written again.
    pub(crate) prefix: OutboxFilePrefix,
    /// The length of a torn end.
    pub(crate) torn_bytes: u64,
}

/// The attempt cannot go on; others can.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutboxReadError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is damaged at byte {at}: {what}")]
    Damaged {
        path: PathBuf,
        at: u64,
        what: &'static str,
    },
}

/// Restores an outbox from its file. A missing or empty file is an empty outbox.
pub(crate) fn read_outbox(path: &Path, tail: OutboxTail) -> Result<StoredOutbox, OutboxReadError> {
    let bytes = read_or_empty(path).map_err(|source| OutboxReadError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let damaged = |at: usize, what| OutboxReadError::Damaged {
        path: path.to_owned(),
        at: at as u64,
        what,
    };
    let mut entries = Vec::new();
    let (mut at, mut serial) = (0, 0);
    loop {
        match checked_record::read_record(&bytes, at) {
            checked_record::CheckedRead::Whole { message, next } => {
                let record = OutboxRecord::decode(message)
                    .map_err(|_| damaged(at, "a record that cannot be decoded"))?;
                if record.serial <= serial {
                    return Err(damaged(at, "a record out of order"));
                }
                (at, serial) = (next, record.serial);
                entries.push(codec::from_disk(record));
            }
            checked_record::CheckedRead::End | checked_record::CheckedRead::Torn => break,
            checked_record::CheckedRead::Damaged { is_last: true }
                if tail == OutboxTail::MayBeCorrupt =>
            {
                break;
            }
            checked_record::CheckedRead::Damaged { .. } => {
                return Err(damaged(at, "a wrong checksum"));
            }
        }
    }
    let last_control = entries.iter().rev().find_map(|logged| match &logged.entry {
        FrameEntry::Frame(FrameRecord::Control { body, .. }) => Some(body.clone()),
        _ => None,
    });
    Ok(StoredOutbox {
        outbox: FrameOutbox::restore(OUTPUT_LIMIT, entries),
        last_control,
        prefix: OutboxFilePrefix {
            length: at as u64,
            serial,
        },
        torn_bytes: (bytes.len() - at) as u64,
    })
}

fn read_or_empty(path: &Path) -> io::Result<Vec<u8>> {
    match atomic_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// The file while the daemon writes it.
#[derive(Debug)]
pub(crate) struct OutboxFile {
    file: File,
    length: u64,
}

impl OutboxFile {
    /// Opens the file for appending after `length` valid bytes; the rest is cut off. 0 begins a
    /// new file.
    pub(crate) fn open(path: &Path, length: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(path)?;
        file.set_len(length)?;
        Ok(Self { file, length })
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends all entries or none: after an error the file keeps its previous length, as far
    /// as the disk allows it.
    pub(crate) fn append(&mut self, entries: &FrameEntries) -> io::Result<()> {
        let bytes = encode_entries(entries)?;
        if let Err(error) = self.file.write_all_at(&bytes, self.length) {
            // What cannot be cut off now is a torn end and is cut off when the file is read.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.file)?)
    }

    /// Writes a new file with these entries beside the old one and syncs it. After an error the
    /// old one is unchanged.
    pub(crate) fn write_draft(path: &Path, entries: &FrameEntries) -> io::Result<Self> {
        let draft = draft_path(path);
        let written = Self::open(&draft, 0).and_then(|mut file| {
            file.append(entries)?;
            file.sync()?;
            Ok(file)
        });
        if written.is_err() {
            // On a full disk even that may fail; the next try truncates it first.
            let _ = fs::remove_file(&draft);
        }
        written
    }

    /// Replaces the old file by the new one. After an error it is unknown which of them a
    /// restart would find.
    pub(crate) fn install_draft(path: &Path) -> io::Result<()> {
        fs::rename(draft_path(path), path)?;
        let dir = path.parent().unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    }
}

fn draft_path(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn encode_entries(entries: &FrameEntries) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for logged in entries {
        if !checked_record::append_record(&codec::to_disk(logged), &mut bytes) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a frame is too long for the outbox",
            ));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
