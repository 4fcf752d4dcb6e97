//! The timers of one attempt, changed by facts. The table in `timers/mod.rs` describes this
//! file.
//!
//! Every fact comes with its time; this file never waits or reads a clock. Taking a due timer
//! disarms it. The attempt machine decides the effect of the expiry.

use std::collections::BTreeSet;

use crate::ids::InputId;
use crate::record::LifecyclePhase;
use crate::time::MonotonicTime;

use super::timer::{
    ArmedTimerView, AttemptTimer, TimerClock, TimerKey, TimerLimits, ToolCallId, is_profile_timer,
};

/// Maximum of open tool calls, and of open inputs, per attempt. The caller refuses further
/// inputs. A further tool call is only counted and stays under `stream_idle`.
pub const MAX_OPEN: usize = 256;

/// The phases that happen once and in this order. A later one implies the earlier ones.
const ONCE_PHASES: [LifecyclePhase; 7] = [
    LifecyclePhase::Accepted,
    LifecyclePhase::Queued,
    LifecyclePhase::Started,
    LifecyclePhase::AgentStarted,
    LifecyclePhase::PromptWritten,
    LifecyclePhase::FirstEventSeen,
    LifecyclePhase::FirstVisibleEventSeen,
];

/// Something that happened to the attempt and changes its timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerFact {
    /// The attempt waits for a daemon.
    Queued,
    /// Dispatch was committed.
    Offered,
    LeaseConfirmed,
    /// The lease now lasts until this time, before grace. Never shortens an earlier grant.
    Renewed {
        until: MonotonicTime,
    },
    /// A phase that a daemon reports. Tool and input changes need ids, so they have their own
    /// facts.
    Phase(LifecyclePhase),
    /// Output arrived, from this tool call if one is named. Implies the first event.
    Output {
        tool: Option<ToolCallId>,
    },
    ToolStarted(ToolCallId),
    ToolFinished(ToolCallId),
    InputAsked(InputId),
    /// A person has answered. The agent does not have the answer yet, so the input still pauses
    /// other timers.
    InputAnswered(InputId),
    /// The agent received the answer, or the input was withdrawn or expired.
    InputClosed(InputId),
    CancelSent,
    /// The task, or all scheduling, is paused.
    Paused,
    Unpaused,
    /// Terminal or parked: no timer remains.
    Ended,
}

/// All timers of one attempt. Small and sorted: a queued task has one entry and costs one
/// allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerSet {
    pub(super) timers: Vec<AttemptTimer>,
    /// The furthest once-phase seen or implied.
    pub(super) furthest_phase: Option<LifecyclePhase>,
    pub(super) tools: BTreeSet<ToolCallId>,
    pub(super) inputs: BTreeSet<InputId>,
    pub(super) cleaning: bool,
    pub(super) paused: bool,
    pub(super) ended: bool,
    pub(super) untracked_tools: u32,
}

impl TimerSet {
    /// Applies a fact. `at` is when it reached the relay, which may be before the last applied
    /// fact.
    pub fn on_fact(&mut self, fact: &TimerFact, at: MonotonicTime, limits: &TimerLimits<'_>) {
        if self.ended {
            return;
        }
        match fact {
            TimerFact::Queued => self.arm(TimerKey::Queue, at, limits),
            TimerFact::Offered => self.offered(at, limits),
            TimerFact::LeaseConfirmed => self.confirmed(at, limits),
            TimerFact::Renewed { until } => self.renew(*until, limits),
            TimerFact::Phase(phase) => self.phase(*phase, at, limits),
            TimerFact::Output { tool } => self.output(tool.as_ref(), at, limits),
            TimerFact::ToolStarted(tool) => self.tool_started(tool, at, limits),
            TimerFact::ToolFinished(tool) => self.tool_finished(tool, at),
            TimerFact::InputAsked(input) => self.input_asked(*input, at, limits),
            TimerFact::InputAnswered(input) => self.disarm(&TimerKey::UserInput(*input)),
            TimerFact::InputClosed(input) => self.input_closed(*input),
            TimerFact::CancelSent => self.cleanup(at, limits),
            TimerFact::Paused => self.paused = true,
            TimerFact::Unpaused => self.paused = false,
            TimerFact::Ended => self.end(),
        }
        self.update_pauses(at);
    }

    /// The due timer with the earliest deadline. A timer is due exactly at its deadline.
    pub fn due(&self, now: MonotonicTime) -> Option<&TimerKey> {
        let (at, key) = self.earliest()?;
        (at <= now).then_some(key)
    }

    /// Removes and returns the due timer with the earliest deadline. It fires again only if
    /// re-armed.
    pub fn take_due(&mut self, now: MonotonicTime) -> Option<TimerKey> {
        let key = self.due(now)?.clone();
        self.disarm(&key);
        Some(key)
    }

    /// When the next timer is due. Paused timers do not count.
    pub fn next_due_at(&self) -> Option<MonotonicTime> {
        self.earliest().map(|(at, _)| at)
    }

    pub fn armed_timers(&self) -> impl Iterator<Item = ArmedTimerView> + '_ {
        self.timers.iter().map(AttemptTimer::view)
    }

    /// When the relay acts on this timer; `None` if it is not armed or paused.
    pub fn fires_at(&self, key: &TimerKey) -> Option<MonotonicTime> {
        match self.find(key)?.clock {
            TimerClock::Running { fires_at } => Some(fires_at),
            TimerClock::Paused { .. } => None,
        }
    }

    /// What is left of this timer's limit, without slack or grace.
    pub fn left_ms(&self, key: &TimerKey, now: MonotonicTime) -> Option<u64> {
        let timer = self.find(key)?;
        Some(timer.left_ms(now).saturating_sub(timer.allowance_ms))
    }

    pub fn is_armed(&self, key: &TimerKey) -> bool {
        self.find(key).is_some()
    }

    /// Whether one more input can be tracked.
    pub fn has_room_for_input(&self) -> bool {
        self.inputs.len() < MAX_OPEN
    }

    /// Number of tool calls over the limit, which are not tracked.
    pub fn untracked(&self) -> u32 {
        self.untracked_tools
    }

    /// The furthest once-phase seen or implied.
    pub fn reached(&self) -> Option<LifecyclePhase> {
        self.furthest_phase
    }

    fn earliest(&self) -> Option<(MonotonicTime, &TimerKey)> {
        let running = self.timers.iter().filter_map(|timer| match timer.clock {
            TimerClock::Running { fires_at } => Some((fires_at, &timer.key)),
            TimerClock::Paused { .. } => None,
        });
        running.min()
    }

    fn find(&self, key: &TimerKey) -> Option<&AttemptTimer> {
        let at = self.timers.binary_search_by(|t| t.key.cmp(key)).ok()?;
        self.timers.get(at)
    }

    fn find_mut(&mut self, key: &TimerKey) -> Option<&mut AttemptTimer> {
        let at = self.timers.binary_search_by(|t| t.key.cmp(key)).ok()?;
        self.timers.get_mut(at)
    }

    /// Arms a timer with its full limit, if it has one and is not armed yet.
    fn arm(&mut self, key: TimerKey, at: MonotonicTime, limits: &TimerLimits<'_>) {
        let kind = key.kind();
        let Some(limit_ms) = limits.limit_of(kind) else {
            return;
        };
        let Err(index) = self.timers.binary_search_by(|t| t.key.cmp(&key)) else {
            return;
        };
        let allowance_ms = limits.allowance(kind);
        let fires_at = at + limit_ms.saturating_add(allowance_ms);
        let timer = AttemptTimer {
            key,
            limit_ms,
            allowance_ms,
            clock: TimerClock::Running { fires_at },
        };
        self.timers.insert(index, timer);
    }

    pub(crate) fn disarm(&mut self, key: &TimerKey) {
        self.timers.retain(|timer| timer.key != *key);
    }

    /// Reduces the rest of a timer's limit to at most `left_ms`.
    pub(crate) fn shorten(&mut self, key: &TimerKey, left_ms: u64, at: MonotonicTime) {
        if let Some(timer) = self.find_mut(key) {
            timer.shorten(left_ms, at);
        }
    }

    fn restart_timer(&mut self, key: &TimerKey, at: MonotonicTime) {
        if let Some(timer) = self.find_mut(key) {
            timer.restart(at);
        }
    }

    fn offered(&mut self, at: MonotonicTime, limits: &TimerLimits<'_>) {
        self.disarm(&TimerKey::Queue);
        self.arm(TimerKey::Accept, at, limits);
        self.arm(TimerKey::Lease, at, limits);
    }

    fn confirmed(&mut self, at: MonotonicTime, limits: &TimerLimits<'_>) {
        self.disarm(&TimerKey::Queue);
        self.disarm(&TimerKey::Accept);
        self.arm(TimerKey::Total, at, limits);
        self.arm(TimerKey::Lease, at, limits);
        self.restart_timer(&TimerKey::Lease, at);
    }

    fn renew(&mut self, until: MonotonicTime, limits: &TimerLimits<'_>) {
        if let Some(lease) = self.find_mut(&TimerKey::Lease) {
            lease.extend(until + limits.grace_ms);
        }
    }

    fn phase(&mut self, phase: LifecyclePhase, at: MonotonicTime, limits: &TimerLimits<'_>) {
        match phase {
            LifecyclePhase::Accepted
            | LifecyclePhase::Queued
            | LifecyclePhase::Started
            | LifecyclePhase::AgentStarted
            | LifecyclePhase::PromptWritten
            | LifecyclePhase::FirstEventSeen
            | LifecyclePhase::FirstVisibleEventSeen => self.apply_once_phase(phase, at, limits),
            LifecyclePhase::CleanupStarted => self.cleanup(at, limits),
            LifecyclePhase::CleanupFinished => self.disarm(&TimerKey::CleanupTerm),
            // Heartbeats must not keep a hung agent under a healthy daemon alive, and phases
            // that the relay sets are no sign of activity.
            LifecyclePhase::Heartbeat | LifecyclePhase::RetryScheduled | LifecyclePhase::Lost => {}
            LifecyclePhase::Streaming
            | LifecyclePhase::ToolStarted
            | LifecyclePhase::ToolFinished
            | LifecyclePhase::WaitingInput
            | LifecyclePhase::InputReceived
            | LifecyclePhase::Completed
            | LifecyclePhase::Failed
            | LifecyclePhase::Canceled
            | LifecyclePhase::TimedOut
            | LifecyclePhase::Blocked
            | LifecyclePhase::Checkpointed
            | LifecyclePhase::Released => self.restart_timer(&TimerKey::StreamIdle, at),
        }
    }

    /// Applies every phase up to this one, so that a skipped phase still arms the timers that
    /// outlast it. A repeated or earlier phase changes nothing.
    fn apply_once_phase(
        &mut self,
        phase: LifecyclePhase,
        at: MonotonicTime,
        limits: &TimerLimits<'_>,
    ) {
        if self.furthest_phase.is_some_and(|reached| phase <= reached) {
            return;
        }
        let before = self.furthest_phase.replace(phase);
        self.restart_timer(&TimerKey::StreamIdle, at);
        for step in ONCE_PHASES {
            if Some(step) > before && step <= phase {
                self.apply_phase_step(step, at, limits);
            }
        }
    }

    fn apply_phase_step(
        &mut self,
        step: LifecyclePhase,
        at: MonotonicTime,
        limits: &TimerLimits<'_>,
    ) {
        let (disarm, arm): (&[TimerKey], &[TimerKey]) = match step {
            LifecyclePhase::Started => (&[TimerKey::Accept], &[TimerKey::ProcessStart]),
            LifecyclePhase::AgentStarted => (&[TimerKey::ProcessStart], &[TimerKey::PromptWrite]),
            LifecyclePhase::PromptWritten => (
                &[TimerKey::PromptWrite],
                &[TimerKey::FirstEvent, TimerKey::FirstVisibleEvent],
            ),
            LifecyclePhase::FirstEventSeen => (&[TimerKey::FirstEvent], &[TimerKey::StreamIdle]),
            LifecyclePhase::FirstVisibleEventSeen => (&[TimerKey::FirstVisibleEvent], &[]),
            LifecyclePhase::Accepted | LifecyclePhase::Queued => (&[TimerKey::Accept], &[]),
            LifecyclePhase::Streaming
            | LifecyclePhase::ToolStarted
            | LifecyclePhase::ToolFinished
            | LifecyclePhase::WaitingInput
            | LifecyclePhase::InputReceived
            | LifecyclePhase::CleanupStarted
            | LifecyclePhase::CleanupFinished
            | LifecyclePhase::Heartbeat
            | LifecyclePhase::RetryScheduled
            | LifecyclePhase::Completed
            | LifecyclePhase::Failed
            | LifecyclePhase::Canceled
            | LifecyclePhase::TimedOut
            | LifecyclePhase::Lost
            | LifecyclePhase::Blocked
            | LifecyclePhase::Checkpointed
            | LifecyclePhase::Released => return,
        };
        disarm.iter().for_each(|key| self.disarm(key));
        // After the start of cleanup no phase timer is armed.
        if !self.cleaning {
            arm.iter().for_each(|key| self.arm(key.clone(), at, limits));
        }
    }

    fn output(&mut self, tool: Option<&ToolCallId>, at: MonotonicTime, limits: &TimerLimits<'_>) {
        self.apply_once_phase(LifecyclePhase::FirstEventSeen, at, limits);
        self.restart_timer(&TimerKey::StreamIdle, at);
        if let Some(tool) = tool {
            self.restart_timer(&TimerKey::ToolIdle(tool.clone()), at);
        }
    }

    fn tool_started(&mut self, tool: &ToolCallId, at: MonotonicTime, limits: &TimerLimits<'_>) {
        self.apply_once_phase(LifecyclePhase::FirstEventSeen, at, limits);
        self.disarm(&TimerKey::FirstVisibleEvent);
        self.restart_timer(&TimerKey::StreamIdle, at);
        if self.cleaning || self.tools.contains(tool) {
            return;
        }
        if self.tools.len() >= MAX_OPEN {
            self.untracked_tools = self.untracked_tools.saturating_add(1);
            return;
        }
        self.tools.insert(tool.clone());
        self.arm(TimerKey::ToolIdle(tool.clone()), at, limits);
    }

    fn tool_finished(&mut self, tool: &ToolCallId, at: MonotonicTime) {
        self.restart_timer(&TimerKey::StreamIdle, at);
        self.tools.remove(tool);
        if !mutant!(ToolIdleNotDisarmed) {
            self.disarm(&TimerKey::ToolIdle(tool.clone()));
        }
    }

    fn input_asked(&mut self, input: InputId, at: MonotonicTime, limits: &TimerLimits<'_>) {
        self.apply_once_phase(LifecyclePhase::FirstEventSeen, at, limits);
        if self.cleaning || !self.has_room_for_input() || !self.inputs.insert(input) {
            return;
        }
        self.arm(TimerKey::UserInput(input), at, limits);
    }

    fn input_closed(&mut self, input: InputId) {
        self.inputs.remove(&input);
        self.disarm(&TimerKey::UserInput(input));
    }

    fn cleanup(&mut self, at: MonotonicTime, limits: &TimerLimits<'_>) {
        self.cleaning = true;
        self.tools.clear();
        self.inputs.clear();
        self.disarm(&TimerKey::Accept);
        self.timers
            .retain(|t| !is_profile_timer(t.key.kind()) || t.key == TimerKey::CleanupTerm);
        self.arm(TimerKey::CleanupTerm, at, limits);
    }

    fn end(&mut self) {
        *self = TimerSet {
            ended: true,
            furthest_phase: self.furthest_phase,
            untracked_tools: self.untracked_tools,
            ..TimerSet::default()
        };
    }

    /// Pauses and resumes timers by the last column of the table. A paused timer keeps what is
    /// left.
    pub(super) fn update_pauses(&mut self, now: MonotonicTime) {
        let input_open = !self.inputs.is_empty();
        let tool_runs = !self.tools.is_empty();
        let queue_paused = self.paused;
        for timer in &mut self.timers {
            let pause = match timer.key {
                TimerKey::FirstVisibleEvent | TimerKey::ToolIdle(_) => input_open,
                TimerKey::StreamIdle => input_open || tool_runs,
                TimerKey::Queue => queue_paused,
                TimerKey::ProcessStart
                | TimerKey::PromptWrite
                | TimerKey::FirstEvent
                | TimerKey::UserInput(_)
                | TimerKey::CleanupTerm
                | TimerKey::Accept
                | TimerKey::Total
                | TimerKey::Lease => false,
            };
            timer.set_paused(pause, now);
        }
    }
}
