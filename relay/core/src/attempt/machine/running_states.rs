//! Events in the states in which the daemon may run processes: accepted to waiting_input.
//!
//! The state is derived from the furthest phase and the open tools and inputs
//! (`running_state`). No frame sets it directly.

use std::sync::Arc;

use super::{AttemptMachine, EventOutcome, MachineEvent};
use crate::attempt::timers::{TimerFact, TimerKey};
use crate::io::rejection::Rejection;
use crate::io::session_input::OutputSignal;
use crate::record::{
    AttemptState, EndState, EndedBy, FailureCode, LifecyclePhase, OpenTool, PendingEnd,
    TimelineEventKind, TimerKind,
};

impl AttemptMachine<'_> {
    pub(super) fn on_accepted(&mut self, event: MachineEvent) -> EventOutcome {
        match event {
            // No process was started, even if LeaseConfirmed and the rejection crossed on the
            // wire.
            MachineEvent::Rejected { code, message } => self.reject_offer(&code, message),
            // The offer was confirmed by settlement, and its TaskAccepted is replayed.
            MachineEvent::Accepted => EventOutcome::Applied,
            other @ (MachineEvent::Offer { .. }
            | MachineEvent::Claim { .. }
            | MachineEvent::DeliveryFailed
            | MachineEvent::Withdraw
            | MachineEvent::HandOff { .. }
            | MachineEvent::KeptBySettlement
            | MachineEvent::Phase(_)
            | MachineEvent::DaemonDeadline(_)
            | MachineEvent::ToolStarted(_)
            | MachineEvent::ToolFinished(_)
            | MachineEvent::InputAsked(..)
            | MachineEvent::InputWithdrawn(_)
            | MachineEvent::InputReceived(_)
            | MachineEvent::Output { .. }
            | MachineEvent::Completed(_)
            | MachineEvent::ContractUnmet(_)
            | MachineEvent::Errored(_)
            | MachineEvent::Canceled(_)
            | MachineEvent::Released { .. }
            | MachineEvent::Receipt(_)
            | MachineEvent::CancelAsked { .. }
            | MachineEvent::Park { .. }
            | MachineEvent::Forced(_)
            | MachineEvent::Answered(..)
            | MachineEvent::TimerExpired(_)
            | MachineEvent::MissingOnDaemon
            | MachineEvent::Rebooted) => self.on_running(other),
        }
    }

    pub(super) fn on_running(&mut self, event: MachineEvent) -> EventOutcome {
        match event {
            MachineEvent::Phase(phase) => self.apply_phase(phase),
            MachineEvent::DaemonDeadline(timer) => {
                self.begin_daemon_cleanup(Some(PendingEnd::DaemonDeadline { timer }))
            }
            MachineEvent::ToolStarted(tool) => self.start_tool(tool),
            MachineEvent::ToolFinished(id) => self.finish_tool(&id),
            MachineEvent::InputAsked(input, ruled) => self.open_input(*input, ruled),
            MachineEvent::InputWithdrawn(id) => self.withdraw_input(id),
            MachineEvent::InputReceived(id) => self.confirm_answer_received(id),
            MachineEvent::Answered(id, answer) => self.answer_input(id, answer),
            MachineEvent::Output { sign, tools, end } => self.apply_output(sign, &tools, end),
            MachineEvent::Completed(body) => self.complete_attempt(body),
            MachineEvent::ContractUnmet(body) => self.apply_unmet_contract(body),
            MachineEvent::Errored(body) => self.fail_attempt(body),
            MachineEvent::Canceled(body) => self.cancel_attempt(body),
            MachineEvent::Released {
                reason,
                termination,
            } => self.release_attempt(reason, &termination),
            MachineEvent::Receipt(termination) => self.lose_terminated(&termination),
            MachineEvent::CancelAsked { operator } => {
                self.begin_cleanup(PendingEnd::Cancel { operator })
            }
            MachineEvent::Park { cause, termination } => {
                self.park_leased(cause, termination.as_ref())
            }
            MachineEvent::Forced(forced) => self.force_end(forced),
            MachineEvent::TimerExpired(key) => self.timer_expired(key),
            MachineEvent::MissingOnDaemon => self.lose_attempt(FailureCode::DaemonLostAttempt),
            MachineEvent::Rebooted => self.lose_rebooted(),
            MachineEvent::Accepted | MachineEvent::Rejected { .. } => {
                EventOutcome::Refused(Rejection::WrongOrder)
            }
            MachineEvent::Offer { .. }
            | MachineEvent::Claim { .. }
            | MachineEvent::DeliveryFailed
            | MachineEvent::Withdraw
            | MachineEvent::HandOff { .. }
            | MachineEvent::KeptBySettlement => EventOutcome::Ignored,
        }
    }

    /// The state derived from open inputs, open tools and the furthest phase.
    pub(super) fn running_state(&self) -> AttemptState {
        if self
            .attempt
            .inputs
            .iter()
            .any(|input| input.state.is_pending())
        {
            return AttemptState::WaitingInput;
        }
        if !self.attempt.open_tools.is_empty() {
            return AttemptState::ToolRunning;
        }
        match self.attempt.furthest_phase {
            Some(reached) if reached >= LifecyclePhase::FirstEventSeen => AttemptState::Streaming,
            Some(LifecyclePhase::PromptWritten) => AttemptState::Prompted,
            Some(LifecyclePhase::Started | LifecyclePhase::AgentStarted) => AttemptState::Starting,
            Some(_) | None => AttemptState::Accepted,
        }
    }

    fn apply_phase(&mut self, phase: LifecyclePhase) -> EventOutcome {
        match phase {
            LifecyclePhase::Accepted
            | LifecyclePhase::Queued
            | LifecyclePhase::Started
            | LifecyclePhase::AgentStarted
            | LifecyclePhase::PromptWritten
            | LifecyclePhase::FirstEventSeen
            | LifecyclePhase::FirstVisibleEventSeen => self.apply_once_phase(phase),
            LifecyclePhase::CleanupStarted => self.begin_daemon_cleanup(None),
            LifecyclePhase::CleanupFinished => EventOutcome::Refused(Rejection::WrongOrder),
            LifecyclePhase::Heartbeat => EventOutcome::Ignored,
            LifecyclePhase::Streaming | LifecyclePhase::Checkpointed => {
                self.apply_activity_phase(phase)
            }
            // Diagnostics only: tools and inputs have frames of their own, and no phase ends an
            // attempt.
            LifecyclePhase::ToolStarted
            | LifecyclePhase::ToolFinished
            | LifecyclePhase::WaitingInput
            | LifecyclePhase::InputReceived
            | LifecyclePhase::RetryScheduled
            | LifecyclePhase::Completed
            | LifecyclePhase::Failed
            | LifecyclePhase::Canceled
            | LifecyclePhase::TimedOut
            | LifecyclePhase::Lost
            | LifecyclePhase::Blocked
            | LifecyclePhase::Released => EventOutcome::Ignored,
        }
    }

    fn apply_once_phase(&mut self, phase: LifecyclePhase) -> EventOutcome {
        if self
            .attempt
            .furthest_phase
            .is_some_and(|reached| phase <= reached)
        {
            return EventOutcome::Regressed;
        }
        self.mark_phase_reached(phase);
        self.attempt.phase = Some(phase);
        self.update_timers(&TimerFact::Phase(phase));
        self.attempt.state = self.running_state();
        self.timeline_events.push(TimelineEventKind::Phase(phase));
        EventOutcome::Applied
    }

    /// Records the phase and everything it implies.
    pub(super) fn mark_phase_reached(&mut self, phase: LifecyclePhase) {
        if self
            .attempt
            .furthest_phase
            .is_some_and(|reached| phase <= reached)
        {
            return;
        }
        self.attempt.furthest_phase = Some(phase);
        if phase >= LifecyclePhase::PromptWritten {
            self.attempt.prompt_written = Some(true);
        }
        if phase == LifecyclePhase::FirstVisibleEventSeen {
            self.attempt.retry_safe = false;
        }
        self.attempt.stage_times.record_phase(phase, self.now.wall);
    }

    fn apply_activity_phase(&mut self, phase: LifecyclePhase) -> EventOutcome {
        self.mark_phase_reached(LifecyclePhase::FirstEventSeen);
        self.update_timers(&TimerFact::Output { tool: None });
        self.attempt.phase = Some(phase);
        self.attempt.state = self.running_state();
        self.timeline_events.push(TimelineEventKind::Phase(phase));
        EventOutcome::Applied
    }

    fn start_tool(&mut self, tool: OpenTool) -> EventOutcome {
        if self
            .attempt
            .open_tools
            .iter()
            .any(|open| open.id == tool.id)
        {
            return EventOutcome::Refused(Rejection::DuplicateTool);
        }
        if self.attempt.open_tools.len() >= self.config.max_tools {
            return EventOutcome::Refused(Rejection::TooManyTools);
        }
        self.mark_phase_reached(LifecyclePhase::FirstEventSeen);
        self.attempt.retry_safe = false;
        self.attempt.phase = Some(LifecyclePhase::ToolStarted);
        self.update_timers(&TimerFact::ToolStarted(tool.id.clone()));
        self.timeline_events.push(TimelineEventKind::ToolStarted {
            id: tool.id.clone(),
            name: tool.name.clone(),
        });
        self.attempt.open_tools.push(tool);
        self.attempt.state = self.running_state();
        EventOutcome::Applied
    }

    fn finish_tool(&mut self, id: &Arc<str>) -> EventOutcome {
        let Some(index) = self
            .attempt
            .open_tools
            .iter()
            .position(|open| open.id == *id)
        else {
            return EventOutcome::Refused(Rejection::UnknownTool);
        };
        self.attempt.open_tools.remove(index);
        self.attempt.phase = Some(LifecyclePhase::ToolFinished);
        self.update_timers(&TimerFact::ToolFinished(id.clone()));
        self.attempt.state = self.running_state();
        self.timeline_events
            .push(TimelineEventKind::ToolFinished { id: id.clone() });
        EventOutcome::Applied
    }

    fn apply_output(&mut self, sign: OutputSignal, tools: &[Arc<str>], end: u64) -> EventOutcome {
        self.attempt.output_end = self.attempt.output_end.max(end);
        // Output of a program before its prompt does not prove that the prompt was written, so
        // it restarts no timer.
        if sign == OutputSignal::BeforePrompt {
            return EventOutcome::Ignored;
        }
        let before = self.attempt.furthest_phase;
        for tool in tools {
            self.update_timers(&TimerFact::Output {
                tool: Some(tool.clone()),
            });
        }
        self.update_timers(&TimerFact::Output { tool: None });
        self.mark_phase_reached(LifecyclePhase::FirstEventSeen);
        if sign == OutputSignal::VisibleEvent {
            self.update_timers(&TimerFact::Phase(LifecyclePhase::FirstVisibleEventSeen));
            self.mark_phase_reached(LifecyclePhase::FirstVisibleEventSeen);
        }
        if self.attempt.furthest_phase == before {
            return EventOutcome::Ignored;
        }
        // The daemon reported no phase, so the first output implies it.
        for phase in [
            LifecyclePhase::FirstEventSeen,
            LifecyclePhase::FirstVisibleEventSeen,
        ] {
            if before < Some(phase) && self.attempt.furthest_phase >= Some(phase) {
                self.attempt.phase = Some(phase);
                self.timeline_events.push(TimelineEventKind::Phase(phase));
            }
        }
        self.attempt.state = self.running_state();
        EventOutcome::Applied
    }

    fn timer_expired(&mut self, key: TimerKey) -> EventOutcome {
        match key {
            TimerKey::Lease => self.expire_lease(),
            TimerKey::UserInput(id) => self.expire_input(id),
            TimerKey::ToolIdle(tool) => self.expire_deadline(TimerKind::ToolIdle, Some(tool)),
            TimerKey::ProcessStart
            | TimerKey::PromptWrite
            | TimerKey::FirstEvent
            | TimerKey::FirstVisibleEvent
            | TimerKey::StreamIdle
            | TimerKey::Total => self.expire_deadline(key.kind(), None),
            TimerKey::Queue | TimerKey::Accept | TimerKey::CleanupTerm => EventOutcome::Ignored,
        }
    }

    /// Ends the attempt for an expired deadline: through the daemon if it is connected, else at
    /// once.
    fn expire_deadline(&mut self, timer: TimerKind, tool: Option<Arc<str>>) -> EventOutcome {
        self.timeline_events
            .push(TimelineEventKind::DeadlineExpired { timer });
        self.end_for_deadline(timer, tool)
    }

    pub(super) fn end_for_deadline(
        &mut self,
        timer: TimerKind,
        tool: Option<Arc<str>>,
    ) -> EventOutcome {
        let phase = self.attempt.phase;
        let pending = PendingEnd::Deadline { timer, tool, phase };
        let code = super::attempt_end::timer_failure_code(timer);
        self.begin_cleanup_or(pending, |machine| {
            // It is unknown what the attempt did since the stream was lost.
            machine.attempt.retry_safe = false;
            machine.time_out(code, EndedBy::Relay)
        })
    }

    /// The daemon ends the attempt itself: the process exited, or a deadline expired.
    fn begin_daemon_cleanup(&mut self, pending: Option<PendingEnd>) -> EventOutcome {
        self.attempt.phase = Some(LifecyclePhase::CleanupStarted);
        self.enter_cleanup(pending);
        self.timeline_events
            .push(TimelineEventKind::Phase(LifecyclePhase::CleanupStarted));
        EventOutcome::Applied
    }

    /// Starts cleanup through the daemon if it has a session; otherwise `if_disconnected` ends
    /// the attempt now.
    pub(super) fn begin_cleanup_or(
        &mut self,
        pending: PendingEnd,
        if_disconnected: impl FnOnce(&mut Self) -> EventOutcome,
    ) -> EventOutcome {
        if self.connected {
            self.begin_cleanup(pending)
        } else {
            if_disconnected(self)
        }
    }

    pub(super) fn begin_cleanup(&mut self, pending: PendingEnd) -> EventOutcome {
        self.enter_cleanup(Some(pending));
        if !self.connected {
            // No Cancel can be sent now. The lease bounds the wait, and the cleanup timer
            // starts after the daemon reconnects.
            self.timers.disarm(&TimerKey::CleanupTerm);
        }
        EventOutcome::Applied
    }

    fn enter_cleanup(&mut self, pending: Option<PendingEnd>) {
        self.attempt.open_tools.clear();
        self.attempt.stage_times.cleanup_started = Some(self.now.wall);
        self.attempt.state = AttemptState::CleaningUp { pending };
        self.update_timers(&TimerFact::CancelSent);
    }

    fn time_out(&mut self, code: FailureCode, by: EndedBy) -> EventOutcome {
        let receipt = self.assumed_receipt();
        self.finish(EndState::TimedOut, Some(code), by, receipt)
    }
}
