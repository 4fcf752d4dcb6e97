//! Frames of daemons: who may speak, in what order, and what each means. Fencing is here and only here.
//!
//! Order of the checks: the session is current, the incarnation is ours, the attempt exists and is this daemon's,
//! the proof matches, the number was not applied yet, it is leased, the lease has not expired, no number is missing;
//! only then does the machine judge the body. The first check that fails names the code, and nothing is written.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::attempt::{Event, Outcome, Ruled};
use crate::bounds;
use crate::contract::{self, Unmet};
use crate::core::{Core, Turn};
use crate::effects::{After, Count, Downstream};
use crate::id::{AttemptId, DaemonId, InputId, SessionId};
use crate::input::{Activity, Completed, Frame, FrameBody, FrameRef, LeaseToken};
use crate::live::{Live, wall_of};
use crate::record::{
    AttemptRecord, EventKind, InputKind, InputRecord, InputState, OpenTool, Phase, State,
    TaskRecord, Workspace,
};
use crate::reject::Rejection;
use crate::rules;
use crate::spec::TaskSpec;
use crate::time::Wall;
use crate::timers::TimerKey;

/// Where an answer to a frame goes.
#[derive(Clone, Copy)]
pub(crate) struct From {
    pub(crate) session: SessionId,
    pub(crate) daemon: DaemonId,
    pub(crate) re: FrameRef,
    pub(crate) control_seq: u64,
}

impl Core {
    pub(crate) fn frame(&mut self, mut frame: Frame, turn: &mut Turn<'_>) {
        bounds::clip_body(&mut frame.body);
        if let Some(workspace) = &mut frame.workspace {
            bounds::clip_workspace(workspace);
        }
        let Some(daemon) = self.roster.daemon_of(frame.session) else {
            turn.fx
                .counts
                .push(Count::FrameRejected(Rejection::UnknownSession));
            return;
        };
        let from = From {
            session: frame.session,
            daemon,
            re: frame.re,
            control_seq: frame.control_seq,
        };
        if frame.re.incarnation != self.config.incarnation && !mutant!(IncarnationIgnored) {
            return reject(from, Rejection::StaleIncarnation, turn);
        }
        if let Some(mut live) = self.tasks.remove(&frame.re.task) {
            self.live_frame(&mut live, from, frame, turn);
            self.keep(live, turn);
        } else if let Some(finished) = frame.finished.clone() {
            self.finished_frame(finished, from, frame, turn);
        } else {
            reject(from, Rejection::UnknownAttempt, turn);
        }
    }

    fn live_frame(&mut self, live: &mut Live, from: From, frame: Frame, turn: &mut Turn<'_>) {
        if let Err(code) = check_owner(live, from, frame.proof.as_ref(), turn) {
            return reject(from, code, turn);
        }
        let current = live.newest().id == from.re.attempt && live.is_newest_leased();
        if current && live.lease_ends().is_some_and(|ends| ends <= turn.now.at) {
            // The frame lost the race against the clock; the sweep would say the same a moment later.
            self.apply(live, Event::Expired(TimerKey::Lease), None, turn);
        }
        let stale = live.newest().id != from.re.attempt || !live.is_newest_leased();
        let unfenced = mutant!(CompleteUnfenced) && matches!(frame.body, FrameBody::Completed(_));
        if stale && !unfenced {
            return self.stale_frame(live, from, frame, turn);
        }
        let applied = live.newest().control_seq;
        if from.control_seq <= applied && !mutant!(DuplicateTaken) {
            return known_frame(live, from, turn);
        }
        if from.control_seq > applied + 1 && !mutant!(GapTaken) {
            return reject_with(from, Rejection::Gap, Some(applied + 1), Vec::new(), turn);
        }
        if lacks_output(&frame.body) {
            // Its number is not used up: it comes again behind the output.
            return reject(from, Rejection::OutputGap, turn);
        }
        self.next_frame(live, from, frame, turn);
    }

    fn next_frame(&mut self, live: &mut Live, from: From, frame: Frame, turn: &mut Turn<'_>) {
        let Frame {
            body,
            known,
            observed,
            workspace,
            ..
        } = frame;
        let FrameBody::Goal(word) = body else {
            return self.machine_frame(live, from, body, (observed, workspace), turn);
        };
        let before = turn.fx.sends.len();
        match self.holder_says(live, word, known, Some(from.control_seq), turn) {
            Ok(_) => {
                ack(from, from.control_seq, turn);
                // Ahead of what follows from it: a block ends the attempt, and who has ended hears nothing more.
                turn.fx.sends[before..].rotate_right(1);
            }
            Err(code) => {
                live.use_up(from.control_seq);
                reject(from, code, turn);
            }
        }
    }

    fn machine_frame(
        &mut self,
        live: &mut Live,
        from: From,
        body: FrameBody,
        (observed, workspace): (Wall, Option<Box<Workspace>>),
        turn: &mut Turn<'_>,
    ) {
        let accepts = matches!(body, FrameBody::Accepted);
        let words = if let FrameBody::Phase { message, .. } = &body {
            message.clone()
        } else {
            None
        };
        let Some(event) = event_of(body, &live.spec, turn.now.wall) else {
            turn.fx.counts.push(Count::UnknownFrame);
            return live.use_up(from.control_seq);
        };
        let cancels = matches!(
            event,
            Event::Phase(Phase::CleanupStarted) | Event::OwnDeadline(_)
        );
        let regressed = if let Event::Phase(phase) = &event {
            Some(*phase)
        } else {
            None
        };
        let ruled = if let Event::InputAsked(input, Some(ruled)) = &event {
            Some((input.id, Arc::clone(&ruled.words)))
        } else {
            None
        };
        match self.apply_numbered(
            live,
            event,
            // A daemon that tells no time sends none, which decodes as zero.
            Some(observed).filter(|observed| observed.0 > 0),
            Some(from.control_seq),
            turn,
        ) {
            Outcome::Applied => {
                live.annotate(words);
                if let Some((input, rule)) = ruled {
                    live.annotate(Some(rule));
                    self.send_answer(live, input, turn);
                }
                live.note_workspace(from.re.attempt, workspace);
                if cancels {
                    note_delivered(live, turn.now.wall);
                }
                if accepts {
                    self.confirm_lease(live, from.session, turn);
                }
                ack(from, from.control_seq, turn);
            }
            Outcome::Ignored | Outcome::Late => live.use_up(from.control_seq),
            Outcome::Regressed => {
                turn.fx.counts.push(Count::PhaseRegression);
                live.use_up(from.control_seq);
                note_regression(live, regressed);
            }
            Outcome::Refused(Rejection::ContractUnmet) => {
                live.use_up(from.control_seq);
                note_refusal(live, from.control_seq);
                refuse_unmet(live, from, turn);
            }
            Outcome::Refused(code) => {
                live.use_up(from.control_seq);
                reject(from, code, turn);
            }
        }
    }

    /// The third of the three steps.
    fn confirm_lease(&mut self, live: &mut Live, session: SessionId, turn: &mut Turn<'_>) {
        let granted_ms = live.spec.lease_ttl_ms;
        // Also where settlement had confirmed it already: the worker counts from the send of this frame.
        live.renew(turn.now.at + granted_ms, &self.config, turn.now.at);
        let pace_ms = self.config.heartbeat_for(granted_ms);
        self.roster.quicken(session, pace_ms, turn.now.at);
        let expires_at = wall_of(turn.now.at + granted_ms, turn.now);
        let to = self.attempt_ref(live);
        turn.tell(
            After::Task(live.id()),
            session,
            Downstream::LeaseConfirmed {
                to,
                granted_ms,
                expires_at,
            },
        );
    }

    pub(crate) fn activity(&mut self, activity: Activity, turn: &mut Turn<'_>) {
        let Some(daemon) = self.roster.daemon_of(activity.session) else {
            return;
        };
        let re = activity.re;
        let Some(mut live) = self.tasks.remove(&re.task) else {
            return;
        };
        let newest = live.newest();
        let named = newest.id == re.attempt && owns(newest, daemon);
        let own = (named || mutant!(OutputUnfenced)) && re.incarnation == self.config.incarnation;
        if own && newest.state.is_leased() && !newest.state.eq(&State::Offered) {
            let event = Event::Output {
                sign: activity.sign,
                tools: activity.tools,
                end: activity.output_end,
            };
            self.apply(&mut live, event, None, turn);
        }
        self.keep(live, turn);
    }
}

/// A frame that was heard before. Whoever sends a refused completion again has not heard that it was.
fn known_frame(live: &Live, from: From, turn: &mut Turn<'_>) {
    let newest = live.newest();
    let refused = newest.refused_seq == Some(from.control_seq);
    if refused && newest.control_seq == from.control_seq {
        refuse_unmet(live, from, turn);
    } else {
        ack(from, live.written_seq, turn);
    }
}

fn note_refusal(live: &mut Live, control_seq: u64) {
    live.newest_mut().refused_seq = Some(control_seq);
    note_unmet(live);
}

/// A completion without its files is on record, with the receipts that were seen.
pub(crate) fn note_unmet(live: &mut Live) {
    let unmet = contract::unmet(&live.spec, live.newest());
    let mut words = contract::words(&unmet);
    bounds::clip(&mut words, bounds::NOTE_BYTES);
    let missing = contract::places(&unmet);
    live.note(EventKind::CompletionRefused { missing }, Some(words));
}

/// Names every file that is missing. The attempt stays leased, and its timers run.
fn refuse_unmet(live: &Live, from: From, turn: &mut Turn<'_>) {
    let unmet = contract::unmet(&live.spec, live.newest());
    reject_with(from, Rejection::ContractUnmet, None, unmet, turn);
}

fn owns(attempt: &AttemptRecord, daemon: DaemonId) -> bool {
    attempt
        .daemon()
        .is_some_and(|holder| holder.daemon == daemon || mutant!(ForeignFrameTaken))
}

/// Exists and owned, then proof. A foreign one looks unknown on the wire; the count knows better.
pub(crate) fn check_owner(
    live: &Live,
    from: From,
    proof: Option<&LeaseToken>,
    turn: &mut Turn<'_>,
) -> Result<(), Rejection> {
    let named = live.record().attempt(from.re.attempt);
    let Some(attempt) = named.filter(|attempt| attempt.number == from.re.number) else {
        return Err(Rejection::UnknownAttempt);
    };
    if !owns(attempt, from.daemon) {
        turn.fx.counts.push(Count::ForeignAttempt {
            daemon: from.daemon,
        });
        return Err(Rejection::UnknownAttempt);
    }
    match proof {
        // A parked attempt has no lease to prove; its holder may still send the receipt.
        Some(token) if attempt.lease.is_some() && !proves(attempt, token) => {
            Err(Rejection::BadProof)
        }
        Some(_) | None => Ok(()),
    }
}

/// In constant time: how much of a token is right must not show.
pub(crate) fn proves(attempt: &AttemptRecord, token: &LeaseToken) -> bool {
    let hash = token_hash(token);
    attempt
        .lease
        .as_ref()
        .is_some_and(|lease| lease.token_hash.ct_eq(&hash).into() || mutant!(ProofIgnored))
}

pub(crate) fn token_hash(token: &LeaseToken) -> [u8; 32] {
    Sha256::digest(token.0).into()
}

pub(crate) fn ack(from: From, control_seq: u64, turn: &mut Turn<'_>) {
    let message = Downstream::Ack {
        attempt: from.re.attempt,
        control_seq,
    };
    let after = After::Task(from.re.task).unless(mutant!(AckBeforePersist));
    turn.tell(after, from.session, message);
}

pub(crate) fn reject(from: From, code: Rejection, turn: &mut Turn<'_>) {
    reject_with(from, code, None, Vec::new(), turn);
}

fn reject_with(
    from: From,
    code: Rejection,
    expected: Option<u64>,
    unmet: Vec<Unmet>,
    turn: &mut Turn<'_>,
) {
    turn.fx.counts.push(Count::FrameRejected(code));
    let (attempt, control_seq) = (from.re.attempt, from.control_seq);
    let message = Downstream::FrameRejected {
        attempt,
        control_seq,
        code,
        expected,
        unmet,
    };
    // A refusal may speak of an end that is not durable yet, and a daemon forgets what was refused.
    turn.tell(After::Task(from.re.task), from.session, message);
}

/// None for what no attempt hears: words of a newer protocol, and words about the goal.
pub(crate) fn event_of(body: FrameBody, spec: &TaskSpec, now: Wall) -> Option<Event> {
    Some(match body {
        FrameBody::Accepted => Event::Accepted,
        FrameBody::Rejected { code, message } => Event::Rejected { code, message },
        FrameBody::Started => Event::Phase(Phase::Started),
        FrameBody::Phase {
            phase: Phase::CleanupStarted,
            deadline: Some(timer),
            ..
        } => Event::OwnDeadline(timer),
        FrameBody::Phase { phase, .. } => Event::Phase(phase),
        FrameBody::ToolStarted { id, name } => Event::ToolStarted(OpenTool { id, name }),
        FrameBody::ToolFinished { id } => Event::ToolFinished(id),
        FrameBody::PermissionRequest {
            input,
            tool_name,
            arguments,
            payload,
        } => {
            let asked = input_record(input, InputKind::Permission, payload, &arguments, now);
            let ruled = rules::decide(&spec.permission_rules, &tool_name, &arguments);
            let asked = InputRecord {
                tool_name: Some(tool_name),
                ..asked
            };
            Event::InputAsked(
                Box::new(asked),
                ruled.and_then(|said| Ruled::of(spec, said)),
            )
        }
        FrameBody::Question { input, payload } => {
            let shown = Arc::clone(&payload);
            let asked = input_record(input, InputKind::Question, payload, &shown, now);
            Event::InputAsked(Box::new(asked), None)
        }
        FrameBody::InputWithdrawn { input } => Event::InputWithdrawn(input),
        FrameBody::InputReceived { input } => Event::InputReceived(input),
        FrameBody::Completed(completed) => completion(completed, spec),
        FrameBody::Errored(errored) => Event::Errored(errored),
        FrameBody::Canceled(canceled) => Event::Canceled(canceled),
        FrameBody::Released {
            reason,
            termination,
        } => Event::Released {
            reason,
            termination,
        },
        FrameBody::Receipt { termination } => Event::Receipt(termination),
        // Words about the goal go another way.
        FrameBody::Goal(_) | FrameBody::Unknown => return None,
    })
}

/// A result counts only with every file that the contract asks for.
fn completion(completed: Completed, spec: &TaskSpec) -> Event {
    if contract::judge_found(spec, &completed.artifacts).is_empty() {
        Event::Completed(completed)
    } else {
        Event::Unmet(completed)
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
    asked: Wall,
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
fn note_regression(live: &mut Live, phase: Option<Phase>) {
    let Some(phase) = phase.filter(|_| !has_regressed(live.record(), live.newest().id)) else {
        return;
    };
    live.note(EventKind::PhaseRegression(phase), None);
}

/// Whether a phase of this attempt came twice or backwards, as far as the timeline goes.
pub(crate) fn has_regressed(record: &TaskRecord, attempt: AttemptId) -> bool {
    let mut events = record.timeline.events.iter();
    events.any(|event| {
        event.attempt == Some(attempt) && matches!(event.kind, EventKind::PhaseRegression(_))
    })
}

pub(crate) fn note_delivered(live: &mut Live, now: Wall) {
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
    live.note(EventKind::CancelDelivered, None);
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
