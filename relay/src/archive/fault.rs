//! Errors in an export file: what is wrong, and where.

use std::io;

/// An export that cannot be used. Nothing was imported from it.
#[derive(Debug, thiserror::Error)]
#[error("{damage} (byte {at}, frame {frame})")]
pub struct ArchiveFault {
    /// Offset of the frame that is wrong.
    pub at: u64,
    /// Number of the frame; the head is number 0.
    pub frame: u64,
    pub damage: ArchiveDamage,
}

#[derive(Debug, thiserror::Error)]
pub enum ArchiveDamage {
    #[error("the file is not an export of a relay")]
    NotAnExport,
    #[error(
        "the export has format {found}, but this version reads only formats up to {known}; use the version that made it"
    )]
    NewerFormat { found: u32, known: u32 },
    #[error(
        "the export has records of schema {found}, but this version reads only schemas up to {known}; use the version that \
         made it"
    )]
    NewerSchema { found: u16, known: u16 },
    #[error("the export was cut short: its trailer is missing; export again or use another copy")]
    CutShort,
    #[error("the export was altered: a frame does not match its checksum; use another copy")]
    Altered,
    #[error("the export was altered: {0}; use another copy")]
    Inconsistent(&'static str),
    #[error("the export was altered: there is data after its trailer; use another copy")]
    Trailing,
    #[error("the export cannot be read: {0}")]
    Io(io::Error),
}

impl ArchiveDamage {
    /// The machine code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAnExport => "not_an_export",
            Self::NewerFormat { .. } | Self::NewerSchema { .. } => "newer_export",
            Self::CutShort => "export_cut_short",
            Self::Altered | Self::Inconsistent(_) | Self::Trailing => "export_altered",
            Self::Io(_) => "export_unreadable",
        }
    }
}
