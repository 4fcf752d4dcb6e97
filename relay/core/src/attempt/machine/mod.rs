//! The attempt state machine: the effect of each event in each state. It changes one attempt
//! record and its timers and does no I/O.
//!
//! It makes no decision about the task: its callers handle retries, fences, replies and
//! messages. The sender of an event (session, proof, order) is checked before the event gets
//! here.
//!
//! Transitions, by state:
//! - any open state: an operator's forced end → failed or completed; if leased also → released
//! - queued: offer → offered; an agent's claim → accepted; queue timer, park → parked;
//!   cancel → canceled; a late result of its predecessor → released
//! - offered: accepted → accepted; rejected → released; accept timer, failed delivery, missing
//!   → lost; cancel → canceled at once, because no process may exist (after a relay restart:
//!   cleaning_up); park → parked
//! - accepted: started and later phases → starting … waiting_input; rejected → released
//! - starting, prompted, streaming, tool_running, waiting_input: each other, by phases, tools
//!   and inputs; a result without required files → refused, failed or parked, by the contract;
//!   a result, error or release → its end; a deadline or cancel → cleaning_up; park → parked;
//!   lease timer, missing, reboot → lost
//! - cleaning_up: any report of the end → the pending end; but a result takes precedence over a
//!   deadline, and a cancel over everything
//! - parked: cancel → canceled; a successor → handed_off
//! - completed, failed, canceled, timed_out, lost, released, handed_off: none; a terminal frame
//!   is `late`, and the task decides about it
//!
//! `tests/attempt.transitions.txt` contains the whole matrix and is reviewed like code.

mod attempt_end;
mod cleanup_state;
mod forced_end;
mod input_requests;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod matrix_cases;
mod queued_states;
mod running_states;

use std::sync::Arc;

use crate::attempt::timers::{TimerFact, TimerKey, TimerLimits, TimerSet};
use crate::config::Config;
use crate::ids::{AttemptId, InputId};
use crate::io::rejection::Rejection;
use crate::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, OutputSignal, ProcessTermination,
};
use crate::record::{
    AttemptRecord, AttemptState, InputRecord, LeaseHolder, LeaseRecord, LifecyclePhase, OpenTool,
    ParkCause, RejectCode, StoredAnswer, TimelineEventKind, TimerKind,
};
use crate::task::spec::TaskSpec;
use crate::time::ClockReading;

pub(crate) use attempt_end::is_loss_code;
pub(crate) use forced_end::{ForceAttemptEnd, ForcedEnd};
pub(crate) use input_requests::RuleAnswer;

/// Everything that can happen to an attempt.
#[derive(Clone, Debug)]
pub(crate) enum MachineEvent {
    Offer {
        holder: LeaseHolder,
        lease: LeaseRecord,
    },
    /// An agent takes it and holds the lease itself: offer, acceptance and confirmation in one
    /// step.
    Claim {
        holder: LeaseHolder,
        lease: LeaseRecord,
    },
    DeliveryFailed,
    /// A late result of its predecessor made it unnecessary.
    Withdraw,
    HandOff {
        successor: AttemptId,
        to: Arc<str>,
    },
    /// The attempt cannot continue: its holder or an observer blocked it, or its result is
    /// incomplete.
    Park {
        cause: ParkCause,
        termination: Option<ProcessTermination>,
    },
    /// The daemon listed it in Hello and may continue; confirms an unconfirmed lease.
    KeptBySettlement,

    Accepted,
    Rejected {
        code: RejectCode,
        message: Option<Arc<str>>,
    },
    Phase(LifecyclePhase),
    /// cleanup_started of a daemon whose own timer for this deadline expired.
    DaemonDeadline(TimerKind),
    ToolStarted(OpenTool),
    ToolFinished(Arc<str>),
    /// A request, with the answer that the task's permission rules give.
    InputAsked(Box<InputRecord>, Option<RuleAnswer>),
    InputWithdrawn(InputId),
    InputReceived(InputId),
    Output {
        sign: OutputSignal,
        tools: Vec<Arc<str>>,
        end: u64,
    },
    /// A result with everything that the contract requires.
    Completed(CompletedBody),
    /// A result with missing files.
    ContractUnmet(CompletedBody),
    Errored(ErroredBody),
    Canceled(CanceledBody),
    Released {
        reason: Option<Arc<str>>,
        termination: ProcessTermination,
    },
    Receipt(ProcessTermination),

    CancelAsked {
        operator: bool,
    },
    /// An operator ends it.
    Forced(ForceAttemptEnd),
    Answered(InputId, StoredAnswer),

    TimerExpired(TimerKey),
    /// Its daemon is connected and does not list it.
    MissingOnDaemon,
    /// Its machine has rebooted since it was leased.
    Rebooted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    /// The event took effect; the record, the timers or the state changed.
    Applied,
    /// Valid, but without effect.
    Ignored,
    /// A once-phase that was repeated or out of order.
    Regressed,
    Refused(Rejection),
    /// A terminal frame after the end: the task adopts it or records it as evidence.
    Late,
}

/// One attempt with the data that its events need.
pub(crate) struct AttemptMachine<'a> {
    pub(crate) attempt: &'a mut AttemptRecord,
    pub(crate) timers: &'a mut TimerSet,
    pub(crate) spec: &'a TaskSpec,
    pub(crate) limits: TimerLimits<'a>,
    pub(crate) config: &'a Config,
    /// Whether its holder has a session now.
    pub(crate) connected: bool,
    pub(crate) now: ClockReading,
    /// Events to add to the task's timeline, in order.
    pub(crate) timeline_events: Vec<TimelineEventKind>,
}

impl AttemptMachine<'_> {
    pub(crate) fn apply(&mut self, event: MachineEvent) -> EventOutcome {
        match self.attempt.state {
            AttemptState::Queued => self.on_queued(event),
            AttemptState::Offered => self.on_offered(event),
            AttemptState::Accepted => self.on_accepted(event),
            AttemptState::Starting
            | AttemptState::Prompted
            | AttemptState::Streaming
            | AttemptState::ToolRunning
            | AttemptState::WaitingInput => self.on_running(event),
            AttemptState::CleaningUp { .. } => self.on_cleaning_up(event),
            AttemptState::Parked(_) => self.on_parked(event),
            AttemptState::Ended(_) => on_ended(&event),
        }
    }

    fn update_timers(&mut self, fact: &TimerFact) {
        self.timers.on_fact(fact, self.now.monotonic, &self.limits);
    }

    fn is_lease_confirmed(&self) -> bool {
        self.attempt
            .lease
            .as_ref()
            .is_some_and(|lease| lease.confirmed)
    }
}

/// An ended attempt never changes. A terminal frame or a receipt is passed on to the task as
/// `Late`.
fn on_ended(event: &MachineEvent) -> EventOutcome {
    match event {
        MachineEvent::Completed(_)
        | MachineEvent::ContractUnmet(_)
        | MachineEvent::Errored(_)
        | MachineEvent::Canceled(_)
        | MachineEvent::Released { .. }
        | MachineEvent::Rejected { .. }
        | MachineEvent::Receipt(_) => EventOutcome::Late,
        MachineEvent::Accepted
        | MachineEvent::Park { .. }
        | MachineEvent::Phase(_)
        | MachineEvent::DaemonDeadline(_)
        | MachineEvent::ToolStarted(_)
        | MachineEvent::ToolFinished(_)
        | MachineEvent::InputAsked(..)
        | MachineEvent::InputWithdrawn(_)
        | MachineEvent::InputReceived(_)
        | MachineEvent::Output { .. } => EventOutcome::Refused(Rejection::StaleAttempt),
        MachineEvent::Answered(..) => EventOutcome::Refused(Rejection::InputClosed),
        MachineEvent::Offer { .. }
        | MachineEvent::Claim { .. }
        | MachineEvent::DeliveryFailed
        | MachineEvent::Withdraw
        | MachineEvent::HandOff { .. }
        | MachineEvent::KeptBySettlement
        | MachineEvent::CancelAsked { .. }
        | MachineEvent::Forced(_)
        | MachineEvent::TimerExpired(_)
        | MachineEvent::MissingOnDaemon
        | MachineEvent::Rebooted => EventOutcome::Ignored,
    }
}
