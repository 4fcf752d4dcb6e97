//! An attempt's outbox on the disk: its file, and the one thread that writes all files. The
//! outbox itself, and which frames may be sent, is in `baton_daemon_core::outbox`; here it is
//! used with frames.

use std::time::SystemTime;

use baton_daemon_core::outbox as pure;

use crate::frames::ControlFrame;

mod codec;
mod file;
mod output_label;
mod writer;

pub(crate) use file::{OutboxTail, StoredOutbox, read_outbox};
pub(crate) use output_label::OutputLabel;
pub(crate) use pure::{
    AckedPosition, ControlBody, DurablePosition, OUTPUT_LIMIT, OutputCutReason, RequiredDurability,
    TranscriptProgress,
};
pub(crate) use writer::{OutboxFilePrefix, OutboxJob, OutboxReport, OutboxWriter};

pub(crate) type FrameOutbox = pure::Outbox<ControlFrame, OutputLabel, SystemTime>;
pub(crate) type FrameRecord = pure::QueuedRecord<ControlFrame, OutputLabel, SystemTime>;
pub(crate) type FrameEntry = pure::OutboxEntry<ControlFrame, OutputLabel, SystemTime>;
pub(crate) type LoggedFrameEntry = pure::LoggedEntry<ControlFrame, OutputLabel, SystemTime>;
