//! One attempt as the supervisor holds it: its stage, its lease, its outbox, and what each order and event
//! does to them. No I/O: frames go into the outbox, orders into the attempt's watch channel.

use std::time::{Duration, SystemTime};

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    ActiveAttempt, ActiveState, AttemptRef, CancelReason, LeaseToken, LifecyclePhase, RenewEntry,
    TerminationReceipt,
};
use tokio::sync::watch;

use crate::agents::Refusal;
use crate::attempt::{AttemptEvent, AttemptPlan, Stop};
use crate::clock::{Clock, Moment};
use crate::frames::{self, Control, PhaseReport};
use crate::lease::LeaseClock;
use crate::outbox::{Acked, OUTPUT_LIMIT, Outbox};

mod ending;
mod place;

pub(crate) use place::Place;

/// Unacknowledged output at which a connected child is held back, and at which it goes on.
const HOLD_BACK_ABOVE: usize = OUTPUT_LIMIT / 2;
const GO_ON_BELOW: usize = OUTPUT_LIMIT / 4;
/// Bytes on their way to the disk at which a child is held back.
const UNWRITTEN_MOST: usize = 1024 * 1024;
/// Complaints about one gap come in bunches: one for each frame that was in flight.
const REPLAY_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Held {
    pub(crate) attempt: AttemptRef,
    /// None when it did not outlive the daemon that had it.
    pub(crate) token: Option<LeaseToken>,
    pub(crate) outbox: Outbox<Control, SystemTime>,
    pub(crate) place: Place,
    stage: Stage,
    lease: Option<LeaseClock>,
    cleanup_term: Duration,
    started_at: Option<Moment>,
    phase: LifecyclePhase,
    /// Why it was ordered to stop: the strongest reason so far.
    stopping: Option<StopWhy>,
    /// When it last replayed because the relay missed something; what was in flight then is no news.
    replayed_at: Option<Moment>,
    /// Its id waits in the supervisor's queue of attempts with something to send.
    pub(crate) is_queued: bool,
}

enum Stage {
    /// Taken, not confirmed: nothing is started yet.
    Accepted {
        plan: Box<AttemptPlan>,
        accepted_at: Moment,
        confirm_by: Moment,
    },
    Running {
        stop: watch::Sender<Option<Stop>>,
        hold_back: watch::Sender<bool>,
    },
    /// Nothing runs. Kept until the relay has acknowledged `last_seq`.
    Finished {
        last_seq: u64,
        receipt: TerminationReceipt,
    },
}

/// In order of strength: a stronger one decides what is said at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StopWhy {
    Canceled(CancelReason),
    /// The daemon stops and could wait no longer. To the task that is a loss and not a cancel, so only a
    /// receipt is said: the relay's policy for losses decides how the task goes on.
    Drained,
    /// What it has to say cannot be stored.
    DiskFull,
    /// No renewal was acknowledged in time. Only a receipt is said, and the result if there was one.
    LeaseEnded,
    /// The relay took the attempt away: only a receipt is wanted.
    Fenced,
}

impl StopWhy {
    fn rank(self) -> u8 {
        match self {
            Self::Canceled(_) | Self::Drained | Self::DiskFull => 0,
            Self::LeaseEnded => 1,
            Self::Fenced => 2,
        }
    }
}

/// A dispatch that is taken.
pub(crate) struct Offer {
    pub(crate) attempt: AttemptRef,
    pub(crate) token: LeaseToken,
    pub(crate) place: Place,
    pub(crate) plan: AttemptPlan,
    pub(crate) accept: Duration,
}

/// What starts once the lease is confirmed.
pub(crate) struct Start {
    pub(crate) plan: AttemptPlan,
    pub(crate) stop: watch::Receiver<Option<Stop>>,
    pub(crate) hold_back: watch::Receiver<bool>,
}

impl Held {
    pub(crate) fn accept(offer: Offer, clock: &Clock) -> Self {
        let Offer {
            attempt,
            token,
            place,
            plan,
            accept,
        } = offer;
        let now = clock.now();
        let cleanup_term = plan.cleanup_term;
        let stage = Stage::Accepted {
            plan: Box::new(plan),
            accepted_at: now,
            confirm_by: now.after(accept),
        };
        let mut held = Self {
            outbox: Outbox::new(OUTPUT_LIMIT),
            place,
            ..Self::new(attempt, token, stage, cleanup_term)
        };
        held.say(frames::accepted(), clock);
        held
    }

    pub(crate) fn refuse(
        attempt: AttemptRef,
        token: LeaseToken,
        refusal: &Refusal,
        clock: &Clock,
    ) -> Self {
        let stage = Stage::Finished {
            last_seq: 0,
            receipt: frames::nothing_ran(clock.wall()),
        };
        let mut held = Self::new(attempt, token, stage, Duration::ZERO);
        held.finish(
            frames::rejected(refusal),
            frames::nothing_ran(clock.wall()),
            clock,
        );
        held
    }

    fn new(attempt: AttemptRef, token: LeaseToken, stage: Stage, cleanup_term: Duration) -> Self {
        Self {
            attempt,
            token: Some(token),
            outbox: Outbox::in_memory(OUTPUT_LIMIT),
            place: Place::Memory,
            stage,
            lease: None,
            cleanup_term,
            started_at: None,
            phase: LifecyclePhase::Accepted,
            stopping: None,
            replayed_at: None,
            is_queued: false,
        }
    }

    /// Whether it takes up one of the daemon's slots.
    pub(crate) fn holds_slot(&self) -> bool {
        match self.stage {
            Stage::Accepted { .. } | Stage::Running { .. } => true,
            Stage::Finished { .. } => false,
        }
    }

    /// Finished, and the relay has it all.
    pub(crate) fn is_settled(&self) -> bool {
        match self.stage {
            Stage::Finished { .. } => self.ends_with(self.outbox.acked().control_seq),
            Stage::Accepted { .. } | Stage::Running { .. } => false,
        }
    }

    /// Finished, and `seq` is the last word or beyond it.
    pub(crate) fn ends_with(&self, seq: u64) -> bool {
        match self.stage {
            Stage::Finished { last_seq, .. } => seq >= last_seq,
            Stage::Accepted { .. } | Stage::Running { .. } => false,
        }
    }

    pub(crate) fn lease(&self) -> Option<LeaseClock> {
        self.lease.filter(|_| self.holds_slot())
    }

    /// The relay repeats an offer that stands, so the daemon repeats its answer.
    pub(crate) fn answer_again(&mut self, clock: &Clock) {
        if matches!(self.stage, Stage::Accepted { .. }) {
            self.say(frames::accepted(), clock);
        }
    }

    /// The lease counts from the send of what the relay answered; for a running one it is a renewal.
    /// Returns what to start, once; nothing when the lease was over before its confirmation came.
    pub(crate) fn confirm(
        &mut self,
        sent_at: Option<Moment>,
        granted: Duration,
        clock: &Clock,
    ) -> Option<Start> {
        let Stage::Accepted {
            plan, accepted_at, ..
        } = &self.stage
        else {
            if let Some(sent_at) = sent_at {
                self.renew(sent_at, granted);
            }
            return None;
        };
        if !self.outbox.log().is_begun() {
            // No directory to start it in yet. Its acceptance leaves when there is one, and is confirmed again.
            return None;
        }
        let lease = LeaseClock::granted(sent_at.unwrap_or(*accepted_at), granted);
        if lease.limit() <= clock.now() {
            self.give_back(&Refusal::not_confirmed(), clock);
            return None;
        }
        self.lease = Some(lease);
        let plan = (**plan).clone();
        let (stop, stop_rx) = watch::channel(None);
        let (hold_back, hold_back_rx) = watch::channel(false);
        self.stage = Stage::Running { stop, hold_back };
        Some(Start {
            plan,
            stop: stop_rx,
            hold_back: hold_back_rx,
        })
    }

    pub(crate) fn renew(&mut self, sent_at: Moment, granted: Duration) {
        if let Some(lease) = &mut self.lease {
            lease.renew(sent_at, granted);
        }
    }

    pub(crate) fn cancel(&mut self, reason: CancelReason, grace: Option<Duration>, clock: &Clock) {
        match &self.stage {
            Stage::Accepted { .. } => {
                let receipt = frames::nothing_ran(clock.wall());
                let closing = self.closing(receipt.clone());
                self.finish(frames::canceled(reason, closing), receipt, clock);
            }
            Stage::Running { .. } => {
                let grace = grace.unwrap_or(self.cleanup_term);
                self.order_stop(StopWhy::Canceled(reason), clock.now().after(grace));
            }
            // It names a finished attempt: nothing to do.
            Stage::Finished { .. } => {}
        }
    }

    /// The daemon's time to drain is up.
    pub(crate) fn drain(&mut self, clock: &Clock) {
        self.order_stop(StopWhy::Drained, clock.now().after(self.cleanup_term));
    }

    /// The daemon takes no new work: what has not started goes back.
    pub(crate) fn give_back(&mut self, refusal: &Refusal, clock: &Clock) {
        if matches!(self.stage, Stage::Accepted { .. }) {
            self.finish(
                frames::rejected(refusal),
                frames::nothing_ran(clock.wall()),
                clock,
            );
        }
    }

    /// When time alone changes something here.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        match &self.stage {
            Stage::Accepted { confirm_by, .. } => Some(*confirm_by),
            Stage::Running { .. } if self.stopping < Some(StopWhy::LeaseEnded) => {
                self.lease.map(|lease| lease.term_at(self.cleanup_term))
            }
            Stage::Running { .. } | Stage::Finished { .. } => None,
        }
    }

    /// Lets time do its part: an offer that nobody confirmed, a lease that nobody renewed.
    pub(crate) fn on_time(&mut self, clock: &Clock) {
        let now = clock.now();
        if self.next_wake().is_none_or(|at| at > now) {
            return;
        }
        match (&self.stage, self.lease) {
            (Stage::Accepted { .. }, _) => {
                self.give_back(&Refusal::not_confirmed(), clock);
            }
            (Stage::Running { .. }, Some(lease)) => {
                self.order_stop(StopWhy::LeaseEnded, lease.kill_at());
            }
            (Stage::Running { .. } | Stage::Finished { .. }, _) => {}
        }
    }

    pub(crate) fn on_event(&mut self, event: AttemptEvent, clock: &Clock) {
        let fenced = self.stopping == Some(StopWhy::Fenced);
        match event {
            AttemptEvent::Ended(ending) => self.on_ended(&ending, clock),
            AttemptEvent::Entered { .. } | AttemptEvent::Output(_) if fenced => {}
            AttemptEvent::Output(chunk) => {
                self.outbox
                    .push_output(chunk.kind, chunk.bytes, clock.wall());
            }
            AttemptEvent::Entered {
                phase,
                pid,
                next_deadline,
            } => {
                let now = clock.now();
                let started_at = *self.started_at.get_or_insert(now);
                let wall = clock.wall();
                self.phase = frames::wire_phase(phase);
                let report = PhaseReport {
                    phase,
                    pid,
                    deadline_at: next_deadline.map(|at| wall + now.until(at)),
                    elapsed: started_at.until(now),
                    wall,
                };
                self.say(frames::phase(&report), clock);
            }
        }
    }

    /// Holds the child back while the relay or the disk cannot keep up. Without a stream nobody could ever catch up,
    /// so the child runs on and the outbox cuts.
    pub(crate) fn balance(&self, connected: bool) {
        let Stage::Running { hold_back, .. } = &self.stage else {
            return;
        };
        let unacked = self.outbox.held();
        let unwritten = self.outbox.log().unwritten() > UNWRITTEN_MOST;
        hold_back.send_if_modified(|held| {
            let limit = if *held { GO_ON_BELOW } else { HOLD_BACK_ABOVE };
            let wanted = unwritten || (connected && unacked > limit);
            std::mem::replace(held, wanted) != wanted
        });
    }

    /// For a heartbeat: everything that the relay may still count as leased.
    pub(crate) fn renew_entry(&self, now: Moment) -> Option<RenewEntry> {
        let leased = match &self.stage {
            Stage::Accepted { .. } => true,
            // A finished one too: its terminal frame may still be queued behind its output.
            Stage::Running { .. } | Stage::Finished { .. } => {
                self.lease.is_some_and(|lease| !lease.left(now).is_zero())
            }
        };
        (leased && self.stopping < Some(StopWhy::LeaseEnded)).then(|| RenewEntry {
            attempt_id: self.attempt.attempt_id.clone(),
            token: self.token.clone(),
            phase: self.phase.into(),
        })
    }

    /// For Hello.
    pub(crate) fn active(&self) -> ActiveAttempt {
        let running = self.holds_slot();
        let acked = self.outbox.acked().control_seq;
        let last = self.outbox.last_control_seq();
        ActiveAttempt {
            r#ref: Some(self.attempt.clone()),
            token: self.token.clone().filter(|_| running),
            state: if running {
                ActiveState::Running
            } else {
                ActiveState::Finished
            }
            .into(),
            last_control_seq: last,
            oldest_control_seq: if acked < last { acked + 1 } else { 0 },
            output_end: self.outbox.end_offset(),
            oldest_offset: self.outbox.oldest_output(),
            phase: self.phase.into(),
            open_tool_call_ids: Vec::new(),
            open_input_ids: Vec::new(),
        }
    }

    /// A new stream, and what the relay has of it: everything beyond that goes out again.
    pub(crate) fn replay(&mut self, acked: Acked) {
        self.outbox.settle(acked);
    }

    fn order_stop(&mut self, why: StopWhy, kill_at: Moment) {
        // Of equals the first counts: a second cancel changes nothing.
        if self
            .stopping
            .is_none_or(|standing| standing.rank() < why.rank())
        {
            self.stopping = Some(why);
        }
        if let Stage::Running { stop, .. } = &self.stage {
            stop.send_if_modified(|order| {
                let sooner = order.is_none_or(|order| kill_at < order.kill_at);
                if sooner {
                    *order = Some(Stop { kill_at });
                }
                sooner
            });
        }
    }

    fn say(&mut self, body: Body, clock: &Clock) {
        let control = Control::from(body);
        let leaves = control.leaves();
        self.outbox.push_control(control, clock.wall(), leaves);
    }
}
