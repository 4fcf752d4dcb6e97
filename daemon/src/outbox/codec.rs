//! Entries as they stand in the file. A frame is stored as it goes over the wire, without its ref (the file `attempt` has it) and
//! without its token (which must never touch a disk).

use baton_daemon_core::outbox::{Base, Step};
use baton_proto::worker::outbox_record::Change;
use baton_proto::worker::{OutboxAcked, OutboxBase, OutboxRecord, OutboxSettled, OutboxTakenOver};

use super::{Acked, Entry, Leaves, Logged};
use crate::frames;

pub(super) fn to_disk(logged: &Logged) -> OutboxRecord {
    let change = match &logged.entry {
        Entry::Frame(record) => Some(Change::Frame(frames::bare_frame(record))),
        Entry::Acked(acked) => Some(Change::Acked(acked_to_disk(*acked))),
        Entry::Base(base) => Some(Change::Base(OutboxBase {
            last_control_seq: base.last_control_seq,
            output_end: base.end_offset,
            acked: Some(acked_to_disk(base.acked)),
            taken_over_at: base.taken_over_at,
        })),
        Entry::Forgotten { control_before } => Some(Change::ForgottenBefore(*control_before)),
        Entry::TakenOver => Some(Change::TakenOver(OutboxTakenOver {})),
        Entry::Settled { raised_by } => Some(Change::Settled(OutboxSettled {
            raised_by: *raised_by,
        })),
        Entry::Advanced => None,
    };
    OutboxRecord {
        serial: logged.serial,
        consumed: logged.progress.consumed,
        snapshot: logged.progress.snapshot.clone(),
        change,
    }
}

pub(super) fn from_disk(record: OutboxRecord) -> Logged {
    let entry = match record.change {
        Some(Change::Frame(frame)) => frames::record(frame).map_or(Entry::Advanced, Entry::Frame),
        Some(Change::Acked(acked)) => Entry::Acked(acked_from_disk(acked)),
        Some(Change::Base(base)) => Entry::Base(Base {
            last_control_seq: base.last_control_seq,
            end_offset: base.output_end,
            acked: acked_from_disk(base.acked.unwrap_or_default()),
            taken_over_at: base.taken_over_at,
        }),
        Some(Change::ForgottenBefore(control_before)) => Entry::Forgotten { control_before },
        Some(Change::TakenOver(OutboxTakenOver {})) => Entry::TakenOver,
        Some(Change::Settled(settled)) => Entry::Settled {
            raised_by: settled.raised_by,
        },
        None => Entry::Advanced,
    };
    Logged {
        serial: record.serial,
        leaves: leaves(&entry),
        progress: Step {
            consumed: record.consumed,
            snapshot: record.snapshot,
        },
        entry,
    }
}

/// What a frame waits for follows from what it says, so it is not stored.
fn leaves(entry: &Entry) -> Leaves {
    match entry {
        Entry::Frame(super::Record::Control { body, .. }) => body.leaves(),
        Entry::Settled { .. } => Leaves::Synced,
        Entry::Frame(super::Record::Output { .. } | super::Record::Cut { .. })
        | Entry::Acked(_)
        | Entry::Base(_)
        | Entry::Forgotten { .. }
        | Entry::TakenOver
        | Entry::Advanced => Leaves::Written,
    }
}

fn acked_to_disk(acked: Acked) -> OutboxAcked {
    OutboxAcked {
        control_seq: acked.control_seq,
        output_offset: acked.output_offset,
    }
}

fn acked_from_disk(acked: OutboxAcked) -> Acked {
    Acked {
        control_seq: acked.control_seq,
        output_offset: acked.output_offset,
    }
}
