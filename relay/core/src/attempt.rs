//! The attempt machine: what each event means in each state. Pure; it changes one attempt record and its timers.
//!
//! It owns no decision about the task: retries, fences, replies and messages follow in the files that call it.
//! Who may speak (session, proof, order) was checked before an event gets here.
//!
//! | state | left by |
//! |---|---|
//! | any that is open | an operator's word → failed or completed; from a holder also → released |
//! | queued | offer → offered; an agent's claim → accepted; queue timer, park → parked; cancel → canceled; a late result of its predecessor → released |
//! | offered | accepted → accepted; rejected → released; accept timer, failed delivery, missing → lost; cancel → canceled at once, for no process may exist (after a relay restart: cleaning_up); park → parked |
//! | accepted | started and later phases → starting … waiting_input; rejected → released |
//! | starting, prompted, streaming, tool_running, waiting_input | each other, by phases, tools and inputs; a result without the files it needs → refused, failed or parked, by the contract; a result, error or release → its end; a deadline or cancel → cleaning_up; park → parked; lease timer, missing, reboot → lost |
//! | cleaning_up | any word that it is over → what was pending; but a result wins over a deadline, and nothing over a cancel |
//! | parked | cancel → canceled; a successor → handed_off |
//! | completed, failed, canceled, timed_out, lost, released, handed_off | nothing; a terminal frame is `late` and judged by the task |
//!
//! `tests/attempt.transitions.txt` holds the whole matrix, reviewed like code.

mod asking;
mod cleaning;
mod ending;
mod forcing;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod matrix_cases;
mod waiting;
mod working;

use std::sync::Arc;

use crate::config::Config;
use crate::id::{AttemptId, InputId};
use crate::input::{CanceledBody, Completed, Errored, Sign, Termination};
use crate::record::{
    Answer, AttemptRecord, EventKind, Holder, InputRecord, Lease, OpenTool, ParkCause, Phase,
    RejectCode, State, TimerKind,
};
use crate::reject::Rejection;
use crate::spec::TaskSpec;
use crate::time::Now;
use crate::timers::{Fact, Limits, TimerKey, TimerSet};

pub(crate) use asking::Ruled;
pub(crate) use ending::is_loss;
pub(crate) use forcing::{Forced, ForcedEnd};

/// Everything that can happen to an attempt.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Offer {
        holder: Holder,
        lease: Lease,
    },
    /// An agent takes it and holds the lease itself: offered, accepted and confirmed in one.
    Claim {
        holder: Holder,
        lease: Lease,
    },
    DeliveryFailed,
    /// A late result of its predecessor made it needless.
    Withdraw,
    HandOff {
        successor: AttemptId,
        to: Arc<str>,
    },
    /// It cannot go on: its holder says so, or somebody who watches it, or its result was not whole.
    Park {
        cause: ParkCause,
        termination: Option<Termination>,
    },
    /// The daemon listed it in Hello and may go on: confirms it if it was not.
    Kept,

    Accepted,
    Rejected {
        code: RejectCode,
        message: Option<Arc<str>>,
    },
    Phase(Phase),
    /// cleanup_started of a daemon that has seen this deadline pass.
    OwnDeadline(TimerKind),
    ToolStarted(OpenTool),
    ToolFinished(Arc<str>),
    /// With what the task's own rules say to it.
    InputAsked(Box<InputRecord>, Option<Ruled>),
    InputWithdrawn(InputId),
    InputReceived(InputId),
    Output {
        sign: Sign,
        tools: Vec<Arc<str>>,
        end: u64,
    },
    /// A result, and everything that the contract asks for.
    Completed(Completed),
    /// A result, and files are missing.
    Unmet(Completed),
    Errored(Errored),
    Canceled(CanceledBody),
    Released {
        reason: Option<Arc<str>>,
        termination: Termination,
    },
    Receipt(Termination),

    CancelAsked {
        operator: bool,
    },
    /// An operator ends it.
    Forced(Forced),
    Answered(InputId, Answer),

    Expired(TimerKey),
    /// Its daemon is here and does not know it.
    Missing,
    /// Its machine has booted since.
    Rebooted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It counted; the record, the timers or the state moved.
    Applied,
    /// Harmless and without effect.
    Ignored,
    /// A once-phase that came twice or backwards.
    Regressed,
    Refused(Rejection),
    /// A terminal frame after the end: adopted or kept as evidence by the task.
    Late,
}

/// One attempt with what its events need.
pub(crate) struct Machine<'a> {
    pub(crate) attempt: &'a mut AttemptRecord,
    pub(crate) timers: &'a mut TimerSet,
    pub(crate) spec: &'a TaskSpec,
    pub(crate) limits: Limits<'a>,
    pub(crate) config: &'a Config,
    /// Whether its holder has a session now.
    pub(crate) connected: bool,
    pub(crate) now: Now,
    /// What the timeline should say, in order.
    pub(crate) notes: Vec<EventKind>,
}

impl Machine<'_> {
    pub(crate) fn apply(&mut self, event: Event) -> Outcome {
        match self.attempt.state {
            State::Queued => self.in_queued(event),
            State::Offered => self.in_offered(event),
            State::Accepted => self.in_accepted(event),
            State::Starting
            | State::Prompted
            | State::Streaming
            | State::ToolRunning
            | State::WaitingInput => self.in_working(event),
            State::CleaningUp { .. } => self.in_cleaning(event),
            State::Parked(_) => self.in_parked(event),
            State::Ended(_) => in_ended(&event),
        }
    }

    fn tell(&mut self, fact: &Fact) {
        self.timers.on_fact(fact, self.now.at, &self.limits);
    }

    fn confirmed(&self) -> bool {
        self.attempt
            .lease
            .as_ref()
            .is_some_and(|lease| lease.confirmed)
    }
}

/// Terminal is terminal. Only the task may still learn from a terminal frame or a receipt.
fn in_ended(event: &Event) -> Outcome {
    match event {
        Event::Completed(_)
        | Event::Unmet(_)
        | Event::Errored(_)
        | Event::Canceled(_)
        | Event::Released { .. }
        | Event::Rejected { .. }
        | Event::Receipt(_) => Outcome::Late,
        Event::Accepted
        | Event::Park { .. }
        | Event::Phase(_)
        | Event::OwnDeadline(_)
        | Event::ToolStarted(_)
        | Event::ToolFinished(_)
        | Event::InputAsked(..)
        | Event::InputWithdrawn(_)
        | Event::InputReceived(_)
        | Event::Output { .. } => Outcome::Refused(Rejection::StaleAttempt),
        Event::Answered(..) => Outcome::Refused(Rejection::InputClosed),
        Event::Offer { .. }
        | Event::Claim { .. }
        | Event::DeliveryFailed
        | Event::Withdraw
        | Event::HandOff { .. }
        | Event::Kept
        | Event::CancelAsked { .. }
        | Event::Forced(_)
        | Event::Expired(_)
        | Event::Missing
        | Event::Rebooted => Outcome::Ignored,
    }
}
