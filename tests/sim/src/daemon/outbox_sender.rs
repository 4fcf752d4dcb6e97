//! The way of an attempt's frames from its transcript through the daemon's outbox and the disk
//! to a stream, with a check of every frame that is sent.

use baton_core::ids::AttemptId;
use baton_core::io::session_input::{FrameBody, FrameRef};
use baton_core::time::WallTime;
use baton_daemon_core::outbox::{QueuedRecord, RequiredDurability};

use crate::daemon::sim_attempt::{NumberedFrame, SimAttempt, required_durability};
use crate::faults::replayed_frames::SentFrame;
use crate::relay::output_log::UpstreamOutput;
use crate::simulation::{ScheduledEvent, Simulation};
use crate::stream::UpstreamItem;

impl Simulation {
    /// Appends a frame, which the daemon forwards if it is running.
    pub(crate) fn send_frame(&mut self, index: usize, attempt: AttemptId, body: FrameBody) {
        if let Some(held) = self.daemons[index].attempts.get_mut(&attempt) {
            held.append_frame(body);
        }
        self.forward_transcript(index, attempt);
    }

    pub(crate) fn forward_all_transcripts(&mut self, index: usize) {
        let attempts: Vec<AttemptId> = self.daemons[index].attempts.keys().copied().collect();
        for attempt in attempts {
            self.forward_transcript(index, attempt);
        }
    }

    /// The daemon reads the rest of the transcript, if it runs and the shim answers.
    pub(crate) fn forward_transcript(&mut self, index: usize, attempt: AttemptId) {
        if self.is_stopped(index) || self.daemons[index].is_down {
            return;
        }
        let (wall, limit) = (self.wall_time(), self.options.outbox_limit);
        let held = self.daemons[index].attempts.get_mut(&attempt);
        let Some(held) = held.filter(|held| held.reachable) else {
            return;
        };
        held.read_transcript(wall);
        assert!(
            held.outbox.output_bytes() <= limit,
            "S13: {attempt} has {} bytes of output in memory",
            held.outbox.output_bytes()
        );
        self.write_outbox(index, attempt);
    }

    /// Passes new entries to the disk, which writes them at once or later.
    fn write_outbox(&mut self, index: usize, attempt: AttemptId) {
        let slow = self.options.slow_outbox && !self.healing && self.rng.chance(20);
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        let was_idle = held.disk.is_idle();
        let entries = held.outbox.log_mut().take_pending();
        held.disk.enqueue(entries);
        if held.disk.is_idle() {
            return self.flush_outbox(index, attempt);
        }
        if slow && was_idle {
            let at = self.now + self.rng.between(1, 3_000);
            return self.schedule(
                at,
                ScheduledEvent::OutboxWrite {
                    daemon: index,
                    attempt,
                },
            );
        }
        if was_idle {
            self.finish_outbox_write(index, attempt);
        }
    }

    /// The disk has written, and syncs if an urgent entry is included; a kill may happen in
    /// between.
    pub(crate) fn finish_outbox_write(&mut self, index: usize, attempt: AttemptId) {
        let slow = self.options.slow_outbox && !self.healing && self.rng.chance(50);
        let held = self.daemons[index].attempts.get_mut(&attempt);
        let Some(held) = held.filter(|held| !held.disk.is_idle()) else {
            return;
        };
        held.disk.finish_sync();
        held.disk.write();
        if !slow {
            held.disk.finish_sync();
        }
        held.outbox.log_mut().on_durable(held.disk.durable());
        let syncing = !held.disk.is_idle();
        if !syncing && held.outbox.log().needs_rewrite(held.outbox.output_bytes()) {
            let image = held.outbox.rewrite_entries();
            held.disk.replace(image);
            held.outbox.log_mut().on_durable(held.disk.durable());
            self.counts.images += 1;
        }
        if syncing {
            let at = self.now + self.rng.between(1, 200);
            self.schedule(
                at,
                ScheduledEvent::OutboxWrite {
                    daemon: index,
                    attempt,
                },
            );
        }
        self.flush_outbox(index, attempt);
    }

    /// Sends the frames that may be sent now.
    pub(crate) fn flush_outbox(&mut self, index: usize, attempt: AttemptId) {
        if self.is_stopped(index) {
            return;
        }
        let daemon = &self.daemons[index];
        let (Some(conn), true, false) = (daemon.stream, daemon.welcomed, daemon.is_down) else {
            return;
        };
        let records = self.take_sendable_records(index, attempt);
        let Some(held) = self.daemons[index].attempts.get(&attempt) else {
            return;
        };
        let (re, token, restored) = (held.re, held.token.clone(), held.restored);
        let said: Vec<SentFrame> = records
            .iter()
            .filter_map(|record| sent_frame(re, record))
            .collect();
        self.duplicate_last_frame(index, conn, &said);
        let mut said = said.into_iter();
        for record in records {
            if !matches!(record, QueuedRecord::Control { .. }) {
                self.send_to_relay(
                    conn,
                    UpstreamItem::Output(Box::new(UpstreamOutput { re, record })),
                );
                continue;
            }
            let Some(said) = said.next() else {
                continue;
            };
            let proof = (!restored && self.rng.chance(50)).then(|| token.clone());
            self.record_sent_frame(index, &said);
            self.daemons[index].sent_history.record_frame(said.clone());
            let nth = said.frame_number;
            let frame = Box::new(said.into_frame(self.streams[conn].session, proof));
            let ghost = false;
            self.send_to_relay(
                conn,
                UpstreamItem::Frame {
                    frame,
                    frame_number: nth,
                    is_replay: ghost,
                },
            );
        }
    }

    fn take_sendable_records(
        &mut self,
        index: usize,
        attempt: AttemptId,
    ) -> Vec<QueuedRecord<NumberedFrame, bool, WallTime>> {
        let (now, kept) = (self.now, self.options.disk_outbox);
        let (mut leaving, mut muted) = (Vec::new(), 0);
        let held = self.daemons[index].attempts.get_mut(&attempt);
        let Some(held) = held.filter(|held| held.reachable) else {
            return leaving;
        };
        while let Some(record) = held.outbox.next_unsent() {
            if held.is_silenced(now) {
                muted = 1;
                break;
            }
            assert!(
                !held.processes_alive || now < held.granted_time.until,
                "S14: {attempt} speaks at {now}, and its lease was over at {}",
                held.granted_time.until
            );
            if kept {
                check_frame_stored(held, record);
            }
            if let QueuedRecord::Control { seq, body, .. } = record {
                held.sent_frames.insert(*seq, body.number);
            }
            leaving.push(record.clone());
            held.outbox.mark_sent();
        }
        self.counts.muted += muted;
        leaving
    }
}

/// Nothing is sent before it is stored: if the daemon or the machine ended now, its successor
/// must have the frame.
fn check_frame_stored(held: &SimAttempt, record: &QueuedRecord<NumberedFrame, bool, WallTime>) {
    let QueuedRecord::Control { seq, body, .. } = record else {
        return;
    };
    let leaves = required_durability(&body.body);
    assert!(
        held.disk.has_durable_frame(*seq, leaves),
        "outbox: frame {seq} of {} leaves before it is {}",
        held.re.attempt,
        match leaves {
            RequiredDurability::Written => "written",
            RequiredDurability::Synced => "synced",
        }
    );
}

fn sent_frame(
    re: FrameRef,
    record: &QueuedRecord<NumberedFrame, bool, WallTime>,
) -> Option<SentFrame> {
    let QueuedRecord::Control {
        seq,
        observed_at,
        body,
    } = record
    else {
        return None;
    };
    Some(SentFrame {
        re,
        control_seq: *seq,
        observed: *observed_at,
        body: body.body.clone(),
        frame_number: Some(body.number),
    })
}
