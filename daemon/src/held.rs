//! One attempt as the supervisor holds it: its stage, its lease, its outbox, and what each order and event
//! does to them. No I/O: frames go into the outbox, orders into the attempt's watch channel.

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_daemon_core::lease::LeaseClock;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    ActiveAttempt, ActiveState, AttemptRef, CancelReason, LeaseToken, LifecyclePhase,
    TerminationReceipt, WorkspaceReport,
};
use baton_proto::worker::Finish;

use crate::agents::{Refusal, Used};
use crate::attempt::{AttemptPlan, Stop};
use crate::attempt_dir::AttemptId;
use crate::clock::{Clock, Moment};
use crate::conversations::Conversing;
use crate::frames::{self, Control};
use crate::outbox::{Acked, OUTPUT_LIMIT, Outbox};

mod ending;
mod events;
mod lease;
mod place;
mod reins;
mod restored;
mod voice;

pub(crate) use place::Place;
pub(crate) use reins::{Bits, Reach, Telling};
pub(crate) use restored::Remains;

use reins::Reins;
use voice::Voice;

/// Complaints about one gap come in bunches: one for each frame that was in flight.
const REPLAY_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Held {
    pub(crate) attempt: AttemptRef,
    /// None when it did not outlive the daemon that had it.
    pub(crate) token: Option<LeaseToken>,
    pub(crate) outbox: Outbox,
    pub(crate) place: Place,
    /// The turn belongs to a conversation.
    pub(crate) conversing: Option<Conversing>,
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
    /// The directory that it has to itself.
    exclusive: Option<PathBuf>,
    /// Where it works, as it was said last.
    workspace: Option<WorkspaceReport>,
    /// What its agent says through its tools, where it has some.
    voice: Option<Voice>,
    /// What its agent said of the end.
    finish: Option<Finish>,
}

enum Stage {
    /// Taken, not confirmed: nothing is started yet.
    Accepted {
        plan: Box<AttemptPlan>,
        accepted_at: Moment,
        confirm_by: Moment,
    },
    /// A task drives its shim.
    Running(Reins),
    /// Nothing runs. Kept until the relay has acknowledged `last_seq`.
    Finished {
        last_seq: u64,
        receipt: TerminationReceipt,
    },
}

/// A stronger one decides what is said at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopWhy {
    Canceled(CancelReason),
    /// The daemon stops and could wait no longer. To the task that is a loss and not a cancel, so only a
    /// receipt is said: the relay's policy for losses decides how the task goes on.
    Drained,
    /// What it has to say cannot be stored.
    DiskFull,
    /// What it has to say is more than any disk would be given at once.
    TooLong,
    /// No renewal was acknowledged in time. Only a receipt is said, and the result if there was one.
    LeaseEnded,
    /// The relay took the attempt away: only a receipt is wanted.
    Fenced,
}

impl StopWhy {
    fn rank(self) -> u8 {
        match self {
            Self::Canceled(_) | Self::Drained | Self::DiskFull | Self::TooLong => 0,
            Self::LeaseEnded => 1,
            Self::Fenced => 2,
        }
    }

    /// Whether the lease counts no more.
    fn ends_the_lease(self) -> bool {
        self.rank() >= Self::LeaseEnded.rank()
    }

    /// Whether an agent may end its turn first. Not where nobody would hear of it; and not when a deadline has passed that
    /// the relay watches: who was told that nobody answered would come to a result without the answer.
    fn leaves_time_to_ask(self) -> bool {
        match self {
            Self::Canceled(reason) => reason != CancelReason::Deadline,
            Self::Drained => true,
            Self::DiskFull | Self::TooLong | Self::LeaseEnded | Self::Fenced => false,
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
    pub(crate) conversing: Option<Conversing>,
}

/// What starts once the lease is confirmed.
pub(crate) struct Start {
    pub(crate) plan: AttemptPlan,
    pub(crate) token: LeaseToken,
    /// Where its shim works.
    pub(crate) dir: AttemptId,
    pub(crate) bits: Bits,
}

impl Held {
    pub(crate) fn accept(offer: Offer, clock: &Clock) -> Self {
        let Offer {
            attempt,
            token,
            place,
            plan,
            accept,
            conversing,
        } = offer;
        let now = clock.now();
        let cleanup_term = plan.cleanup_term;
        let exclusive = plan.workspace.exclusive().map(Path::to_owned);
        let voice = plan
            .tools
            .clone()
            .map(|granted| Voice::new(granted, plan.files.clone()));
        let stage = Stage::Accepted {
            plan: Box::new(plan),
            accepted_at: now,
            confirm_by: now.after(accept),
        };
        let mut held = Self {
            outbox: Outbox::new(OUTPUT_LIMIT),
            place,
            conversing,
            exclusive,
            voice,
            ..Self::new(attempt, Some(token), stage, cleanup_term)
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
        let mut held = Self::new(attempt, Some(token), stage, Duration::ZERO);
        held.finish(
            frames::rejected(refusal),
            frames::nothing_ran(clock.wall()),
            clock,
        );
        held
    }

    fn new(
        attempt: AttemptRef,
        token: Option<LeaseToken>,
        stage: Stage,
        cleanup_term: Duration,
    ) -> Self {
        Self {
            attempt,
            token,
            outbox: Outbox::in_memory(OUTPUT_LIMIT),
            place: Place::Memory,
            conversing: None,
            stage,
            lease: None,
            cleanup_term,
            started_at: None,
            phase: LifecyclePhase::Accepted,
            stopping: None,
            replayed_at: None,
            is_queued: false,
            exclusive: None,
            workspace: None,
            voice: None,
            finish: None,
        }
    }

    /// Whether it is in this directory, or will be, and nobody else may.
    pub(crate) fn occupies(&self, root: &Path) -> bool {
        !self.is_finished() && self.exclusive.as_deref() == Some(root)
    }

    /// Whether it takes up one of the daemon's slots: something runs, or may.
    pub(crate) fn holds_slot(&self) -> bool {
        match &self.stage {
            Stage::Accepted { .. } => true,
            Stage::Running(reins) => reins.reach != Reach::Over,
            Stage::Finished { .. } => false,
        }
    }

    /// Whether its task owes it an end.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }

    /// Its last word is in the outbox.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished { .. })
    }

    /// Finished, and the relay has it all.
    pub(crate) fn is_settled(&self) -> bool {
        match self.stage {
            Stage::Finished { .. } => self.ends_with(self.outbox.acked().control_seq),
            Stage::Accepted { .. } | Stage::Running(_) => false,
        }
    }

    /// Finished, and `seq` is the last word or beyond it.
    pub(crate) fn ends_with(&self, seq: u64) -> bool {
        match self.stage {
            Stage::Finished { last_seq, .. } => seq >= last_seq,
            Stage::Accepted { .. } | Stage::Running(_) => false,
        }
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
        if lease.is_over(clock.now()) {
            self.give_back(&Refusal::not_confirmed(), clock);
            return None;
        }
        let (token, dir) = (self.token.clone()?, self.place.on_disk()?);
        self.lease = Some(lease);
        let plan = (**plan).clone();
        let (reins, bits) = Reins::new(Some(lease), Reach::Linked, 0);
        self.stage = Stage::Running(reins);
        Some(Start {
            plan,
            token,
            dir,
            bits,
        })
    }

    pub(crate) fn cancel(&mut self, reason: CancelReason, grace: Option<Duration>, clock: &Clock) {
        match &self.stage {
            Stage::Accepted { .. } => {
                let receipt = frames::nothing_ran(clock.wall());
                let closing = self.closing(receipt.clone());
                self.finish(
                    frames::canceled(reason, &Used::default(), closing),
                    receipt,
                    clock,
                );
            }
            Stage::Running(_) => {
                let grace = grace.unwrap_or(self.cleanup_term);
                self.order_stop(StopWhy::Canceled(reason), clock.now().after(grace));
            }
            // It names a finished attempt: nothing to do.
            Stage::Finished { .. } => {}
        }
    }

    /// The daemon's time to drain is up, and KILL must go out by a moment.
    pub(crate) fn drain(&mut self, kill_by: Moment, clock: &Clock) {
        let by_grace = clock.now().after(self.cleanup_term);
        self.order_stop(StopWhy::Drained, by_grace.min(kill_by));
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

    /// For Hello.
    pub(crate) fn active(&self, now: Moment) -> ActiveAttempt {
        let state = match &self.stage {
            Stage::Accepted { .. } => ActiveState::Running,
            Stage::Running(reins) => match reins.reach {
                Reach::Linked if self.is_deaf(now) => ActiveState::Unreachable,
                Reach::Linked => ActiveState::Running,
                Reach::Unreachable => ActiveState::Unreachable,
                // How it ended is known, and is told as soon as its output is.
                Reach::Over => ActiveState::Finished,
            },
            Stage::Finished { .. } => ActiveState::Finished,
        };
        let acked = self.outbox.acked().control_seq;
        let last = self.outbox.last_control_seq();
        ActiveAttempt {
            r#ref: Some(self.attempt.clone()),
            token: self.token.clone().filter(|_| state == ActiveState::Running),
            state: state.into(),
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
        self.raise_stop(why);
        if let Stage::Running(reins) = &self.stage {
            let may_ask = why.leaves_time_to_ask();
            let calls_off = matches!(why, StopWhy::Canceled(_));
            reins.order_stop(Stop {
                kill_at,
                may_ask,
                calls_off,
            });
        }
    }

    /// Of equals the first counts: a second cancel changes nothing.
    fn raise_stop(&mut self, why: StopWhy) {
        if self
            .stopping
            .is_none_or(|standing| standing.rank() < why.rank())
        {
            self.stopping = Some(why);
        }
    }

    fn say(&mut self, body: Body, clock: &Clock) {
        let control = Control::from(body);
        let leaves = control.leaves();
        self.outbox.push_control(control, clock.wall(), leaves);
    }
}

#[cfg(test)]
mod tests;
