//! Judges one input of the relay by what was known before it and what became of it: who may change what (S3), what a Hello
//! must settle, and what a machine's boot proves.

use std::sync::Arc;

use baton_core::effects::{Downstream, Effects, Send, Settlement, Verdict};
use baton_core::id::{AttemptId, DaemonId, SessionId, TaskId};
use baton_core::input::{ActiveState, Activity, Frame, FrameBody, FrameRef, Hello, Input};
use baton_core::record::{AttemptRecord, FailureCode, Runner, State as AttemptStage, TaskRecord};

use crate::calls::Asking;
use crate::checks;
use crate::ghosts::FORGED;
use crate::late::LateWord;
use crate::links::Conn;
use crate::operators;
use crate::world::World;

/// What was true before an input was handled.
#[derive(Debug, Default)]
pub(crate) struct Before {
    word: Option<Word>,
    hello: Option<Greeting>,
    late: Option<LateWord>,
    beats: Vec<AttemptId>,
    pub(crate) operated: Option<operators::Word>,
    pub(crate) asking: Option<Asking>,
}

/// A frame or a sign of life of one attempt, and its task.
#[derive(Debug)]
struct Word {
    attempt: AttemptId,
    right: Right,
    task: Arc<TaskRecord>,
    control_seq: Option<u64>,
    /// Which of its words it is, if its worker says it.
    nth: Option<u64>,
    body: Option<FrameBody>,
}

#[derive(Debug)]
enum Right {
    /// It speaks for its own lease.
    Leased,
    /// The same, but under a number that is not the next: it may only find that the lease has run out.
    OutOfOrder,
    /// Its attempt is over: the late rules apply.
    Stale,
    /// Nobody who may speak for it has said it.
    None(&'static str),
}

#[derive(Debug)]
struct Greeting {
    session: SessionId,
    daemon: DaemonId,
    boot_id: Arc<str>,
    /// The relay has another stream of this daemon that it takes for open.
    takes_over: bool,
    /// A newer stream of this daemon was heard before.
    overtaken: bool,
    leased: Vec<(TaskId, AttemptId)>,
    finished: Vec<AttemptId>,
}

impl World {
    pub(crate) fn before(&self, input: &Input, nth: Option<u64>) -> Before {
        match input {
            Input::Frame(frame) => Before {
                word: self.word_of(frame, nth),
                late: self.late_word(input),
                ..Before::default()
            },
            Input::Activity(activity) => Before {
                word: self.output_of(activity),
                ..Before::default()
            },
            Input::SessionOpened { session, hello } => Before {
                hello: Some(self.greeting(*session, hello)),
                ..Before::default()
            },
            Input::Operate(operate) => Before {
                operated: Some(operators::Word::of(operate)),
                ..Before::default()
            },
            Input::Heartbeat { heartbeat, .. } => Before {
                beats: heartbeat.renewals.iter().map(|(a, _)| *a).collect(),
                ..Before::default()
            },
            Input::Held(_)
            | Input::PickUp { .. }
            | Input::Resume { .. }
            | Input::ListParked { .. } => Before {
                asking: self.asking(input),
                ..Before::default()
            },
            Input::Submit(_)
            | Input::Start { .. }
            | Input::Claim { .. }
            | Input::Cancel { .. }
            | Input::Answer { .. }
            | Input::UpdateProgress { .. }
            | Input::Block { .. }
            | Input::PauseScheduler { .. }
            | Input::UnpauseScheduler { .. }
            | Input::SchedulerStatus { .. }
            | Input::OperateDaemon(_)
            | Input::ReleaseInherited { .. }
            | Input::Inspect { .. }
            | Input::ListDaemons { .. }
            | Input::FindDaemon { .. }
            | Input::RemoveFinished { .. }
            | Input::HoldDispatch { .. }
            | Input::ForgetDaemon { .. }
            | Input::ForgetDaemons { .. }
            | Input::SessionClosed { .. }
            | Input::Hold { .. }
            | Input::DeliveryFailed { .. }
            | Input::Tick => Before::default(),
        }
    }

    fn word_of(&self, frame: &Frame, nth: Option<u64>) -> Option<Word> {
        let (task, attempt, right) = self.speaks(frame.session, frame.re)?;
        // A park takes the hash of the token with the lease: then the daemon's own credential proves it, as without a token.
        let forged = frame.proof.as_ref() == Some(&FORGED) && attempt.lease.is_some();
        let right = match right {
            Right::Leased | Right::Stale if forged => Right::None("with a forged token"),
            Right::Leased if frame.control_seq != self.heard_seq(attempt) + 1 => Right::OutOfOrder,
            Right::Leased if lacks_output(&frame.body) => Right::OutOfOrder,
            right => right,
        };
        Some(Word {
            attempt: attempt.id,
            right,
            task: Arc::clone(task),
            control_seq: Some(frame.control_seq),
            nth,
            body: nth.map(|_| frame.body.clone()),
        })
    }

    /// Frames that change nothing are not written; the relay has heard them all the same.
    fn heard_seq(&self, attempt: &AttemptRecord) -> u64 {
        let heard = self.relay.heard.get(&attempt.id).copied();
        heard.unwrap_or_default().max(attempt.control_seq)
    }

    fn output_of(&self, activity: &Activity) -> Option<Word> {
        let (task, attempt, right) = self.speaks(activity.session, activity.re)?;
        let right = match right {
            Right::Stale => Right::None("of an attempt that is over"),
            right => right,
        };
        Some(Word {
            attempt: attempt.id,
            right,
            task: Arc::clone(task),
            control_seq: None,
            nth: None,
            body: None,
        })
    }

    pub(crate) fn may_speak(&self, session: SessionId, re: FrameRef) -> bool {
        let spoken = self.speaks(session, re);
        spoken.is_some_and(|(_, _, right)| !matches!(right, Right::None(_)))
    }

    /// Who says it, and of what.
    fn speaks(
        &self,
        session: SessionId,
        re: FrameRef,
    ) -> Option<(&Arc<TaskRecord>, &AttemptRecord, Right)> {
        let task = self.relay.store.view.record(re.task)?;
        let attempt = task.attempt(re.attempt)?;
        let conn = self.conns.iter().rev().find(|c| c.session == session);
        let speaker = conn.map(|conn| self.daemons[conn.daemon].id);
        let holder = attempt.daemon().map(|holder| holder.daemon);
        let right = if !self.is_current(session) {
            Right::None("on a stream that was replaced")
        } else if re.incarnation != self.relay.incarnation() {
            Right::None("of another life of the data")
        } else if holder != speaker {
            Right::None("of another daemon's attempt")
        } else if attempt.state.is_leased() {
            Right::Leased
        } else {
            Right::Stale
        };
        Some((task, attempt, right))
    }

    fn greeting(&self, session: SessionId, hello: &Hello) -> Greeting {
        let view = &self.relay.store.view;
        let open = view
            .live
            .values()
            .filter_map(|task| Some((task.task, task.newest()?)));
        let leased = open.filter(|(_, newest)| {
            let holder = newest.daemon();
            newest.state.is_leased() && holder.is_some_and(|h| h.daemon == hello.daemon)
        });
        let finished = hello
            .active
            .iter()
            .filter(|a| a.state == ActiveState::Finished);
        let own = |conn: &&Conn| self.daemons[conn.daemon].id == hello.daemon;
        let mut streams = self.conns.iter().filter(own);
        Greeting {
            session,
            daemon: hello.daemon,
            boot_id: Arc::clone(&hello.boot_id),
            takes_over: streams.clone().any(|conn| conn.known),
            overtaken: streams.any(|conn| conn.welcomed && conn.session > session),
            leased: leased.map(|(task, newest)| (task, newest.id)).collect(),
            finished: finished.map(|active| active.re.attempt).collect(),
        }
    }

    /// Follows which streams the relay takes for open.
    pub(crate) fn note_streams(&mut self, closed: Option<SessionId>, effects: &Effects) {
        if let Some(session) = closed {
            self.set_known(session, false);
        }
        for outgoing in &effects.sends {
            match &outgoing.send {
                Send::ToSession {
                    session,
                    message: Downstream::Welcome { .. },
                } => self.set_known(*session, true),
                Send::CloseSession { session, .. } => self.set_known(*session, false),
                Send::ToSession { .. } | Send::Reply { .. } | Send::Published { .. } => {}
            }
        }
    }

    fn set_known(&mut self, session: SessionId, known: bool) {
        if let Some(conn) = self.conns.iter_mut().rev().find(|c| c.session == session) {
            conn.known = known;
            conn.welcomed |= known;
        }
    }

    pub(crate) fn judge(&mut self, before: Before, welcome: Option<Vec<Settlement>>) {
        if let Some(word) = &before.word {
            self.judge_word(word);
        }
        if let (Some(hello), Some(settled)) = (&before.hello, welcome) {
            self.judge_hello(hello, &settled);
        }
        self.judge_late(before.late);
        self.judge_deadlines(&before.beats);
    }

    fn judge_word(&mut self, word: &Word) {
        if let (Right::Leased, Some(seq)) = (&word.right, word.control_seq) {
            self.relay.heard.insert(word.attempt, seq);
            self.judge_order(word);
        }
        let Some(after) = self.relay.store.view.record(word.task.task) else {
            return;
        };
        match word.right {
            Right::Stale => checks::stale_frame(word.attempt, &word.task, after),
            Right::None(why) => unchanged(&word.task, after, &|_| true, why),
            Right::OutOfOrder => {
                let expired = after.attempt(word.attempt).is_some_and(has_expired);
                unchanged(&word.task, after, &|_| !expired, "out of order");
            }
            Right::Leased => {
                let other = |attempt: &AttemptRecord| attempt.id != word.attempt;
                unchanged(&word.task, after, &other, "of another attempt");
            }
        }
    }

    /// A worker leaves nothing out: every word before this one was heard, or is acknowledged. A refused result is not
    /// acknowledged, and the relay knows it from its records all the same: a double of what follows may come before it does.
    fn judge_order(&mut self, word: &Word) {
        let (attempt, Some(nth)) = (word.attempt, word.nth) else {
            return;
        };
        let held = self.daemons.iter().find_map(|d| d.held.get(&attempt));
        let heard = &self.relay.heard_words;
        let known = word.task.attempt(attempt);
        let missed = held.and_then(|held| {
            let refused = known.and_then(|known| known.refused_seq);
            let refused = refused.and_then(|seq| held.spoken.get(&seq));
            let mut earlier = held.untold.range(..nth);
            earlier
                .find(|earlier| !heard.contains(&(attempt, **earlier)) && Some(*earlier) != refused)
        });
        assert!(
            missed.is_none(),
            "S10: word {nth} of {attempt} is heard, and {missed:?} never was"
        );
        self.relay.heard_words.insert((attempt, nth));
        if let Some(body) = &word.body {
            self.judge_output(attempt, body);
        }
    }

    pub(crate) fn may_print(&self, session: SessionId, re: FrameRef) -> bool {
        let spoken = self.speaks(session, re);
        spoken.is_some_and(|(_, _, right)| matches!(right, Right::Leased))
    }

    /// Whatever this daemon held goes on by its word or is over, and nothing outlives its machine's boot.
    fn judge_hello(&mut self, hello: &Greeting, settled: &[Settlement]) {
        let session = hello.session;
        assert!(!hello.overtaken, "settlement: {session} came too late");
        let view = &self.relay.store.view;
        let still = |task: TaskId, attempt: AttemptId| {
            let attempt = view.attempt(task, attempt);
            attempt.is_some_and(|attempt| attempt.state.is_leased())
        };
        for (task, attempt) in hello.leased.iter().filter(|(t, a)| still(*t, *a)) {
            let goes_on = settled
                .iter()
                .any(|one| one.attempt == *attempt && !matches!(one.verdict, Verdict::Kill { .. }));
            assert!(
                goes_on,
                "settlement: {attempt} of {task} is leased to a daemon without it"
            );
        }
        let kept = settled
            .iter()
            .filter(|one| matches!(one.verdict, Verdict::Keep { .. }));
        for attempt in kept.map(|one| one.attempt) {
            let leased = view.find(attempt).is_some_and(|a| a.state.is_leased());
            assert!(leased, "settlement: {attempt} is kept and holds no lease");
        }
        if hello.takes_over {
            self.doubt(hello);
        }
        let sure = |attempt: &AttemptId| !self.doubted.contains(attempt);
        let view = &self.relay.store.view;
        let mut fences = view.fences.values().filter(|fence| sure(&fence.attempt));
        let fence = fences.find(|f| match &f.runner {
            Runner::Machine { daemon, boot_id } => {
                *daemon == hello.daemon && *boot_id != hello.boot_id
            }
            Runner::Agent { .. } => false,
        });
        assert!(fence.is_none(), "settlement: a boot did not lift {fence:?}");
        for (task, attempt) in hello.leased.iter().filter(|(_, attempt)| sure(attempt)) {
            let leased = view
                .attempt(*task, *attempt)
                .filter(|a| a.state.is_leased());
            let Some(holder) = leased.and_then(|attempt| attempt.daemon()) else {
                continue;
            };
            assert!(
                holder.boot_id == hello.boot_id || hello.finished.contains(attempt),
                "settlement: {attempt} outlives the boot of its machine, on {}",
                hello.session
            );
        }
    }

    /// A stream that takes over from one that was heard just now proves nothing by its boot id, then or later: two
    /// machines may share an identity.
    fn doubt(&mut self, hello: &Greeting) {
        let fences = self.relay.store.view.fences.values();
        let fenced = fences.filter(|fence| fence.runner.daemon() == Some(hello.daemon));
        let fenced: Vec<AttemptId> = fenced.map(|fence| fence.attempt).collect();
        self.doubted.extend(fenced);
        self.doubted
            .extend(hello.leased.iter().map(|(_, attempt)| attempt));
    }
}

/// Its session says that it came before its output.
fn lacks_output(body: &FrameBody) -> bool {
    matches!(body, FrameBody::Completed(body) if body.output_missing > 0)
}

fn has_expired(attempt: &AttemptRecord) -> bool {
    let end = attempt.state.end();
    end.is_some_and(|end| end.failure_code == Some(FailureCode::LeaseExpired))
}

/// What waits may be placed in the same turn; everything else stays as it was.
pub(crate) fn unchanged(
    old: &TaskRecord,
    new: &TaskRecord,
    which: &dyn Fn(&AttemptRecord) -> bool,
    why: &str,
) {
    let waits = |attempt: &AttemptRecord| attempt.state == AttemptStage::Queued;
    for (was, is) in checks::pairs(old, new) {
        let meant = which(was) && !waits(was);
        let same = (&was.state, was.reached, was.retry_safe, was.output_end)
            == (&is.state, is.reached, is.retry_safe, is.output_end);
        assert!(!meant || same, "S3: a word {why} changed {}", was.id);
    }
}
