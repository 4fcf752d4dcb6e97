//! Progress of an export, import or verification, for display.

/// The present stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveStage {
    /// Pages and values of the database on disk.
    Pages,
    /// Records and the references between them.
    Records,
    /// Long prompts.
    Bodies,
    Output,
    /// An export's frames, before anything is imported.
    Checking,
    /// An export's items, while they are written into a new directory.
    Writing,
}

impl ArchiveStage {
    /// The name of the stage on the wire and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Records => "records",
            Self::Bodies => "bodies",
            Self::Output => "output",
            Self::Checking => "checking",
            Self::Writing => "writing",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveProgress {
    pub stage: ArchiveStage,
    /// Records of this stage so far.
    pub records: u64,
    /// Bytes so far.
    pub bytes: u64,
    /// The final value of `bytes`, if it is known.
    pub total_bytes: Option<u64>,
}

/// Steps between two reports. Counted in steps because this module reads no clock.
pub(super) const PROGRESS_INTERVAL: u64 = 512;
