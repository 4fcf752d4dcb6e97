//! The report on disk: how an attempt's processes ended, for the current daemon or the next
//! one. Its space is reserved before the child starts, so that it can be written on a full
//! disk; until then it contains zeros.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use baton_proto::worker::Report;
use prost::Message;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::storage::atomic_file;
use crate::storage::checked_record;
use crate::storage::checked_record::CheckedRead;

/// One block: writing into it needs no new one.
const REPORT_BYTES: usize = 4096;

/// The reserved file for the report.
#[derive(Debug)]
pub(crate) struct ReportFile {
    file: File,
}

impl ReportFile {
    pub(crate) fn reserve(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, REPORT_BYTES as u64) {
            Ok(()) => {}
            // Some file systems cannot reserve space; writing zeros is the next best.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(&[0; REPORT_BYTES], 0)?,
            Err(error) => return Err(error.into()),
        }
        Ok(Self { file })
    }

    /// Writes the report. It is readable at once, but not synced.
    pub(crate) fn write(&self, report: &Report) -> io::Result<()> {
        let mut record = Vec::new();
        if !checked_record::append_record(report, &mut record) || record.len() > REPORT_BYTES {
            return Err(io::Error::other("the report is too long"));
        }
        self.file.write_all_at(&record, 0)
    }

    /// Returns when the report is synced.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The report; `None` before it was written, or when it was written only in part.
pub fn read_report(path: &Path) -> io::Result<Option<Report>> {
    match atomic_file::read(path) {
        Ok(block) => Ok(decode_report(&block)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn decode_report(block: &[u8]) -> Option<Report> {
    match checked_record::read_record(block, 0) {
        CheckedRead::Whole { message, .. } => Report::decode(message).ok(),
        CheckedRead::End | CheckedRead::Torn | CheckedRead::Damaged { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_or_torn_report_file_has_no_report() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        assert_eq!(read_report(&path).unwrap(), None);
        let report_file = ReportFile::reserve(&path).unwrap();
        assert_eq!(read_report(&path).unwrap(), None);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), REPORT_BYTES as u64);
        let report = Report {
            attempt_id: "a".into(),
            transcript_end: 12,
            ..Report::default()
        };
        report_file.write(&report).unwrap();
        assert_eq!(read_report(&path).unwrap(), Some(report.clone()));
        let whole = std::fs::read(&path).unwrap();
        let written = checked_record::HEADER_BYTES + report.encoded_len();
        for cut in 0..written {
            let mut torn = whole.clone();
            torn[cut..].fill(0);
            assert_eq!(decode_report(&torn), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_report_that_is_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        let report_file = ReportFile::reserve(&path).unwrap();
        let report = Report {
            attempt_id: "a".repeat(REPORT_BYTES),
            ..Report::default()
        };
        report_file.write(&report).unwrap_err();
        assert_eq!(read_report(&path).unwrap(), None);
    }
}
