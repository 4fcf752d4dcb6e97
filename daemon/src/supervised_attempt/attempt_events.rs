//! What the attempt's task tells becomes frames, and what stands between it and the relay holds it back.

use baton_proto::v1::TurnKind;

use super::{ShimReach, StopReason, SupervisedAttempt, SupervisedStage};
use crate::attempt::{AttemptEvent, InputResponse};
use crate::clock::{BootTime, Clock};
use crate::deadlines::DeadlineKind;
use crate::deadlines::phase_order::OneTimePhase;
use crate::frames::{self, PhaseReport};
use crate::outbox::OUTPUT_LIMIT;

/// Unacknowledged output at which a connected child is held back, and at which it goes on.
const PAUSE_OUTPUT_ABOVE: usize = OUTPUT_LIMIT / 2;
const RESUME_OUTPUT_BELOW: usize = OUTPUT_LIMIT / 4;
/// Unacknowledged control frames at which a child is held back, connected or not: they are never dropped.
const UNACKED_CONTROL_MAX: usize = 8 * 1024 * 1024;
const UNACKED_CONTROL_RESUME: usize = UNACKED_CONTROL_MAX / 2;
/// Bytes on their way to the disk at which a child is held back.
const UNWRITTEN_MAX: usize = 1024 * 1024;

impl SupervisedAttempt {
    pub(crate) fn on_event(&mut self, event: AttemptEvent, clock: &Clock) {
        let fenced = self.stop_reason == Some(StopReason::Fenced);
        if let (SupervisedStage::Running(reins), Some(progress)) =
            (&mut self.stage, event.progress())
        {
            reins.on_progress(progress);
        }
        match event {
            AttemptEvent::Ended(ending) => self.on_ended(&ending, clock),
            AttemptEvent::ShimReached { token, lease } => self.on_shim_reached(token, lease),
            AttemptEvent::WorkspaceReady(report) => self.workspace = Some(*report),
            AttemptEvent::ProcessesGone => {
                if let SupervisedStage::Running(reins) = &mut self.stage {
                    reins.reach = ShimReach::Ended;
                }
            }
            // Nobody wants to hear it.
            AttemptEvent::PhaseEntered { .. }
            | AttemptEvent::Output { .. }
            | AttemptEvent::AgentNotice { .. }
            | AttemptEvent::OutputMissing { .. }
            | AttemptEvent::WaitsForWorkspace { .. }
            | AttemptEvent::TranscriptRead { .. }
                if fenced => {}
            AttemptEvent::WaitsForWorkspace { message } => {
                self.push_frame(frames::queued(message), clock)
            }
            AttemptEvent::Output { chunk, progress } => {
                let answers = progress.answer_count;
                self.advance_progress(progress);
                let mut label = chunk.label;
                // What is done behind the scenes is nothing for users to read.
                label.visible &= self.attempt.turn_kind() != TurnKind::Control;
                self.outbox.push_output(label, chunk.bytes, clock.wall());
                self.track_answers(answers);
            }
            AttemptEvent::AgentNotice {
                notice: said,
                progress,
            } => {
                let answers = progress.answer_count;
                self.advance_progress(progress);
                self.push_frame(frames::agent_event_frame(said), clock);
                self.track_answers(answers);
            }
            AttemptEvent::OutputMissing {
                length,
                why,
                progress,
            } => {
                self.advance_progress(progress);
                self.outbox.push_cut(length, why, clock.wall());
            }
            AttemptEvent::TranscriptRead { progress } => {
                let answers = progress.answer_count;
                self.advance_progress(progress);
                self.outbox.store_progress();
                self.track_answers(answers);
            }
            AttemptEvent::PhaseEntered {
                phase,
                pid,
                next_deadline,
                passed_deadline: passed,
                progress,
            } => {
                let answers = progress.answer_count;
                self.advance_progress(progress);
                self.enter_phase(phase, pid, (next_deadline, passed), clock);
                self.track_answers(answers);
            }
        }
    }

    /// What was just said holds answers of people, or what was found for the agent; they go to it when that is stored.
    fn track_answers(&mut self, answers: u64) {
        if answers == 0 {
            return;
        }
        let serial = self.outbox.log().last_serial();
        if let SupervisedStage::Running(reins) = &mut self.stage {
            reins.track_answers(serial, answers);
            reins.on_written(self.outbox.log().written_through());
        }
    }

    /// What somebody says to what the agent asked.
    pub(crate) fn deliver_answer(&mut self, word: InputResponse) {
        if let SupervisedStage::Running(reins) = &mut self.stage {
            reins.deliver_answer(word);
        }
    }

    /// Whether its agent may say more through its tools.
    pub(crate) fn has_frame_room(&self) -> bool {
        self.outbox.control_bytes() <= UNACKED_CONTROL_MAX
    }

    fn enter_phase(
        &mut self,
        phase: OneTimePhase,
        pid: Option<i32>,
        (next_deadline, passed): (Option<BootTime>, Option<DeadlineKind>),
        clock: &Clock,
    ) {
        let (now, wall) = (clock.now(), clock.wall());
        let started_at = *self.started_at.get_or_insert(now);
        self.phase = frames::wire_phase(phase);
        let report = PhaseReport {
            phase,
            pid,
            deadline_at: next_deadline.map(|at| wall + now.until(at)),
            elapsed: started_at.until(now),
            wall,
            workspace: self.workspace.clone(),
            ended_by_deadline: passed,
        };
        self.push_frame(frames::phase_frame(report), clock);
    }

    /// Holds the child back while the relay or the disk cannot keep up. Without a stream nobody could ever catch up,
    /// so the child runs on and the outbox cuts its output; but what has ended stays on the disk until it can be told, and so
    /// does what is no output.
    pub(crate) fn update_backpressure(&mut self, connected: bool) {
        let (unacked, unwritten) = (
            self.outbox.output_bytes(),
            self.outbox.log().unwritten_bytes(),
        );
        let untold = self.outbox.control_bytes();
        let SupervisedStage::Running(reins) = &mut self.stage else {
            return;
        };
        let (most, most_untold) = if reins.is_behind {
            (RESUME_OUTPUT_BELOW, UNACKED_CONTROL_RESUME)
        } else {
            (PAUSE_OUTPUT_ABOVE, UNACKED_CONTROL_MAX)
        };
        let waits_for_relay = connected || reins.reach == ShimReach::Ended;
        reins.is_behind = (waits_for_relay && unacked > most) || untold > most_untold;
        reins.set_output_paused(reins.is_behind || unwritten > UNWRITTEN_MAX);
    }
}
