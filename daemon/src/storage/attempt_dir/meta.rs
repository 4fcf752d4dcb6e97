//! The description of an attempt in its directory. Written once and atomically, with a
//! checksum, and without the lease token.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::AttemptRef;
use baton_proto::worker::{self, AttemptDeadlines};
use bytes::Bytes;
use prost::Message;

use crate::clock::whole_millis;
use crate::deadlines::DeadlineLimits;
use crate::receipts::RequiredFiles;
use crate::storage::atomic_file;
use crate::storage::checked_record;
use crate::storage::checked_record::CheckedRead;
use crate::storage::conversation_store::{ConversationFileKey, ConversationTurn};
use crate::tools::ToolGrant;
use crate::workspace;

/// The layout of the directory that this daemon writes, and the newest that it reads.
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttemptMeta {
    pub(crate) attempt: AttemptRef,
    pub(crate) agent: String,
    pub(crate) daemon_id: String,
    /// After another boot of the machine no process of the attempt is alive.
    pub(crate) boot_id: String,
    pub(crate) deadlines: DeadlineLimits,
    /// From SIGTERM to SIGKILL.
    pub(crate) cleanup_term: Duration,
    /// Empty without a conversation.
    pub(crate) conversation_key: Bytes,
    /// `None` for the daemon's own work directory.
    pub(crate) workspace: Option<workspace::WorkspacePlan>,
    /// `None` when its agent has no tools of Baton's.
    pub(crate) tools: Option<ToolGrant>,
    /// The files that the attempt has to leave.
    pub(crate) required_files: Option<RequiredFiles>,
    /// A coding agent, whose end cannot be judged without its session.
    pub(crate) is_coding_agent: bool,
}

/// Why the description cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetaError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is damaged")]
    Damaged { path: PathBuf },
    #[error("{path} has format {format} of a newer daemon; this one reads formats up to {FORMAT}")]
    Newer { path: PathBuf, format: u32 },
}

impl AttemptMeta {
    /// Written atomically. Synced later, with the first frame that must survive a power
    /// failure.
    pub(super) fn write(&self, dir: &Path, name: &str) -> io::Result<()> {
        let mut bytes = Vec::new();
        if !checked_record::append_record(&self.to_disk(), &mut bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let path = dir.join(name);
        let draft = path.with_extension("new");
        atomic_file::open_private(&draft)?.write_all(&bytes)?;
        fs::rename(&draft, &path)
    }

    pub(super) fn read(path: &Path) -> Result<Self, MetaError> {
        let damaged = || MetaError::Damaged {
            path: path.to_owned(),
        };
        let bytes = atomic_file::read(path).map_err(|source| MetaError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let CheckedRead::Whole { message, .. } = checked_record::read_record(&bytes, 0) else {
            return Err(damaged());
        };
        let stored = worker::AttemptMeta::decode(message).map_err(|_| damaged())?;
        if stored.format > FORMAT {
            return Err(MetaError::Newer {
                path: path.to_owned(),
                format: stored.format,
            });
        }
        Self::from_disk(stored).ok_or_else(damaged)
    }

    pub(crate) fn conversation_turn(&self) -> Option<ConversationTurn> {
        let key = ConversationFileKey::from_bytes(&self.conversation_key)?;
        let agent = self.agent.clone();
        Some(ConversationTurn { key, agent })
    }

    fn to_disk(&self) -> worker::AttemptMeta {
        worker::AttemptMeta {
            format: FORMAT,
            r#ref: Some(self.attempt.clone()),
            agent: self.agent.clone(),
            daemon_id: self.daemon_id.clone(),
            boot_id: self.boot_id.clone(),
            deadlines: Some(deadlines_to_disk(self.deadlines)),
            cleanup_term_ms: whole_millis(self.cleanup_term),
            conversation_key: self.conversation_key.clone(),
            workspace: self
                .workspace
                .as_ref()
                .and_then(workspace::WorkspacePlan::to_disk),
            tools: self.tools.as_ref().map(ToolGrant::to_disk),
            files: self.required_files.as_ref().map(required_files_to_disk),
            talks: self.is_coding_agent,
        }
    }

    fn from_disk(stored: worker::AttemptMeta) -> Option<Self> {
        Some(Self {
            attempt: stored.r#ref?,
            agent: stored.agent,
            daemon_id: stored.daemon_id,
            boot_id: stored.boot_id,
            deadlines: deadlines_from_disk(stored.deadlines.unwrap_or_default()),
            cleanup_term: Duration::from_millis(stored.cleanup_term_ms),
            conversation_key: stored.conversation_key,
            workspace: stored
                .workspace
                .and_then(workspace::WorkspacePlan::from_disk),
            tools: stored.tools.and_then(ToolGrant::from_disk),
            required_files: stored.files.and_then(required_files_from_disk),
            is_coding_agent: stored.talks,
        })
    }
}

fn required_files_to_disk(files: &RequiredFiles) -> worker::AttemptFiles {
    worker::AttemptFiles {
        root: workspace::path_to_bytes(files.root()),
        contract: Some(files.contract().clone()),
    }
}

/// It was checked before it was written.
fn required_files_from_disk(stored: worker::AttemptFiles) -> Option<RequiredFiles> {
    let root = workspace::path_from_bytes(&stored.root);
    RequiredFiles::new(&root, stored.contract.as_ref())
        .ok()
        .flatten()
}

fn deadlines_to_disk(deadlines: DeadlineLimits) -> AttemptDeadlines {
    let DeadlineLimits {
        process_start,
        prompt_write,
        first_event,
        first_visible_event,
        stream_idle,
        tool_idle,
        total,
    } = deadlines;
    AttemptDeadlines {
        process_start_ms: process_start.map(whole_millis),
        prompt_write_ms: prompt_write.map(whole_millis),
        first_event_ms: first_event.map(whole_millis),
        first_visible_event_ms: first_visible_event.map(whole_millis),
        stream_idle_ms: stream_idle.map(whole_millis),
        tool_idle_ms: tool_idle.map(whole_millis),
        total_ms: total.map(whole_millis),
    }
}

fn deadlines_from_disk(stored: AttemptDeadlines) -> DeadlineLimits {
    let armed = |millis: Option<u64>| millis.map(Duration::from_millis);
    DeadlineLimits {
        process_start: armed(stored.process_start_ms),
        prompt_write: armed(stored.prompt_write_ms),
        first_event: armed(stored.first_event_ms),
        first_visible_event: armed(stored.first_visible_event_ms),
        stream_idle: armed(stored.stream_idle_ms),
        tool_idle: armed(stored.tool_idle_ms),
        total: armed(stored.total_ms),
    }
}
