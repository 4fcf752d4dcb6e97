//! How far an export, import or verify is: for whoever watches.

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveStage {
    /// Pages and values of the database, as they lie on the disk.
    Pages,
    /// Records, and what they say of each other.
    Records,
    /// Long prompts.
    Bodies,
    Output,
    /// An export's frames, before anything is done with them.
    Checking,
    /// An export's items, on their way into a new directory.
    Writing,
}

impl ArchiveStage {
    /// One word, as the wire and the command line spell it.
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
    /// Records so far, of this stage.
    pub records: u64,
    /// Bytes so far.
    pub bytes: u64,
    /// What `bytes` will be at the end, where that is known.
    pub total_bytes: Option<u64>,
}

/// Steps between two words to whoever watches; they have a clock, and here is none.
pub(super) const PROGRESS_INTERVAL: u64 = 512;
