//! Entries as they are stored in the file. A frame is stored as it is sent, without its ref
//! (which is in the file `attempt`) and without its token (which must never be written to a
//! disk).

use baton_daemon_core::outbox::{OutboxNumbering, ProgressChange};
use baton_proto::worker::outbox_record::Change;
use baton_proto::worker::{OutboxAcked, OutboxBase, OutboxRecord, OutboxSettled, OutboxTakenOver};

use super::{AckedPosition, FrameEntry, LoggedFrameEntry, RequiredDurability};
use crate::frames;

pub(super) fn to_disk(logged: &LoggedFrameEntry) -> OutboxRecord {
    let change = match &logged.entry {
        FrameEntry::Frame(record) => Some(Change::Frame(frames::encode_record(record))),
        FrameEntry::Acked(acked) => Some(Change::Acked(acked_to_disk(*acked))),
        FrameEntry::Reset(base) => Some(Change::Base(OutboxBase {
            last_control_seq: base.last_control_seq,
            output_end: base.end_offset,
            acked: Some(acked_to_disk(base.acked)),
            taken_over_at: base.taken_over_at,
        })),
        FrameEntry::ControlFramesDropped { control_before } => {
            Some(Change::ForgottenBefore(*control_before))
        }
        FrameEntry::TakenOver => Some(Change::TakenOver(OutboxTakenOver {})),
        FrameEntry::Renumbered { raised_by } => Some(Change::Settled(OutboxSettled {
            raised_by: *raised_by,
        })),
        FrameEntry::ProgressOnly => None,
    };
    OutboxRecord {
        serial: logged.serial,
        consumed: logged.progress.consumed,
        snapshot: logged.progress.snapshot.clone(),
        change,
    }
}

pub(super) fn from_disk(record: OutboxRecord) -> LoggedFrameEntry {
    let entry = match record.change {
        Some(Change::Frame(frame)) => {
            frames::decode_record(frame).map_or(FrameEntry::ProgressOnly, FrameEntry::Frame)
        }
        Some(Change::Acked(acked)) => FrameEntry::Acked(acked_from_disk(acked)),
        Some(Change::Base(base)) => FrameEntry::Reset(OutboxNumbering {
            last_control_seq: base.last_control_seq,
            end_offset: base.output_end,
            acked: acked_from_disk(base.acked.unwrap_or_default()),
            taken_over_at: base.taken_over_at,
        }),
        Some(Change::ForgottenBefore(control_before)) => {
            FrameEntry::ControlFramesDropped { control_before }
        }
        Some(Change::TakenOver(OutboxTakenOver {})) => FrameEntry::TakenOver,
        Some(Change::Settled(settled)) => FrameEntry::Renumbered {
            raised_by: settled.raised_by,
        },
        None => FrameEntry::ProgressOnly,
    };
    LoggedFrameEntry {
        serial: record.serial,
        required_durability: required_durability(&entry),
        progress: ProgressChange {
            consumed: record.consumed,
            snapshot: record.snapshot,
        },
        entry,
    }
}

/// The durability that a frame needs follows from its body, so it is not stored.
fn required_durability(entry: &FrameEntry) -> RequiredDurability {
    match entry {
        FrameEntry::Frame(super::FrameRecord::Control { body, .. }) => body.required_durability(),
        FrameEntry::Renumbered { .. } => RequiredDurability::Synced,
        FrameEntry::Frame(super::FrameRecord::Output { .. } | super::FrameRecord::Cut { .. })
        | FrameEntry::Acked(_)
        | FrameEntry::Reset(_)
        | FrameEntry::ControlFramesDropped { .. }
        | FrameEntry::TakenOver
        | FrameEntry::ProgressOnly => RequiredDurability::Written,
    }
}

fn acked_to_disk(acked: AckedPosition) -> OutboxAcked {
    OutboxAcked {
        control_seq: acked.control_seq,
        output_offset: acked.output_offset,
    }
}

fn acked_from_disk(acked: OutboxAcked) -> AckedPosition {
    AckedPosition {
        control_seq: acked.control_seq,
        output_offset: acked.output_offset,
    }
}
