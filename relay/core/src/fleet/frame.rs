//! Frames of daemons: fencing checks, their order, and the effects of each frame. No other
//! module fences daemon frames.
//!
//! Order of the checks: the session is current; the incarnation is current; the attempt exists
//! and belongs to this daemon; the token matches; the control number was not applied yet; the
//! attempt is leased; the lease has not expired; no number is missing. Only then does the state
//! machine judge the body. The first check that fails determines the rejection code, and nothing
//! is written.

use std::sync::Arc;

use crate::attempt::attempt_owners::AttemptOwners;
use crate::attempt::machine::{EventOutcome, MachineEvent};
use crate::attempt::timers::TimerKey;
use crate::core_state::CoreOwners;
use crate::fleet::frame_check::{
    FrameOrigin, check_owner, is_owned_by, reject_frame, reject_frame_with, send_ack,
};
use crate::fleet::frame_event::{frame_event, lacks_output};
use crate::goal::completion_contract;
use crate::goal::progress_report::StoredProgress;
use crate::ids::{AttemptId, SessionId};
use crate::io::effects::{CommitDependency, CoreMetric, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::io::session_input::{AttemptFrame, FrameBody, OutputActivity};
use crate::io::stored_lookup::{StoredRecords, StoredTasks};
use crate::record::{AttemptState, LifecyclePhase, TaskRecord, TimelineEventKind, WorkspaceReport};
use crate::schedule::dispatch::attempt_ref;
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::size_limits;
use crate::time::WallTime;
use crate::turn::CoreTurn;

/// A frame on a stream that is not current needs no record.
pub(crate) fn load_frame_records(
    core: &CoreOwners<'_>,
    frame: &AttemptFrame,
    store: &dyn StoredTasks,
) -> StoredRecords {
    let mut stored = StoredRecords::default();
    let live = core.tasks.get(frame.frame_ref.task);
    if let Some(live) = live.filter(|_| frame.updates_progress()) {
        stored.progress = store.progress(&live.record().tenant, live.id());
    }
    let daemon = core.fleet.roster().daemon_of(frame.session);
    let sender = daemon.and_then(|daemon| core.fleet.roster().get(daemon));
    if let Some(sender) = sender.filter(|_| live.is_none()) {
        stored.finished = store.finished_in_scope(&sender.scope, frame.frame_ref.task);
    }
    stored
}

pub(crate) fn handle_frame(
    core: &mut CoreOwners<'_>,
    mut frame: AttemptFrame,
    stored: StoredRecords,
    turn: &mut CoreTurn<'_>,
) {
    size_limits::clip_body(&mut frame.body);
    if let Some(workspace) = &mut frame.workspace {
        size_limits::clip_workspace(workspace);
    }
    let Some(daemon) = core.fleet.roster().daemon_of(frame.session) else {
        turn.effects
            .metrics
            .push(CoreMetric::FrameRejected(Rejection::UnknownSession));
        return;
    };
    let from = FrameOrigin {
        session: frame.session,
        daemon,
        frame_ref: frame.frame_ref,
        control_seq: frame.control_seq,
    };
    if frame.frame_ref.incarnation != turn.config.incarnation && !mutant!(IncarnationIgnored) {
        return reject_frame(from, Rejection::StaleIncarnation, turn);
    }
    if let Some(mut live) = core.tasks.take_any(frame.frame_ref.task) {
        core.attempt()
            .handle_live_frame(&mut live, from, frame, stored.progress, turn);
        core.put_back_task(live, turn);
    } else if let Some(finished) = stored.finished {
        core.attempt()
            .handle_finished_frame(finished, from, frame, turn);
    } else {
        reject_frame(from, Rejection::UnknownAttempt, turn);
    }
}

pub(crate) fn handle_activity(
    core: &mut CoreOwners<'_>,
    activity: OutputActivity,
    turn: &mut CoreTurn<'_>,
) {
    let Some(daemon) = core.fleet.roster().daemon_of(activity.session) else {
        return;
    };
    let re = activity.frame_ref;
    let Some(mut live) = core.tasks.take_any(re.task) else {
        return;
    };
    let newest = live.newest_attempt();
    let named = newest.id == re.attempt && is_owned_by(newest, daemon);
    let own = (named || mutant!(OutputUnfenced)) && re.incarnation == turn.config.incarnation;
    if own && newest.state.is_leased() && !newest.state.eq(&AttemptState::Offered) {
        let event = MachineEvent::Output {
            sign: activity.signal,
            tools: activity.tools,
            end: activity.output_end,
        };
        core.attempt().apply_event(&mut live, event, None, turn);
    }
    core.put_back_task(live, turn);
}

impl AttemptOwners<'_> {
    fn handle_live_frame(
        &mut self,
        live: &mut LiveTask,
        from: FrameOrigin,
        frame: AttemptFrame,
        progress: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) {
        if let Err(code) = check_owner(live, from, frame.proof.as_ref(), turn) {
            return reject_frame(from, code, turn);
        }
        let current = live.newest_attempt().id == from.frame_ref.attempt && live.is_newest_leased();
        if current
            && live
                .lease_ends_at()
                .is_some_and(|ends| ends <= turn.now.monotonic)
        {
            // The lease expired before this frame arrived. The next timer sweep would end it
            // anyway.
            self.apply_event(
                live,
                MachineEvent::TimerExpired(TimerKey::Lease),
                None,
                turn,
            );
        }
        let stale = live.newest_attempt().id != from.frame_ref.attempt || !live.is_newest_leased();
        let unfenced = mutant!(CompleteUnfenced) && matches!(frame.body, FrameBody::Completed(_));
        if stale && !unfenced {
            return self.handle_stale_frame(live, from, frame, turn);
        }
        let applied = live.newest_attempt().control_seq;
        if from.control_seq <= applied && !mutant!(DuplicateTaken) {
            return answer_repeated_frame(live, from, turn);
        }
        if from.control_seq > applied + 1 && !mutant!(GapTaken) {
            return reject_frame_with(from, Rejection::Gap, Some(applied + 1), Vec::new(), turn);
        }
        if lacks_output(&frame.body) {
            // The control number is not consumed: the daemon sends the frame again after the
            // output.
            return reject_frame(from, Rejection::OutputGap, turn);
        }
        self.apply_next_frame(live, from, frame, progress, turn);
    }

    fn apply_next_frame(
        &mut self,
        live: &mut LiveTask,
        from: FrameOrigin,
        frame: AttemptFrame,
        progress: StoredProgress,
        turn: &mut CoreTurn<'_>,
    ) {
        let AttemptFrame {
            body,
            observed,
            workspace,
            ..
        } = frame;
        let FrameBody::Goal(report) = body else {
            return self.apply_machine_frame(live, from, body, (observed, workspace), turn);
        };
        let before = turn.effects.deliveries.len();
        match self.apply_goal_report(live, report, progress, from.control_seq, turn) {
            Ok(()) => {
                send_ack(from, from.control_seq, turn);
                // The ack must precede the deliveries that the report caused: a block ends the
                // attempt, and the daemon ignores later messages about it.
                turn.effects.deliveries[before..].rotate_right(1);
            }
            Err(code) => {
                live.consume_control_seq(from.control_seq);
                reject_frame(from, code, turn);
            }
        }
    }

    fn apply_machine_frame(
        &mut self,
        live: &mut LiveTask,
        from: FrameOrigin,
        body: FrameBody,
        (observed, workspace): (WallTime, Option<Box<WorkspaceReport>>),
        turn: &mut CoreTurn<'_>,
    ) {
        let accepts = matches!(body, FrameBody::Accepted);
        let phase_message = if let FrameBody::Phase { message, .. } = &body {
            message.clone()
        } else {
            None
        };
        let Some(event) = frame_event(body, &live.spec, turn.now.wall) else {
            turn.effects.metrics.push(CoreMetric::UnknownFrame);
            return live.consume_control_seq(from.control_seq);
        };
        let cancels = matches!(
            event,
            MachineEvent::Phase(LifecyclePhase::CleanupStarted) | MachineEvent::DaemonDeadline(_)
        );
        let regressed = if let MachineEvent::Phase(phase) = &event {
            Some(*phase)
        } else {
            None
        };
        let rule_answer = if let MachineEvent::InputAsked(input, Some(answer)) = &event {
            Some((input.id, Arc::clone(&answer.rule_text)))
        } else {
            None
        };
        match self.apply_frame_event(
            live,
            event,
            // A frame without an observation time decodes as zero.
            Some(observed).filter(|observed| observed.0 > 0),
            Some(from.control_seq),
            turn,
        ) {
            EventOutcome::Applied => {
                live.set_event_message(phase_message);
                if let Some((input, rule)) = rule_answer {
                    live.set_event_message(Some(rule));
                    self.send_answer(live, input, turn);
                }
                live.set_workspace(from.frame_ref.attempt, workspace);
                if cancels {
                    record_cancel_delivered(live, turn.now.wall);
                }
                if accepts {
                    self.confirm_lease(live, from.session, turn);
                }
                send_ack(from, from.control_seq, turn);
            }
            EventOutcome::Ignored | EventOutcome::Late => {
                live.consume_control_seq(from.control_seq)
            }
            EventOutcome::Regressed => {
                turn.effects.metrics.push(CoreMetric::PhaseRegression);
                live.consume_control_seq(from.control_seq);
                record_phase_regression(live, regressed);
            }
            EventOutcome::Refused(Rejection::ContractUnmet) => {
                live.consume_control_seq(from.control_seq);
                record_refused_completion(live, from.control_seq);
                reject_unmet_contract(live, from, turn);
            }
            EventOutcome::Refused(code) => {
                live.consume_control_seq(from.control_seq);
                reject_frame(from, code, turn);
            }
        }
    }

    /// Sends LeaseConfirmed, the last step of dispatch, accept and confirm.
    fn confirm_lease(&mut self, live: &mut LiveTask, session: SessionId, turn: &mut CoreTurn<'_>) {
        let granted_ms = live.spec.lease_ttl_ms;
        // Renews even if a settlement has confirmed the lease already: the daemon counts the
        // granted time from the sending of this frame.
        live.renew_lease(
            turn.now.monotonic + granted_ms,
            turn.config,
            turn.now.monotonic,
        );
        let pace_ms = turn.config.heartbeat_ms_for(granted_ms);
        self.roster
            .shorten_heartbeat(session, pace_ms, turn.now.monotonic);
        let expires_at = wall_time_at(turn.now.monotonic + granted_ms, turn.now);
        let to = attempt_ref(live);
        turn.send_to_session(
            CommitDependency::Task(live.id()),
            session,
            DaemonMessage::LeaseConfirmed {
                to,
                granted_ms,
                expires_at,
            },
        );
    }
}

/// Answers a frame that was applied before. A repeated completion that was refused gets the
/// refusal again, because the daemon has not received it.
fn answer_repeated_frame(live: &LiveTask, from: FrameOrigin, turn: &mut CoreTurn<'_>) {
    let newest = live.newest_attempt();
    let refused = newest.refused_completion_seq == Some(from.control_seq);
    if refused && newest.control_seq == from.control_seq {
        reject_unmet_contract(live, from, turn);
    } else {
        send_ack(from, live.ackable_seq, turn);
    }
}

fn record_refused_completion(live: &mut LiveTask, control_seq: u64) {
    live.newest_attempt_mut().refused_completion_seq = Some(control_seq);
    record_unmet_contract(live);
}

/// Records a completion that lacks required files, with the receipts that were reported.
pub(crate) fn record_unmet_contract(live: &mut LiveTask) {
    let unmet = completion_contract::unmet_task_requirements(&live.spec, live.newest_attempt());
    let mut summary = completion_contract::unmet_summary(&unmet);
    size_limits::clip(&mut summary, size_limits::MAX_NOTE_BYTES);
    let missing = completion_contract::unmet_bits(&unmet);
    live.add_event(
        TimelineEventKind::CompletionRefused { missing },
        Some(summary),
    );
}

/// Rejects the completion with every missing file. The attempt stays leased, and its timers
/// run.
fn reject_unmet_contract(live: &LiveTask, from: FrameOrigin, turn: &mut CoreTurn<'_>) {
    let unmet = completion_contract::unmet_task_requirements(&live.spec, live.newest_attempt());
    reject_frame_with(from, Rejection::ContractUnmet, None, unmet, turn);
}

/// Records the first phase regression of an attempt for later diagnosis. Repetitions write
/// nothing.
fn record_phase_regression(live: &mut LiveTask, phase: Option<LifecyclePhase>) {
    let Some(phase) =
        phase.filter(|_| !has_phase_regression(live.record(), live.newest_attempt().id))
    else {
        return;
    };
    live.add_event(TimelineEventKind::PhaseRegression(phase), None);
}

/// Whether a phase of this attempt was reported twice or out of order, as far as the timeline
/// reaches.
pub(crate) fn has_phase_regression(record: &TaskRecord, attempt: AttemptId) -> bool {
    let mut events = record.timeline.events.iter();
    events.any(|event| {
        event.attempt == Some(attempt)
            && matches!(event.kind, TimelineEventKind::PhaseRegression(_))
    })
}

pub(crate) fn record_cancel_delivered(live: &mut LiveTask, now: WallTime) {
    if live
        .record()
        .cancel
        .as_ref()
        .is_none_or(|cancel| cancel.delivered.is_some())
    {
        return;
    }
    if let Some(cancel) = &mut live.record_mut().cancel {
        cancel.delivered = Some(now);
    }
    live.add_event(TimelineEventKind::CancelDelivered, None);
}
