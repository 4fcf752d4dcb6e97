//! Frames of daemons: who may speak, in what order, and what each means. Fencing is here and only here.
//!
//! Order of the checks: the session is current, the incarnation is ours, the attempt exists and is this daemon's,
//! the proof matches, the number was not applied yet, it is leased, the lease has not expired, no number is missing;
//! only then does the machine judge the body. The first check that fails names the code, and nothing is written.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::attempt::machine::{EventOutcome, MachineEvent, RuleAnswer};
use crate::attempt::timers::TimerKey;
use crate::core_state::{Core, CoreTurn};
use crate::goal::completion_contract;
use crate::goal::completion_contract::UnmetRequirement;
use crate::goal::permission_rules;
use crate::ids::{AttemptId, DaemonId, InputId, SessionId};
use crate::io::command::{
    AttemptFrame, CompletedBody, FrameBody, FrameRef, LeaseToken, OutputActivity,
};
use crate::io::effects::{CommitDependency, CoreMetric, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::record::{
    AttemptRecord, AttemptState, InputKind, InputRecord, InputState, LifecyclePhase, OpenTool,
    TaskRecord, TimelineEventKind, WorkspaceReport,
};
use crate::task::live_task::{LiveTask, wall_time_at};
use crate::task::size_limits;
use crate::task::spec::TaskSpec;
use crate::time::WallTime;

/// Where an answer to a frame goes.
#[derive(Clone, Copy)]
pub(crate) struct FrameOrigin {
    pub(crate) session: SessionId,
    pub(crate) daemon: DaemonId,
    pub(crate) frame_ref: FrameRef,
    pub(crate) control_seq: u64,
}

impl Core {
    pub(crate) fn handle_frame(&mut self, mut frame: AttemptFrame, turn: &mut CoreTurn<'_>) {
        size_limits::clip_body(&mut frame.body);
        if let Some(workspace) = &mut frame.workspace {
            size_limits::clip_workspace(workspace);
        }
        let Some(daemon) = self.roster.daemon_of(frame.session) else {
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
        if frame.frame_ref.incarnation != self.config.incarnation && !mutant!(IncarnationIgnored) {
            return reject_frame(from, Rejection::StaleIncarnation, turn);
        }
        if let Some(mut live) = self.tasks.remove(&frame.frame_ref.task) {
            self.handle_live_frame(&mut live, from, frame, turn);
            self.put_back_task(live, turn);
        } else if let Some(finished) = frame.finished.clone() {
            self.handle_finished_frame(finished, from, frame, turn);
        } else {
            reject_frame(from, Rejection::UnknownAttempt, turn);
        }
    }

    fn handle_live_frame(
        &mut self,
        live: &mut LiveTask,
        from: FrameOrigin,
        frame: AttemptFrame,
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
            // The frame lost the race against the clock; the sweep would say the same a moment later.
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
            // Its number is not used up: it comes again behind the output.
            return reject_frame(from, Rejection::OutputGap, turn);
        }
        self.apply_next_frame(live, from, frame, turn);
    }

    fn apply_next_frame(
        &mut self,
        live: &mut LiveTask,
        from: FrameOrigin,
        frame: AttemptFrame,
        turn: &mut CoreTurn<'_>,
    ) {
        let AttemptFrame {
            body,
            stored_progress: known,
            observed,
            workspace,
            ..
        } = frame;
        let FrameBody::Goal(word) = body else {
            return self.apply_machine_frame(live, from, body, (observed, workspace), turn);
        };
        let before = turn.effects.deliveries.len();
        match self.apply_goal_report(live, word, known, Some(from.control_seq), turn) {
            Ok(_) => {
                send_ack(from, from.control_seq, turn);
                // Ahead of what follows from it: a block ends the attempt, and who has ended hears nothing more.
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
        let words = if let FrameBody::Phase { message, .. } = &body {
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
        let ruled = if let MachineEvent::InputAsked(input, Some(ruled)) = &event {
            Some((input.id, Arc::clone(&ruled.rule_text)))
        } else {
            None
        };
        match self.apply_frame_event(
            live,
            event,
            // A daemon that tells no time sends none, which decodes as zero.
            Some(observed).filter(|observed| observed.0 > 0),
            Some(from.control_seq),
            turn,
        ) {
            EventOutcome::Applied => {
                live.set_event_message(words);
                if let Some((input, rule)) = ruled {
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

    /// The third of the three steps.
    fn confirm_lease(&mut self, live: &mut LiveTask, session: SessionId, turn: &mut CoreTurn<'_>) {
        let granted_ms = live.spec.lease_ttl_ms;
        // Also where settlement had confirmed it already: the worker counts from the send of this frame.
        live.renew_lease(
            turn.now.monotonic + granted_ms,
            &self.config,
            turn.now.monotonic,
        );
        let pace_ms = self.config.heartbeat_ms_for(granted_ms);
        self.roster
            .shorten_heartbeat(session, pace_ms, turn.now.monotonic);
        let expires_at = wall_time_at(turn.now.monotonic + granted_ms, turn.now);
        let to = self.attempt_ref(live);
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

    pub(crate) fn handle_activity(&mut self, activity: OutputActivity, turn: &mut CoreTurn<'_>) {
        let Some(daemon) = self.roster.daemon_of(activity.session) else {
            return;
        };
        let re = activity.frame_ref;
        let Some(mut live) = self.tasks.remove(&re.task) else {
            return;
        };
        let newest = live.newest_attempt();
        let named = newest.id == re.attempt && is_owned_by(newest, daemon);
        let own = (named || mutant!(OutputUnfenced)) && re.incarnation == self.config.incarnation;
        if own && newest.state.is_leased() && !newest.state.eq(&AttemptState::Offered) {
            let event = MachineEvent::Output {
                sign: activity.signal,
                tools: activity.tools,
                end: activity.output_end,
            };
            self.apply_event(&mut live, event, None, turn);
        }
        self.put_back_task(live, turn);
    }
}

/// A frame that was heard before. Whoever sends a refused completion again has not heard that it was.
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

/// A completion without its files is on record, with the receipts that were seen.
pub(crate) fn record_unmet_contract(live: &mut LiveTask) {
    let unmet = completion_contract::unmet_task_requirements(&live.spec, live.newest_attempt());
    let mut words = completion_contract::unmet_summary(&unmet);
    size_limits::clip(&mut words, size_limits::MAX_NOTE_BYTES);
    let missing = completion_contract::unmet_bits(&unmet);
    live.add_event(
        TimelineEventKind::CompletionRefused { missing },
        Some(words),
    );
}

/// Names every file that is missing. The attempt stays leased, and its timers run.
fn reject_unmet_contract(live: &LiveTask, from: FrameOrigin, turn: &mut CoreTurn<'_>) {
    let unmet = completion_contract::unmet_task_requirements(&live.spec, live.newest_attempt());
    reject_frame_with(from, Rejection::ContractUnmet, None, unmet, turn);
}

fn is_owned_by(attempt: &AttemptRecord, daemon: DaemonId) -> bool {
    attempt
        .daemon_holder()
        .is_some_and(|holder| holder.daemon == daemon || mutant!(ForeignFrameTaken))
}

/// Exists and owned, then proof. A foreign one looks unknown on the wire; the count knows better.
pub(crate) fn check_owner(
    live: &LiveTask,
    from: FrameOrigin,
    proof: Option<&LeaseToken>,
    turn: &mut CoreTurn<'_>,
) -> Result<(), Rejection> {
    let named = live.record().attempt(from.frame_ref.attempt);
    let Some(attempt) = named.filter(|attempt| attempt.number == from.frame_ref.number) else {
        return Err(Rejection::UnknownAttempt);
    };
    if !is_owned_by(attempt, from.daemon) {
        turn.effects.metrics.push(CoreMetric::ForeignAttempt {
            daemon: from.daemon,
        });
        return Err(Rejection::UnknownAttempt);
    }
    match proof {
        // A parked attempt has no lease to prove; its holder may still send the receipt.
        Some(token) if attempt.lease.is_some() && !matches_token(attempt, token) => {
            Err(Rejection::BadProof)
        }
        Some(_) | None => Ok(()),
    }
}

/// In constant time: how much of a token is right must not show.
pub(crate) fn matches_token(attempt: &AttemptRecord, token: &LeaseToken) -> bool {
    let hash = token_hash(token);
    attempt
        .lease
        .as_ref()
        .is_some_and(|lease| lease.token_hash.ct_eq(&hash).into() || mutant!(ProofIgnored))
}

pub(crate) fn token_hash(token: &LeaseToken) -> [u8; 32] {
    Sha256::digest(token.0).into()
}

pub(crate) fn send_ack(from: FrameOrigin, control_seq: u64, turn: &mut CoreTurn<'_>) {
    let message = DaemonMessage::Ack {
        attempt: from.frame_ref.attempt,
        control_seq,
    };
    let after =
        CommitDependency::Task(from.frame_ref.task).unless_broken(mutant!(AckBeforePersist));
    turn.send_to_session(after, from.session, message);
}

pub(crate) fn reject_frame(from: FrameOrigin, code: Rejection, turn: &mut CoreTurn<'_>) {
    reject_frame_with(from, code, None, Vec::new(), turn);
}

fn reject_frame_with(
    from: FrameOrigin,
    code: Rejection,
    expected: Option<u64>,
    unmet: Vec<UnmetRequirement>,
    turn: &mut CoreTurn<'_>,
) {
    turn.effects.metrics.push(CoreMetric::FrameRejected(code));
    let (attempt, control_seq) = (from.frame_ref.attempt, from.control_seq);
    let message = DaemonMessage::FrameRejected {
        attempt,
        control_seq,
        code,
        expected,
        unmet,
    };
    // A refusal may speak of an end that is not durable yet, and a daemon forgets what was refused.
    turn.send_to_session(
        CommitDependency::Task(from.frame_ref.task),
        from.session,
        message,
    );
}

/// None for what no attempt hears: words of a newer protocol, and words about the goal.
pub(crate) fn frame_event(body: FrameBody, spec: &TaskSpec, now: WallTime) -> Option<MachineEvent> {
    Some(match body {
        FrameBody::Accepted => MachineEvent::Accepted,
        FrameBody::Rejected { code, message } => MachineEvent::Rejected { code, message },
        FrameBody::Started => MachineEvent::Phase(LifecyclePhase::Started),
        FrameBody::Phase {
            phase: LifecyclePhase::CleanupStarted,
            deadline: Some(timer),
            ..
        } => MachineEvent::DaemonDeadline(timer),
        FrameBody::Phase { phase, .. } => MachineEvent::Phase(phase),
        FrameBody::ToolStarted { id, name } => MachineEvent::ToolStarted(OpenTool { id, name }),
        FrameBody::ToolFinished { id } => MachineEvent::ToolFinished(id),
        FrameBody::PermissionRequest {
            input,
            tool_name,
            arguments,
            payload,
        } => {
            let asked = input_record(input, InputKind::Permission, payload, &arguments, now);
            let ruled = permission_rules::find_rule(&spec.permission_rules, &tool_name, &arguments);
            let asked = InputRecord {
                tool_name: Some(tool_name),
                ..asked
            };
            MachineEvent::InputAsked(
                Box::new(asked),
                ruled.and_then(|said| RuleAnswer::from_rule(spec, said)),
            )
        }
        FrameBody::Question { input, payload } => {
            let shown = Arc::clone(&payload);
            let asked = input_record(input, InputKind::Question, payload, &shown, now);
            MachineEvent::InputAsked(Box::new(asked), None)
        }
        FrameBody::InputWithdrawn { input } => MachineEvent::InputWithdrawn(input),
        FrameBody::InputReceived { input } => MachineEvent::InputReceived(input),
        FrameBody::Completed(completed) => completion_event(completed, spec),
        FrameBody::Errored(errored) => MachineEvent::Errored(errored),
        FrameBody::Canceled(canceled) => MachineEvent::Canceled(canceled),
        FrameBody::Released {
            reason,
            termination,
        } => MachineEvent::Released {
            reason,
            termination,
        },
        FrameBody::Receipt { termination } => MachineEvent::Receipt(termination),
        // Words about the goal go another way.
        FrameBody::Goal(_) | FrameBody::Unknown => return None,
    })
}

/// A result counts only with every file that the contract asks for.
fn completion_event(completed: CompletedBody, spec: &TaskSpec) -> MachineEvent {
    if completion_contract::judge_found(spec, &completed.artifacts).is_empty() {
        MachineEvent::Completed(completed)
    } else {
        MachineEvent::ContractUnmet(completed)
    }
}

/// Output before a result that the relay neither has nor knows to be gone.
pub(crate) fn lacks_output(body: &FrameBody) -> bool {
    let missing = matches!(body, FrameBody::Completed(body) if body.output_missing > 0);
    missing && !mutant!(OutputGapTaken)
}

fn input_record(
    id: InputId,
    kind: InputKind,
    payload: Arc<[u8]>,
    shown: &[u8],
    asked: WallTime,
) -> InputRecord {
    InputRecord {
        id,
        kind,
        state: InputState::Open,
        payload,
        tool_name: None,
        asked,
        digest: Sha256::digest(shown).into(),
    }
}

/// On record the first time, for whoever wonders about the attempt; a daemon that says it again and again writes nothing.
fn record_phase_regression(live: &mut LiveTask, phase: Option<LifecyclePhase>) {
    let Some(phase) =
        phase.filter(|_| !has_phase_regression(live.record(), live.newest_attempt().id))
    else {
        return;
    };
    live.add_event(TimelineEventKind::PhaseRegression(phase), None);
}

/// Whether a phase of this attempt came twice or backwards, as far as the timeline goes.
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

/// Whether a body ends the attempt, and if so whether it proves that its processes are gone.
pub(crate) fn proof_of_death(body: &FrameBody) -> Option<bool> {
    match body {
        FrameBody::Completed(body) => Some(body.termination.group_empty),
        FrameBody::Errored(body) => Some(body.termination.group_empty),
        FrameBody::Canceled(body) => Some(body.termination.group_empty),
        FrameBody::Released { termination, .. } | FrameBody::Receipt { termination } => {
            Some(termination.group_empty)
        }
        // Never started: nothing can be left.
        FrameBody::Rejected { .. } => Some(true),
        FrameBody::Accepted
        | FrameBody::Started
        | FrameBody::Phase { .. }
        | FrameBody::ToolStarted { .. }
        | FrameBody::ToolFinished { .. }
        | FrameBody::PermissionRequest { .. }
        | FrameBody::Question { .. }
        | FrameBody::InputWithdrawn { .. }
        | FrameBody::InputReceived { .. }
        | FrameBody::Goal(_)
        | FrameBody::Unknown => None,
    }
}
