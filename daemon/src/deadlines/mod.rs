//! The deadline profile as the daemon enforces it: the same table as the relay's, without
//! slack, so that the daemon kills first and the relay's timers are the fallback. Pure: events
//! and time come in, the first expired deadline comes out. cleanup_term is not here; it is the
//! time from SIGTERM to SIGKILL.

pub(crate) mod phase_order;

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::codes;

use crate::clock::BootTime;
use crate::deadlines::phase_order::{OneTimePhase, PhaseOrder};

/// The effective profile of one attempt. `None` means not armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeadlineLimits {
    pub(crate) process_start: Option<Duration>,
    pub(crate) prompt_write: Option<Duration>,
    pub(crate) first_event: Option<Duration>,
    pub(crate) first_visible_event: Option<Duration>,
    pub(crate) stream_idle: Option<Duration>,
    pub(crate) tool_idle: Option<Duration>,
    /// Not part of the profile; never paused.
    pub(crate) total: Option<Duration>,
}

/// A deadline that ended the attempt, with the same failure code as on the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DeadlineKind {
    ProcessStart,
    PromptWrite,
    FirstEvent,
    FirstVisibleEvent,
    StreamIdle,
    ToolIdle,
    Total,
}

impl DeadlineKind {
    pub(crate) fn failure_code(self) -> &'static str {
        match self {
            Self::ProcessStart => codes::PROCESS_START_TIMEOUT,
            Self::PromptWrite => codes::PROMPT_WRITE_TIMEOUT,
            Self::FirstEvent => codes::NO_FIRST_EVENT_TIMEOUT,
            Self::FirstVisibleEvent => codes::NO_VISIBLE_EVENT_TIMEOUT,
            Self::StreamIdle => codes::STREAM_IDLE_TIMEOUT,
            Self::ToolIdle => codes::TOOL_IDLE_TIMEOUT,
            Self::Total => codes::TASK_DEADLINE_EXCEEDED,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ProcessStart => "process_start",
            Self::PromptWrite => "prompt_write",
            Self::FirstEvent => "first_event",
            Self::FirstVisibleEvent => "first_visible_event",
            Self::StreamIdle => "stream_idle",
            Self::ToolIdle => "tool_idle",
            Self::Total => "total",
        }
    }
}

/// What happened in the attempt, as far as a timer depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TimerEvent {
    Entered(OneTimePhase),
    /// Output or an event of the agent. Heartbeats are not activity.
    Activity {
        tool_call_id: Option<String>,
    },
    ToolStarted(String),
    ToolFinished(String),
    InputOpened,
    InputClosed,
}

/// A timer that can be paused. While it is paused, only the remaining time is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PausableTimer {
    Running(BootTime),
    Paused(Duration),
}

impl PausableTimer {
    fn pause(&mut self, now: BootTime) {
        if let Self::Running(at) = *self {
            *self = Self::Paused(now.until(at));
        }
    }

    fn resume(&mut self, now: BootTime) {
        if let Self::Paused(left) = *self {
            *self = Self::Running(now.after(left));
        }
    }
}

#[derive(Debug)]
pub(crate) struct DeadlineTimers {
    limits: DeadlineLimits,
    phase_order: PhaseOrder,
    armed: BTreeMap<DeadlineKind, PausableTimer>,
    tools: BTreeMap<String, Option<PausableTimer>>,
    open_inputs: u32,
    /// Reading is paused because the relay is slow, so missing output is not the agent's fault.
    is_backpressured: bool,
}

impl DeadlineTimers {
    pub(crate) fn new(limits: DeadlineLimits) -> Self {
        Self {
            limits,
            phase_order: PhaseOrder::default(),
            armed: BTreeMap::new(),
            tools: BTreeMap::new(),
            open_inputs: 0,
            is_backpressured: false,
        }
    }

    pub(crate) fn apply(&mut self, event: TimerEvent, now: BootTime) {
        match event {
            TimerEvent::Entered(phase) => self.enter_phase(phase, now),
            TimerEvent::Activity { tool_call_id } => self.on_activity(tool_call_id, now),
            TimerEvent::ToolStarted(id) => {
                self.armed.remove(&DeadlineKind::FirstVisibleEvent);
                self.tools.insert(
                    id,
                    self.limits
                        .tool_idle
                        .map(|l| PausableTimer::Running(now.after(l))),
                );
            }
            TimerEvent::ToolFinished(id) => {
                self.tools.remove(&id);
                self.arm(DeadlineKind::StreamIdle, now);
            }
            TimerEvent::InputOpened => self.open_inputs += 1,
            TimerEvent::InputClosed => self.open_inputs = self.open_inputs.saturating_sub(1),
        }
        self.update_pauses(now);
    }

    /// While reading is paused, stream_idle and tool_idle are paused too.
    pub(crate) fn set_backpressure(&mut self, backpressured: bool, now: BootTime) {
        self.is_backpressured = backpressured;
        self.update_pauses(now);
    }

    pub(crate) fn next_deadline(&self) -> Option<BootTime> {
        self.running_timers().map(|(at, _)| at).min()
    }

    /// The deadline that passed first, if any has. A deadline at exactly `now` has passed.
    pub(crate) fn expired(&self, now: BootTime) -> Option<DeadlineKind> {
        self.running_timers()
            .filter(|(at, _)| *at <= now)
            .min()
            .map(|(_, kind)| kind)
    }

    fn running_timers(&self) -> impl Iterator<Item = (BootTime, DeadlineKind)> + '_ {
        let tools = self
            .tools
            .values()
            .flatten()
            .map(|timer| (DeadlineKind::ToolIdle, *timer));
        self.armed
            .iter()
            .map(|(kind, timer)| (*kind, *timer))
            .chain(tools)
            .filter_map(|(kind, timer)| match timer {
                PausableTimer::Running(at) => Some((at, kind)),
                PausableTimer::Paused(_) => None,
            })
    }

    fn enter_phase(&mut self, phase: OneTimePhase, now: BootTime) {
        let prompted = self.phase_order.has_reached(OneTimePhase::PromptWritten);
        if !self.phase_order.enter(phase) {
            return;
        }
        if phase >= OneTimePhase::CleanupStarted {
            self.armed.clear();
            self.tools.clear();
            return;
        }
        self.disarm_before(phase);
        if phase == OneTimePhase::Started {
            self.arm(DeadlineKind::ProcessStart, now);
            self.arm(DeadlineKind::Total, now);
        }
        if phase == OneTimePhase::AgentStarted {
            self.arm(DeadlineKind::PromptWrite, now);
        }
        if phase == OneTimePhase::PromptWritten {
            self.arm(DeadlineKind::FirstEvent, now);
        }
        // Skipping prompt_written implies it, and so arms what it would have armed.
        if !prompted
            && phase >= OneTimePhase::PromptWritten
            && phase < OneTimePhase::FirstVisibleEventSeen
        {
            self.arm(DeadlineKind::FirstVisibleEvent, now);
        }
        if phase >= OneTimePhase::FirstEventSeen {
            self.arm(DeadlineKind::StreamIdle, now);
        }
    }

    fn disarm_before(&mut self, phase: OneTimePhase) {
        let ended_by = [
            (DeadlineKind::ProcessStart, OneTimePhase::AgentStarted),
            (DeadlineKind::PromptWrite, OneTimePhase::PromptWritten),
            (DeadlineKind::FirstEvent, OneTimePhase::FirstEventSeen),
            (
                DeadlineKind::FirstVisibleEvent,
                OneTimePhase::FirstVisibleEventSeen,
            ),
        ];
        for (kind, end) in ended_by {
            if phase >= end {
                self.armed.remove(&kind);
            }
        }
    }

    fn on_activity(&mut self, tool_call_id: Option<String>, now: BootTime) {
        if let Some(slot) = tool_call_id.and_then(|id| self.tools.get_mut(&id)) {
            *slot = self
                .limits
                .tool_idle
                .map(|limit| PausableTimer::Running(now.after(limit)));
        }
        if self.armed.contains_key(&DeadlineKind::StreamIdle) {
            self.arm(DeadlineKind::StreamIdle, now);
        }
    }

    fn arm(&mut self, kind: DeadlineKind, now: BootTime) {
        let past_events = self.phase_order.has_reached(OneTimePhase::CleanupStarted);
        let limit = match kind {
            DeadlineKind::ProcessStart => self.limits.process_start,
            DeadlineKind::PromptWrite => self.limits.prompt_write,
            DeadlineKind::FirstEvent => self.limits.first_event,
            DeadlineKind::FirstVisibleEvent => self.limits.first_visible_event,
            // Idle time counts only between events; before the first one, first_event applies.
            DeadlineKind::StreamIdle
                if !self.phase_order.has_reached(OneTimePhase::FirstEventSeen) =>
            {
                None
            }
            DeadlineKind::StreamIdle => self.limits.stream_idle,
            DeadlineKind::ToolIdle => self.limits.tool_idle,
            DeadlineKind::Total => self.limits.total,
        };
        if let Some(limit) = limit.filter(|_| !past_events) {
            self.armed
                .insert(kind, PausableTimer::Running(now.after(limit)));
        }
    }

    fn update_pauses(&mut self, now: BootTime) {
        let waiting = self.open_inputs > 0;
        let idle_paused = waiting || self.is_backpressured || !self.tools.is_empty();
        for (kind, timer) in &mut self.armed {
            let paused = match kind {
                DeadlineKind::StreamIdle => idle_paused,
                DeadlineKind::FirstVisibleEvent => waiting,
                DeadlineKind::ProcessStart
                | DeadlineKind::PromptWrite
                | DeadlineKind::FirstEvent
                | DeadlineKind::ToolIdle
                | DeadlineKind::Total => false,
            };
            if paused {
                timer.pause(now)
            } else {
                timer.resume(now)
            }
        }
        for timer in self.tools.values_mut().flatten() {
            if waiting || self.is_backpressured {
                timer.pause(now)
            } else {
                timer.resume(now)
            }
        }
    }
}

#[cfg(test)]
mod tests;
