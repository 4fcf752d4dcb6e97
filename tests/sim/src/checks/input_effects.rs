//! Checks the effects of one input of the relay against the state before it: who may change
//! what (S3), what a Hello must settle, and what a machine's boot id proves.

use std::sync::Arc;

use baton_core::ids::{AttemptId, DaemonId, SessionId, TaskId};
use baton_core::io::command::CoreInput;
use baton_core::io::effects::{AttemptSettlement, DaemonMessage, SettlementVerdict};
use baton_core::io::session_input::{
    ActiveAttemptState, AttemptFrame, DaemonHello, FrameBody, FrameRef, OutputActivity,
    SessionInput,
};
use baton_core::record::{
    AttemptRecord, AttemptState as AttemptStage, FailureCode, PossibleRunner, TaskRecord,
};

use crate::checks::agent_calls::{RequestCheck, RequestProbe};
use crate::checks::late_result::LateResult;
use crate::checks::record_change;
use crate::clients::operators;
use crate::faults::replayed_frames::FORGED_TOKEN;
use crate::relay::sim_reply::{SimDelivery, SimEffects};
use crate::simulation::Simulation;
use crate::stream::SimStream;

/// The state before an input was handled.
#[derive(Debug, Default)]
pub(crate) struct StateBefore {
    frame: Option<FrameCheck>,
    hello: Option<HelloCheck>,
    late_result: Option<LateResult>,
    renewed_attempts: Vec<AttemptId>,
    pub(crate) operation: Option<operators::OperationCheck>,
    pub(crate) request: Option<RequestCheck>,
}

/// A frame or heartbeat of one attempt, and its task.
#[derive(Debug)]
struct FrameCheck {
    attempt: AttemptId,
    right: SpeakerRight,
    task: Arc<TaskRecord>,
    control_seq: Option<u64>,
    /// Its position in the worker's sequence, if its worker sent it.
    frame_number: Option<u64>,
    body: Option<FrameBody>,
}

#[derive(Debug)]
enum SpeakerRight {
    /// The sender has the lease.
    Leased,
    /// The sender has the lease, but the number is not the next: it may only cause the lease to
    /// expire.
    OutOfOrder,
    /// The attempt has ended: the rules for late frames apply.
    Stale,
    /// No sender with a right to this attempt sent it.
    NotEntitled(&'static str),
}

#[derive(Debug)]
struct HelloCheck {
    session: SessionId,
    daemon: DaemonId,
    boot_id: Arc<str>,
    /// The relay has another open stream of this daemon.
    takes_over: bool,
    /// A newer stream of this daemon was used before.
    is_superseded: bool,
    leased: Vec<(TaskId, AttemptId)>,
    finished: Vec<AttemptId>,
}

impl Simulation {
    pub(crate) fn state_before(
        &self,
        input: &CoreInput,
        nth: Option<u64>,
        probe: Option<RequestProbe>,
    ) -> StateBefore {
        let mut before = match input {
            CoreInput::Session(SessionInput::Frame(frame)) => StateBefore {
                frame: self.frame_check(frame, nth),
                late_result: self.late_result(frame),
                ..StateBefore::default()
            },
            CoreInput::Session(SessionInput::Activity(activity)) => StateBefore {
                frame: self.output_check(activity),
                ..StateBefore::default()
            },
            CoreInput::Session(SessionInput::Opened { session, hello }) => StateBefore {
                hello: Some(self.hello_check(*session, hello)),
                ..StateBefore::default()
            },
            CoreInput::Session(SessionInput::Heartbeat { heartbeat, .. }) => StateBefore {
                renewed_attempts: heartbeat.renewals.iter().map(|(a, _)| *a).collect(),
                ..StateBefore::default()
            },
            CoreInput::Session(
                SessionInput::Closed { .. }
                | SessionInput::ExtendLeases(_)
                | SessionInput::DeliveryFailed { .. },
            )
            | CoreInput::Command(_)
            | CoreInput::SuspendDispatch { .. }
            | CoreInput::Tick => StateBefore::default(),
        };
        match probe {
            Some(RequestProbe::Operation(operation)) => before.operation = Some(operation),
            Some(probe) => before.request = self.request_check(probe),
            None => {}
        }
        before
    }

    fn frame_check(&self, frame: &AttemptFrame, nth: Option<u64>) -> Option<FrameCheck> {
        let (task, attempt, right) = self.speaker_right(frame.session, frame.frame_ref)?;
        // A park removes the token's hash with the lease. Then the daemon's credential is the
        // proof, as without a token.
        let forged = frame.proof.as_ref() == Some(&FORGED_TOKEN) && attempt.lease.is_some();
        let right = match right {
            SpeakerRight::Leased | SpeakerRight::Stale if forged => {
                SpeakerRight::NotEntitled("with a forged token")
            }
            SpeakerRight::Leased if frame.control_seq != self.last_control_seq(attempt) + 1 => {
                SpeakerRight::OutOfOrder
            }
            SpeakerRight::Leased if lacks_output(&frame.body) => SpeakerRight::OutOfOrder,
            right => right,
        };
        Some(FrameCheck {
            attempt: attempt.id,
            right,
            task: Arc::clone(task),
            control_seq: Some(frame.control_seq),
            frame_number: nth,
            body: nth.map(|_| frame.body.clone()),
        })
    }

    /// Frames without an effect are not stored, but the relay has received them.
    fn last_control_seq(&self, attempt: &AttemptRecord) -> u64 {
        let heard = self.relay.heard_control_seqs.get(&attempt.id).copied();
        heard.unwrap_or_default().max(attempt.control_seq)
    }

    fn output_check(&self, activity: &OutputActivity) -> Option<FrameCheck> {
        let (task, attempt, right) = self.speaker_right(activity.session, activity.frame_ref)?;
        let right = match right {
            SpeakerRight::Stale => SpeakerRight::NotEntitled("of an attempt that is over"),
            right => right,
        };
        Some(FrameCheck {
            attempt: attempt.id,
            right,
            task: Arc::clone(task),
            control_seq: None,
            frame_number: None,
            body: None,
        })
    }

    pub(crate) fn may_send_frames(&self, session: SessionId, re: FrameRef) -> bool {
        let spoken = self.speaker_right(session, re);
        spoken.is_some_and(|(_, _, right)| !matches!(right, SpeakerRight::NotEntitled(_)))
    }

    /// The right of the sender, for this attempt.
    fn speaker_right(
        &self,
        session: SessionId,
        re: FrameRef,
    ) -> Option<(&Arc<TaskRecord>, &AttemptRecord, SpeakerRight)> {
        let task = self.relay.store.view.record(re.task)?;
        let attempt = task.attempt(re.attempt)?;
        let conn = self.streams.iter().rev().find(|c| c.session == session);
        let speaker = conn.map(|conn| self.daemons[conn.daemon].id);
        let holder = attempt.daemon_holder().map(|holder| holder.daemon);
        let right = if !self.is_current_session(session) {
            SpeakerRight::NotEntitled("on a stream that was replaced")
        } else if re.incarnation != self.relay.incarnation() {
            SpeakerRight::NotEntitled("of another life of the data")
        } else if holder != speaker {
            SpeakerRight::NotEntitled("of another daemon's attempt")
        } else if attempt.state.is_leased() {
            SpeakerRight::Leased
        } else {
            SpeakerRight::Stale
        };
        Some((task, attempt, right))
    }

    fn hello_check(&self, session: SessionId, hello: &DaemonHello) -> HelloCheck {
        let view = &self.relay.store.view;
        let open = view
            .live
            .values()
            .filter_map(|task| Some((task.task, task.newest_attempt()?)));
        let leased = open.filter(|(_, newest)| {
            let holder = newest.daemon_holder();
            newest.state.is_leased() && holder.is_some_and(|h| h.daemon == hello.daemon)
        });
        let finished = hello
            .active
            .iter()
            .filter(|a| a.state == ActiveAttemptState::Finished);
        let own = |conn: &&SimStream| self.daemons[conn.daemon].id == hello.daemon;
        let mut streams = self.streams.iter().filter(own);
        HelloCheck {
            session,
            daemon: hello.daemon,
            boot_id: Arc::clone(&hello.boot_id),
            takes_over: streams.clone().any(|conn| conn.is_current),
            is_superseded: streams.any(|conn| conn.was_current && conn.session > session),
            leased: leased.map(|(task, newest)| (task, newest.id)).collect(),
            finished: finished.map(|active| active.frame_ref.attempt).collect(),
        }
    }

    /// Tracks which streams the relay considers open.
    pub(crate) fn record_stream_changes(
        &mut self,
        closed: Option<SessionId>,
        effects: &SimEffects,
    ) {
        if let Some(session) = closed {
            self.set_stream_current(session, false);
        }
        for outgoing in &effects.deliveries {
            match &outgoing.delivery {
                SimDelivery::ToSession {
                    session,
                    message: DaemonMessage::Welcome { .. },
                } => self.set_stream_current(*session, true),
                SimDelivery::CloseSession { session, .. } => {
                    self.set_stream_current(*session, false)
                }
                SimDelivery::ToSession { .. }
                | SimDelivery::Reply { .. }
                | SimDelivery::Published { .. } => {}
            }
        }
    }

    fn set_stream_current(&mut self, session: SessionId, known: bool) {
        if let Some(conn) = self.streams.iter_mut().rev().find(|c| c.session == session) {
            conn.is_current = known;
            conn.was_current |= known;
        }
    }

    pub(crate) fn check_after_input(
        &mut self,
        before: StateBefore,
        welcome: Option<Vec<AttemptSettlement>>,
    ) {
        if let Some(word) = &before.frame {
            self.check_frame(word);
        }
        if let (Some(hello), Some(settled)) = (&before.hello, welcome) {
            self.check_hello(hello, &settled);
        }
        self.check_late_result(before.late_result);
        self.check_deadlines(&before.renewed_attempts);
    }

    fn check_frame(&mut self, word: &FrameCheck) {
        if let (SpeakerRight::Leased, Some(seq)) = (&word.right, word.control_seq) {
            self.relay.heard_control_seqs.insert(word.attempt, seq);
            self.check_frame_order(word);
        }
        let Some(after) = self.relay.store.view.record(word.task.task) else {
            return;
        };
        match word.right {
            SpeakerRight::Stale => {
                record_change::check_stale_frame(word.attempt, &word.task, after)
            }
            SpeakerRight::NotEntitled(why) => {
                assert_attempts_unchanged(&word.task, after, &|_| true, why)
            }
            SpeakerRight::OutOfOrder => {
                let expired = after.attempt(word.attempt).is_some_and(has_expired);
                assert_attempts_unchanged(&word.task, after, &|_| !expired, "out of order");
            }
            SpeakerRight::Leased => {
                let other = |attempt: &AttemptRecord| attempt.id != word.attempt;
                assert_attempts_unchanged(&word.task, after, &other, "of another attempt");
            }
        }
    }

    /// A worker skips no frame: every earlier one was received or is acknowledged. A rejected
    /// result is not acknowledged, but the relay has it in its records, and a duplicate of the
    /// next frame may arrive before it.
    fn check_frame_order(&mut self, word: &FrameCheck) {
        let (attempt, Some(nth)) = (word.attempt, word.frame_number) else {
            return;
        };
        let held = self.daemons.iter().find_map(|d| d.attempts.get(&attempt));
        let heard = &self.relay.heard_frames;
        let known = word.task.attempt(attempt);
        let missed = held.and_then(|held| {
            let refused = known.and_then(|known| known.refused_completion_seq);
            let refused = refused.and_then(|seq| held.sent_frames.get(&seq));
            let mut earlier = held.unacked_frames.range(..nth);
            earlier
                .find(|earlier| !heard.contains(&(attempt, **earlier)) && Some(*earlier) != refused)
        });
        assert!(
            missed.is_none(),
            "S10: word {nth} of {attempt} is heard, and {missed:?} never was"
        );
        self.relay.heard_frames.insert((attempt, nth));
        if let Some(body) = &word.body {
            self.check_final_output(attempt, body);
        }
    }

    pub(crate) fn may_send_output(&self, session: SessionId, re: FrameRef) -> bool {
        let spoken = self.speaker_right(session, re);
        spoken.is_some_and(|(_, _, right)| matches!(right, SpeakerRight::Leased))
    }

    /// Every attempt of this daemon continues because Hello listed it, or has ended, and none
    /// outlives its machine's boot.
    fn check_hello(&mut self, hello: &HelloCheck, settled: &[AttemptSettlement]) {
        let session = hello.session;
        assert!(!hello.is_superseded, "settlement: {session} came too late");
        let view = &self.relay.store.view;
        let still = |task: TaskId, attempt: AttemptId| {
            let attempt = view.attempt(task, attempt);
            attempt.is_some_and(|attempt| attempt.state.is_leased())
        };
        for (task, attempt) in hello.leased.iter().filter(|(t, a)| still(*t, *a)) {
            let goes_on = settled.iter().any(|one| {
                one.attempt == *attempt && !matches!(one.verdict, SettlementVerdict::Kill { .. })
            });
            assert!(
                goes_on,
                "settlement: {attempt} of {task} is leased to a daemon without it"
            );
        }
        let kept = settled
            .iter()
            .filter(|one| matches!(one.verdict, SettlementVerdict::Keep { .. }));
        for attempt in kept.map(|one| one.attempt) {
            let leased = view
                .find_attempt(attempt)
                .is_some_and(|a| a.state.is_leased());
            assert!(leased, "settlement: {attempt} is kept and holds no lease");
        }
        if hello.takes_over {
            self.mark_boot_unproven(hello);
        }
        let sure = |attempt: &AttemptId| !self.boot_proves_nothing.contains(attempt);
        let view = &self.relay.store.view;
        let mut fences = view.fences.values().filter(|fence| sure(&fence.attempt));
        let fence = fences.find(|f| match &f.runner {
            PossibleRunner::Machine { daemon, boot_id } => {
                *daemon == hello.daemon && *boot_id != hello.boot_id
            }
            PossibleRunner::Agent { .. } => false,
        });
        assert!(fence.is_none(), "settlement: a boot did not lift {fence:?}");
        for (task, attempt) in hello.leased.iter().filter(|(_, attempt)| sure(attempt)) {
            let leased = view
                .attempt(*task, *attempt)
                .filter(|a| a.state.is_leased());
            let Some(holder) = leased.and_then(|attempt| attempt.daemon_holder()) else {
                continue;
            };
            assert!(
                holder.boot_id == hello.boot_id || hello.finished.contains(attempt),
                "settlement: {attempt} outlives the boot of its machine, on {}",
                hello.session
            );
        }
    }

    /// A stream that replaces one that was active just now proves nothing by its boot id, now
    /// or later: two machines may share an identity.
    fn mark_boot_unproven(&mut self, hello: &HelloCheck) {
        let fences = self.relay.store.view.fences.values();
        let fenced = fences.filter(|fence| fence.runner.daemon() == Some(hello.daemon));
        let fenced: Vec<AttemptId> = fenced.map(|fence| fence.attempt).collect();
        self.boot_proves_nothing.extend(fenced);
        self.boot_proves_nothing
            .extend(hello.leased.iter().map(|(_, attempt)| attempt));
    }
}

/// The session reports that the result arrived before its output.
fn lacks_output(body: &FrameBody) -> bool {
    matches!(body, FrameBody::Completed(body) if body.output_missing > 0)
}

fn has_expired(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| end.failure_code == Some(FailureCode::LeaseExpired))
}

/// Queued attempts may be placed in the same turn; everything else is unchanged.
pub(crate) fn assert_attempts_unchanged(
    old: &TaskRecord,
    new: &TaskRecord,
    which: &dyn Fn(&AttemptRecord) -> bool,
    why: &str,
) {
    let waits = |attempt: &AttemptRecord| attempt.state == AttemptStage::Queued;
    for (was, is) in record_change::attempt_pairs(old, new) {
        let meant = which(was) && !waits(was);
        let same = (
            &was.state,
            was.furthest_phase,
            was.retry_safe,
            was.output_end,
        ) == (&is.state, is.furthest_phase, is.retry_safe, is.output_end);
        assert!(!meant || same, "S3: a word {why} changed {}", was.id);
    }
}
