//! The states in which the daemon may run processes: accepted to waiting_input.
//!
//! Which of them it is follows from what was reached and what is open (`running_state`); no frame sets it.

use std::sync::Arc;

use super::{Event, Machine, Outcome};
use crate::input::Sign;
use crate::record::{
    EndState, EndedBy, EventKind, FailureCode, OpenTool, Pending, Phase, State, TimerKind,
};
use crate::reject::Rejection;
use crate::timers::{Fact, TimerKey};

impl Machine<'_> {
    pub(super) fn in_accepted(&mut self, event: Event) -> Outcome {
        match event {
            // Nothing was started: as good as a receipt, also after LeaseConfirmed crossed it on the wire.
            Event::Rejected { code, message } => self.reject(&code, message),
            // The offer was confirmed by settlement, and its TaskAccepted is replayed.
            Event::Accepted => Outcome::Applied,
            other @ (Event::Offer { .. }
            | Event::Claim { .. }
            | Event::DeliveryFailed
            | Event::Withdraw
            | Event::HandOff { .. }
            | Event::Kept
            | Event::Phase(_)
            | Event::OwnDeadline(_)
            | Event::ToolStarted(_)
            | Event::ToolFinished(_)
            | Event::InputAsked(..)
            | Event::InputWithdrawn(_)
            | Event::InputReceived(_)
            | Event::Output { .. }
            | Event::Completed(_)
            | Event::Unmet(_)
            | Event::Errored(_)
            | Event::Canceled(_)
            | Event::Released { .. }
            | Event::Receipt(_)
            | Event::CancelAsked { .. }
            | Event::Park { .. }
            | Event::Forced(_)
            | Event::Answered(..)
            | Event::Expired(_)
            | Event::Missing
            | Event::Rebooted) => self.in_working(other),
        }
    }

    pub(super) fn in_working(&mut self, event: Event) -> Outcome {
        match event {
            Event::Phase(phase) => self.phase(phase),
            Event::OwnDeadline(timer) => self.own_cleanup(Some(Pending::OwnDeadline { timer })),
            Event::ToolStarted(tool) => self.tool_started(tool),
            Event::ToolFinished(id) => self.tool_finished(&id),
            Event::InputAsked(input, ruled) => self.input_asked(*input, ruled),
            Event::InputWithdrawn(id) => self.input_withdrawn(id),
            Event::InputReceived(id) => self.input_received(id),
            Event::Answered(id, answer) => self.answered(id, answer),
            Event::Output { sign, tools, end } => self.output(sign, &tools, end),
            Event::Completed(body) => self.complete(body),
            Event::Unmet(body) => self.unmet(body),
            Event::Errored(body) => self.error(body),
            Event::Canceled(body) => self.canceled(body),
            Event::Released {
                reason,
                termination,
            } => self.release(reason, &termination),
            Event::Receipt(termination) => self.gone(&termination),
            Event::CancelAsked { operator } => self.begin_cleanup(Pending::Cancel { operator }),
            Event::Park { cause, termination } => self.park_held(cause, termination.as_ref()),
            Event::Forced(forced) => self.forced(forced),
            Event::Expired(key) => self.expired(key),
            Event::Missing => self.lose(FailureCode::DaemonLostAttempt),
            Event::Rebooted => self.rebooted(),
            Event::Accepted | Event::Rejected { .. } => Outcome::Refused(Rejection::WrongOrder),
            Event::Offer { .. }
            | Event::Claim { .. }
            | Event::DeliveryFailed
            | Event::Withdraw
            | Event::HandOff { .. }
            | Event::Kept => Outcome::Ignored,
        }
    }

    /// The state that the open things and the phases add up to.
    pub(super) fn running_state(&self) -> State {
        if self
            .attempt
            .inputs
            .iter()
            .any(|input| input.state.is_pending())
        {
            return State::WaitingInput;
        }
        if !self.attempt.tools.is_empty() {
            return State::ToolRunning;
        }
        match self.attempt.reached {
            Some(reached) if reached >= Phase::FirstEventSeen => State::Streaming,
            Some(Phase::PromptWritten) => State::Prompted,
            Some(Phase::Started | Phase::AgentStarted) => State::Starting,
            Some(_) | None => State::Accepted,
        }
    }

    fn phase(&mut self, phase: Phase) -> Outcome {
        match phase {
            Phase::Accepted
            | Phase::Queued
            | Phase::Started
            | Phase::AgentStarted
            | Phase::PromptWritten
            | Phase::FirstEventSeen
            | Phase::FirstVisibleEventSeen => self.once(phase),
            Phase::CleanupStarted => self.own_cleanup(None),
            Phase::CleanupFinished => Outcome::Refused(Rejection::WrongOrder),
            Phase::Heartbeat => Outcome::Ignored,
            Phase::Streaming | Phase::Checkpointed => self.news(phase),
            // Edges with data are frames of their own, and no phase ends an attempt: these are diagnostics.
            Phase::ToolStarted
            | Phase::ToolFinished
            | Phase::WaitingInput
            | Phase::InputReceived
            | Phase::RetryScheduled
            | Phase::Completed
            | Phase::Failed
            | Phase::Canceled
            | Phase::TimedOut
            | Phase::Lost
            | Phase::Blocked
            | Phase::Released => Outcome::Ignored,
        }
    }

    fn once(&mut self, phase: Phase) -> Outcome {
        if self.attempt.reached.is_some_and(|reached| phase <= reached) {
            return Outcome::Regressed;
        }
        self.reach(phase);
        self.attempt.phase = Some(phase);
        self.tell(&Fact::Phase(phase));
        self.attempt.state = self.running_state();
        self.notes.push(EventKind::Phase(phase));
        Outcome::Applied
    }

    /// Notes the phase and all that it implies.
    pub(super) fn reach(&mut self, phase: Phase) {
        if self.attempt.reached.is_some_and(|reached| phase <= reached) {
            return;
        }
        self.attempt.reached = Some(phase);
        if phase >= Phase::PromptWritten {
            self.attempt.prompt_written = Some(true);
        }
        if phase == Phase::FirstVisibleEventSeen {
            self.attempt.retry_safe = false;
        }
        self.attempt.times.reached(phase, self.now.wall);
    }

    fn news(&mut self, phase: Phase) -> Outcome {
        self.reach(Phase::FirstEventSeen);
        self.tell(&Fact::Output { tool: None });
        self.attempt.phase = Some(phase);
        self.attempt.state = self.running_state();
        self.notes.push(EventKind::Phase(phase));
        Outcome::Applied
    }

    fn tool_started(&mut self, tool: OpenTool) -> Outcome {
        if self.attempt.tools.iter().any(|open| open.id == tool.id) {
            return Outcome::Refused(Rejection::DuplicateTool);
        }
        if self.attempt.tools.len() >= self.config.max_tools {
            return Outcome::Refused(Rejection::TooManyTools);
        }
        self.reach(Phase::FirstEventSeen);
        self.attempt.retry_safe = false;
        self.attempt.phase = Some(Phase::ToolStarted);
        self.tell(&Fact::ToolStarted(tool.id.clone()));
        self.notes.push(EventKind::ToolStarted {
            id: tool.id.clone(),
            name: tool.name.clone(),
        });
        self.attempt.tools.push(tool);
        self.attempt.state = self.running_state();
        Outcome::Applied
    }

    fn tool_finished(&mut self, id: &Arc<str>) -> Outcome {
        let Some(place) = self.attempt.tools.iter().position(|open| open.id == *id) else {
            return Outcome::Refused(Rejection::UnknownTool);
        };
        self.attempt.tools.remove(place);
        self.attempt.phase = Some(Phase::ToolFinished);
        self.tell(&Fact::ToolFinished(id.clone()));
        self.attempt.state = self.running_state();
        self.notes.push(EventKind::ToolFinished { id: id.clone() });
        Outcome::Applied
    }

    fn output(&mut self, sign: Sign, tools: &[Arc<str>], end: u64) -> Outcome {
        self.attempt.output_end = self.attempt.output_end.max(end);
        // What a program says of itself ends no wait for the prompt, and does not prove that it has one.
        if sign == Sign::BeforePrompt {
            return Outcome::Ignored;
        }
        let before = self.attempt.reached;
        for tool in tools {
            self.tell(&Fact::Output {
                tool: Some(tool.clone()),
            });
        }
        self.tell(&Fact::Output { tool: None });
        self.reach(Phase::FirstEventSeen);
        if sign == Sign::VisibleEvent {
            self.tell(&Fact::Phase(Phase::FirstVisibleEventSeen));
            self.reach(Phase::FirstVisibleEventSeen);
        }
        if self.attempt.reached == before {
            return Outcome::Ignored;
        }
        // The daemon did not say it: the first output says it for it.
        for phase in [Phase::FirstEventSeen, Phase::FirstVisibleEventSeen] {
            if before < Some(phase) && self.attempt.reached >= Some(phase) {
                self.attempt.phase = Some(phase);
                self.notes.push(EventKind::Phase(phase));
            }
        }
        self.attempt.state = self.running_state();
        Outcome::Applied
    }

    fn expired(&mut self, key: TimerKey) -> Outcome {
        match key {
            TimerKey::Lease => self.expire_lease(),
            TimerKey::UserInput(id) => self.input_expired(id),
            TimerKey::ToolIdle(tool) => self.deadline(TimerKind::ToolIdle, Some(tool)),
            TimerKey::ProcessStart
            | TimerKey::PromptWrite
            | TimerKey::FirstEvent
            | TimerKey::FirstVisibleEvent
            | TimerKey::StreamIdle
            | TimerKey::Total => self.deadline(key.kind(), None),
            TimerKey::Queue | TimerKey::Accept | TimerKey::CleanupTerm => Outcome::Ignored,
        }
    }

    /// A deadline passed: the attempt is ended by the daemon if it can hear, else at once.
    fn deadline(&mut self, timer: TimerKind, tool: Option<Arc<str>>) -> Outcome {
        self.notes.push(EventKind::DeadlineExpired { timer });
        self.deadline_noted(timer, tool)
    }

    pub(super) fn deadline_noted(&mut self, timer: TimerKind, tool: Option<Arc<str>>) -> Outcome {
        let phase = self.attempt.phase;
        let pending = Pending::Deadline { timer, tool, phase };
        let code = super::ending::code_of(timer);
        self.begin_cleanup_or(pending, |machine| {
            // Nobody knows what it did since the stream was lost.
            machine.attempt.retry_safe = false;
            machine.time_out(code, EndedBy::Relay)
        })
    }

    /// The daemon ends it by itself: the process is gone, or a deadline has passed.
    fn own_cleanup(&mut self, pending: Option<Pending>) -> Outcome {
        self.attempt.phase = Some(Phase::CleanupStarted);
        self.enter_cleanup(pending);
        self.notes.push(EventKind::Phase(Phase::CleanupStarted));
        Outcome::Applied
    }

    /// With a session the daemon is told to end it; without one the end is decided now.
    pub(super) fn begin_cleanup_or(
        &mut self,
        pending: Pending,
        alone: impl FnOnce(&mut Self) -> Outcome,
    ) -> Outcome {
        if self.connected {
            self.begin_cleanup(pending)
        } else {
            alone(self)
        }
    }

    pub(super) fn begin_cleanup(&mut self, pending: Pending) -> Outcome {
        let told = self.connected;
        self.enter_cleanup(Some(pending));
        if !told {
            // It cannot have been told; the lease bounds the wait, and the ladder starts when it is back.
            self.timers.disarm(&TimerKey::CleanupTerm);
        }
        Outcome::Applied
    }

    fn enter_cleanup(&mut self, pending: Option<Pending>) {
        self.attempt.tools.clear();
        self.attempt.times.cleanup_started = Some(self.now.wall);
        self.attempt.state = State::CleaningUp { pending };
        self.tell(&Fact::CancelSent);
    }

    fn time_out(&mut self, code: FailureCode, by: EndedBy) -> Outcome {
        let receipt = self.assumed_receipt();
        self.finish(EndState::TimedOut, Some(code), by, receipt)
    }
}
