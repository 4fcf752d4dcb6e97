//! Turns the events of the attempt's task into frames, and pauses the child while the relay or the
//! disk cannot keep up.

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::{LeaseToken, TurnKind};
use prost::Message;

use super::{StopReason, SupervisedAttempt, SupervisedStage};
use crate::attempt::{AttemptEvent, EventProgress, InputResponse};
use crate::clock::{BootTime, Clock};
use crate::deadlines::DeadlineKind;
use crate::deadlines::phase_order::OneTimePhase;
use crate::frames::{self, PhaseReport};
use crate::outbox::TranscriptProgress;

/// A phase that the attempt's task has entered.
struct EnteredPhase {
    phase: OneTimePhase,
    pid: Option<i32>,
    next_deadline: Option<BootTime>,
    passed_deadline: Option<DeadlineKind>,
}

impl SupervisedAttempt {
    pub(crate) fn on_event(&mut self, event: AttemptEvent, clock: &Clock) {
        let fenced = self.stop_reason == Some(StopReason::Fenced);
        if let (SupervisedStage::Running(running), Some(progress)) =
            (&mut self.stage, event.progress())
        {
            running.on_progress(progress);
        }
        match event {
            AttemptEvent::Ended(ending) => self.on_ended(&ending, clock),
            AttemptEvent::ShimReached { token, lease } => self.on_shim_reached(token, lease),
            AttemptEvent::WorkspaceReady(report) => self.workspace = Some(*report),
            AttemptEvent::ProcessesGone => {
                if let SupervisedStage::Running(running) = &mut self.stage {
                    running.on_processes_gone();
                }
            }
            // The relay accepts nothing more of a fenced attempt.
            AttemptEvent::PhaseEntered { .. }
            | AttemptEvent::Output { .. }
            | AttemptEvent::AgentNotice { .. }
            | AttemptEvent::OutputMissing { .. }
            | AttemptEvent::WaitsForWorkspace { .. }
            | AttemptEvent::TranscriptRead { .. }
                if fenced => {}
            AttemptEvent::WaitsForWorkspace { message } => {
                self.outbox.push(frames::queued(message), clock);
            }
            AttemptEvent::Output { chunk, progress } => {
                let answers = self.advance_progress(progress);
                let mut label = chunk.label;
                // The output of a control turn is not shown to users.
                label.visible &= self.attempt.turn_kind() != TurnKind::Control;
                let queue = self.outbox.queue_mut();
                queue.push_output(label, chunk.bytes, clock.wall());
                self.track_answers(answers);
            }
            AttemptEvent::AgentNotice { notice, progress } => {
                let answers = self.advance_progress(progress);
                self.outbox.push(frames::agent_event_frame(notice), clock);
                self.track_answers(answers);
            }
            AttemptEvent::OutputMissing {
                length,
                why,
                progress,
            } => {
                self.advance_progress(progress);
                self.outbox.queue_mut().push_cut(length, why, clock.wall());
            }
            AttemptEvent::TranscriptRead { progress } => {
                let answers = self.advance_progress(progress);
                self.outbox.queue_mut().store_progress();
                self.track_answers(answers);
            }
            AttemptEvent::PhaseEntered {
                phase,
                pid,
                next_deadline,
                passed_deadline,
                progress,
            } => {
                let answers = self.advance_progress(progress);
                let entered = EnteredPhase {
                    phase,
                    pid,
                    next_deadline,
                    passed_deadline,
                };
                self.enter_phase(entered, clock);
                self.track_answers(answers);
            }
        }
    }

    /// A shim that did not answer has been reached: from here on the attempt is an ordinary one.
    fn on_shim_reached(&mut self, token: Option<LeaseToken>, lease: Option<LeaseClock>) {
        self.lease.adopt(token, lease);
        if let SupervisedStage::Running(running) = &mut self.stage {
            running.on_shim_reached(self.lease.clock());
        }
    }

    /// How far the transcript is consumed, stored with the next frame. Returns the number of
    /// answers that the event carries.
    fn advance_progress(&mut self, mut progress: EventProgress) -> u64 {
        let snapshot = match progress.snapshot.take() {
            Some(mut snapshot) => {
                (snapshot.stop, snapshot.cancel_reason) = StopReason::to_snapshot(self.stop_reason);
                snapshot.finish = self.tool_calls.finish().cloned();
                snapshot.encode_to_vec().into()
            }
            None => self.outbox.queue().progress().snapshot.clone(),
        };
        self.outbox.queue_mut().set_progress(TranscriptProgress {
            consumed: progress.position,
            snapshot,
        });
        if let SupervisedStage::Running(running) = &mut self.stage {
            running.track_position(&progress);
        }
        progress.answer_count
    }

    /// The entry that was just pushed holds answers for the agent. They are written to its stdin
    /// once that entry is stored.
    fn track_answers(&mut self, answers: u64) {
        if answers == 0 {
            return;
        }
        let log = self.outbox.queue().log();
        if let SupervisedStage::Running(running) = &mut self.stage {
            running.track_answers(log.last_serial(), answers);
            running.on_written(log.written_through());
        }
    }

    /// A person's answer to a request of the agent.
    pub(crate) fn deliver_answer(&mut self, answer: InputResponse) {
        if let SupervisedStage::Running(running) = &mut self.stage {
            running.deliver_answer(answer);
        }
    }

    fn enter_phase(&mut self, entered: EnteredPhase, clock: &Clock) {
        let (now, wall) = (clock.now(), clock.wall());
        let started_at = *self.started_at.get_or_insert(now);
        self.phase = frames::wire_phase(entered.phase);
        let report = PhaseReport {
            phase: entered.phase,
            pid: entered.pid,
            deadline_at: entered.next_deadline.map(|at| wall + now.until(at)),
            elapsed: started_at.until(now),
            wall,
            workspace: self.workspace.clone(),
            ended_by_deadline: entered.passed_deadline,
        };
        self.outbox.push(frames::phase_frame(report), clock);
    }

    /// Pauses or resumes the child by the backlog of its outbox.
    pub(crate) fn update_backpressure(&mut self, connected: bool) {
        if let SupervisedStage::Running(running) = &mut self.stage {
            running.update_backpressure(self.outbox.backlog(), connected);
        }
    }
}
