//! The timers of one attempt, moved by facts. The table in `timers.rs` is this file in words.
//!
//! Every fact comes with the moment it happened; nothing here waits or reads a clock. A timer that is taken as
//! due is gone: what its expiry means is the attempt machine's business.

use std::collections::BTreeSet;

use crate::id::InputId;
use crate::record::Phase;
use crate::time::Moment;

use super::timer::{Armed, Clock, Limits, Timer, TimerKey, ToolCallId, in_profile};

/// Most tool calls, and most inputs, that one attempt may have open. An input beyond it is to be refused; a tool
/// call beyond it is counted and runs under `stream_idle`.
pub const MAX_OPEN: usize = 256;

/// The phases that happen once and in this order. A later one implies the earlier ones.
const ONCE: [Phase; 7] = [
    Phase::Accepted,
    Phase::Queued,
    Phase::Started,
    Phase::AgentStarted,
    Phase::PromptWritten,
    Phase::FirstEventSeen,
    Phase::FirstVisibleEventSeen,
];

/// Something that happened to the attempt and moves its timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// It waits for a daemon.
    Queued,
    /// Dispatch was committed.
    Offered,
    LeaseConfirmed,
    /// The holder's right now lasts until this moment (before grace). Never shortens what was granted.
    Renewed {
        until: Moment,
    },
    /// Any phase that a daemon reports. Tool and input edges need their ids: tell those by the facts below.
    Phase(Phase),
    /// Output arrived, from this tool call if it says so. Implies the first event.
    Output {
        tool: Option<ToolCallId>,
    },
    ToolStarted(ToolCallId),
    ToolFinished(ToolCallId),
    InputAsked(InputId),
    /// A person has answered; the agent has not been told yet, so the wait goes on.
    InputAnswered(InputId),
    /// The agent has its answer, or the input was withdrawn or expired.
    InputClosed(InputId),
    CancelSent,
    /// The task, or all scheduling, is paused.
    Paused,
    Unpaused,
    /// Terminal or parked: no timer remains.
    Ended,
}

/// All timers of one attempt. Small and sorted: a queued task has one entry and costs one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerSet {
    pub(super) timers: Vec<Timer>,
    /// The furthest once-phase seen or implied.
    pub(super) reached: Option<Phase>,
    pub(super) tools: BTreeSet<ToolCallId>,
    pub(super) inputs: BTreeSet<InputId>,
    pub(super) cleaning: bool,
    pub(super) paused: bool,
    pub(super) ended: bool,
    pub(super) untracked: u32,
}

impl TimerSet {
    /// Moves the timers. `at` is when the fact reached the relay, which may lie before the last fact told.
    pub fn on_fact(&mut self, fact: &Fact, at: Moment, limits: &Limits<'_>) {
        if self.ended {
            return;
        }
        match fact {
            Fact::Queued => self.arm(TimerKey::Queue, at, limits),
            Fact::Offered => self.offered(at, limits),
            Fact::LeaseConfirmed => self.confirmed(at, limits),
            Fact::Renewed { until } => self.renew(*until, limits),
            Fact::Phase(phase) => self.phase(*phase, at, limits),
            Fact::Output { tool } => self.output(tool.as_ref(), at, limits),
            Fact::ToolStarted(tool) => self.tool_started(tool, at, limits),
            Fact::ToolFinished(tool) => self.tool_finished(tool, at),
            Fact::InputAsked(input) => self.input_asked(*input, at, limits),
            Fact::InputAnswered(input) => self.disarm(&TimerKey::UserInput(*input)),
            Fact::InputClosed(input) => self.input_closed(*input),
            Fact::CancelSent => self.cleanup(at, limits),
            Fact::Paused => self.paused = true,
            Fact::Unpaused => self.paused = false,
            Fact::Ended => self.end(),
        }
        self.settle_pauses(at);
    }

    /// The timer that fell due first, if any has. Due exactly at its moment counts.
    pub fn due(&self, now: Moment) -> Option<&TimerKey> {
        let (at, key) = self.earliest()?;
        (at <= now).then_some(key)
    }

    /// Takes what fell due, in the order of the deadlines. It does not fire again unless a fact arms it.
    pub fn take_due(&mut self, now: Moment) -> Option<TimerKey> {
        let key = self.due(now)?.clone();
        self.disarm(&key);
        Some(key)
    }

    /// When the next timer falls due. Paused ones have no such moment.
    pub fn next(&self) -> Option<Moment> {
        self.earliest().map(|(at, _)| at)
    }

    pub fn armed(&self) -> impl Iterator<Item = Armed> + '_ {
        self.timers.iter().map(Timer::show)
    }

    /// When the relay acts on this timer; `None` if it is not armed or stands still.
    pub fn fires_at(&self, key: &TimerKey) -> Option<Moment> {
        match self.find(key)?.clock {
            Clock::Running { fires_at } => Some(fires_at),
            Clock::Paused { .. } => None,
        }
    }

    /// What is left of this timer's limit, without slack or grace; zero once only that is left.
    pub fn left_ms(&self, key: &TimerKey, now: Moment) -> Option<u64> {
        let timer = self.find(key)?;
        Some(timer.left_ms(now).saturating_sub(timer.allowance_ms))
    }

    pub fn is_armed(&self, key: &TimerKey) -> bool {
        self.find(key).is_some()
    }

    /// Whether one more input could be given its timer.
    pub fn has_room_for_input(&self) -> bool {
        self.inputs.len() < MAX_OPEN
    }

    /// Tool calls that were too many to track.
    pub fn untracked(&self) -> u32 {
        self.untracked
    }

    /// The furthest once-phase seen or implied.
    pub fn reached(&self) -> Option<Phase> {
        self.reached
    }

    fn earliest(&self) -> Option<(Moment, &TimerKey)> {
        let running = self.timers.iter().filter_map(|timer| match timer.clock {
            Clock::Running { fires_at } => Some((fires_at, &timer.key)),
            Clock::Paused { .. } => None,
        });
        running.min()
    }

    fn find(&self, key: &TimerKey) -> Option<&Timer> {
        let at = self.timers.binary_search_by(|t| t.key.cmp(key)).ok()?;
        self.timers.get(at)
    }

    fn find_mut(&mut self, key: &TimerKey) -> Option<&mut Timer> {
        let at = self.timers.binary_search_by(|t| t.key.cmp(key)).ok()?;
        self.timers.get_mut(at)
    }

    /// Arms it in full if it has a limit and is not armed yet.
    fn arm(&mut self, key: TimerKey, at: Moment, limits: &Limits<'_>) {
        let kind = key.kind();
        let Some(limit_ms) = limits.of(kind) else {
            return;
        };
        let Err(place) = self.timers.binary_search_by(|t| t.key.cmp(&key)) else {
            return;
        };
        let allowance_ms = limits.allowance(kind);
        let fires_at = at + limit_ms.saturating_add(allowance_ms);
        let timer = Timer {
            key,
            limit_ms,
            allowance_ms,
            clock: Clock::Running { fires_at },
        };
        self.timers.insert(place, timer);
    }

    pub(crate) fn disarm(&mut self, key: &TimerKey) {
        self.timers.retain(|timer| timer.key != *key);
    }

    /// Leaves it at most this much of its limit.
    pub(crate) fn shorten(&mut self, key: &TimerKey, left_ms: u64, at: Moment) {
        if let Some(timer) = self.find_mut(key) {
            timer.shorten(left_ms, at);
        }
    }

    fn feed(&mut self, key: &TimerKey, at: Moment) {
        if let Some(timer) = self.find_mut(key) {
            timer.refill(at);
        }
    }

    fn offered(&mut self, at: Moment, limits: &Limits<'_>) {
        self.disarm(&TimerKey::Queue);
        self.arm(TimerKey::Accept, at, limits);
        self.arm(TimerKey::Lease, at, limits);
    }

    fn confirmed(&mut self, at: Moment, limits: &Limits<'_>) {
        self.disarm(&TimerKey::Queue);
        self.disarm(&TimerKey::Accept);
        self.arm(TimerKey::Total, at, limits);
        self.arm(TimerKey::Lease, at, limits);
        self.feed(&TimerKey::Lease, at);
    }

    fn renew(&mut self, until: Moment, limits: &Limits<'_>) {
        if let Some(lease) = self.find_mut(&TimerKey::Lease) {
            lease.extend(until + limits.grace_ms);
        }
    }

    fn phase(&mut self, phase: Phase, at: Moment, limits: &Limits<'_>) {
        match phase {
            Phase::Accepted
            | Phase::Queued
            | Phase::Started
            | Phase::AgentStarted
            | Phase::PromptWritten
            | Phase::FirstEventSeen
            | Phase::FirstVisibleEventSeen => self.once(phase, at, limits),
            Phase::CleanupStarted => self.cleanup(at, limits),
            Phase::CleanupFinished => self.disarm(&TimerKey::CleanupTerm),
            // A hung agent under a healthy daemon must still time out, and the relay's own words are no news.
            Phase::Heartbeat | Phase::RetryScheduled | Phase::Lost => {}
            Phase::Streaming
            | Phase::ToolStarted
            | Phase::ToolFinished
            | Phase::WaitingInput
            | Phase::InputReceived
            | Phase::Completed
            | Phase::Failed
            | Phase::Canceled
            | Phase::TimedOut
            | Phase::Blocked
            | Phase::Checkpointed
            | Phase::Released => self.feed(&TimerKey::StreamIdle, at),
        }
    }

    /// Walks every phase up to this one, so that a skipped phase still arms what outlives it. One that comes
    /// twice or backwards changes nothing.
    fn once(&mut self, phase: Phase, at: Moment, limits: &Limits<'_>) {
        if self.reached.is_some_and(|reached| phase <= reached) {
            return;
        }
        let before = self.reached.replace(phase);
        self.feed(&TimerKey::StreamIdle, at);
        for step in ONCE {
            if Some(step) > before && step <= phase {
                self.step(step, at, limits);
            }
        }
    }

    fn step(&mut self, step: Phase, at: Moment, limits: &Limits<'_>) {
        let (disarm, arm): (&[TimerKey], &[TimerKey]) = match step {
            Phase::Started => (&[TimerKey::Accept], &[TimerKey::ProcessStart]),
            Phase::AgentStarted => (&[TimerKey::ProcessStart], &[TimerKey::PromptWrite]),
            Phase::PromptWritten => (
                &[TimerKey::PromptWrite],
                &[TimerKey::FirstEvent, TimerKey::FirstVisibleEvent],
            ),
            Phase::FirstEventSeen => (&[TimerKey::FirstEvent], &[TimerKey::StreamIdle]),
            Phase::FirstVisibleEventSeen => (&[TimerKey::FirstVisibleEvent], &[]),
            Phase::Accepted | Phase::Queued => (&[TimerKey::Accept], &[]),
            Phase::Streaming
            | Phase::ToolStarted
            | Phase::ToolFinished
            | Phase::WaitingInput
            | Phase::InputReceived
            | Phase::CleanupStarted
            | Phase::CleanupFinished
            | Phase::Heartbeat
            | Phase::RetryScheduled
            | Phase::Completed
            | Phase::Failed
            | Phase::Canceled
            | Phase::TimedOut
            | Phase::Lost
            | Phase::Blocked
            | Phase::Checkpointed
            | Phase::Released => return,
        };
        disarm.iter().for_each(|key| self.disarm(key));
        // Nothing but the kill itself is timed once cleanup has begun.
        if !self.cleaning {
            arm.iter().for_each(|key| self.arm(key.clone(), at, limits));
        }
    }

    fn output(&mut self, tool: Option<&ToolCallId>, at: Moment, limits: &Limits<'_>) {
        self.once(Phase::FirstEventSeen, at, limits);
        self.feed(&TimerKey::StreamIdle, at);
        if let Some(tool) = tool {
            self.feed(&TimerKey::ToolIdle(tool.clone()), at);
        }
    }

    fn tool_started(&mut self, tool: &ToolCallId, at: Moment, limits: &Limits<'_>) {
        self.once(Phase::FirstEventSeen, at, limits);
        self.disarm(&TimerKey::FirstVisibleEvent);
        self.feed(&TimerKey::StreamIdle, at);
        if self.cleaning || self.tools.contains(tool) {
            return;
        }
        if self.tools.len() >= MAX_OPEN {
            self.untracked = self.untracked.saturating_add(1);
            return;
        }
        self.tools.insert(tool.clone());
        self.arm(TimerKey::ToolIdle(tool.clone()), at, limits);
    }

    fn tool_finished(&mut self, tool: &ToolCallId, at: Moment) {
        self.feed(&TimerKey::StreamIdle, at);
        self.tools.remove(tool);
        if !mutant!(ToolIdleNotDisarmed) {
            self.disarm(&TimerKey::ToolIdle(tool.clone()));
        }
    }

    fn input_asked(&mut self, input: InputId, at: Moment, limits: &Limits<'_>) {
        self.once(Phase::FirstEventSeen, at, limits);
        if self.cleaning || !self.has_room_for_input() || !self.inputs.insert(input) {
            return;
        }
        self.arm(TimerKey::UserInput(input), at, limits);
    }

    fn input_closed(&mut self, input: InputId) {
        self.inputs.remove(&input);
        self.disarm(&TimerKey::UserInput(input));
    }

    fn cleanup(&mut self, at: Moment, limits: &Limits<'_>) {
        self.cleaning = true;
        self.tools.clear();
        self.inputs.clear();
        self.disarm(&TimerKey::Accept);
        self.timers
            .retain(|t| !in_profile(t.key.kind()) || t.key == TimerKey::CleanupTerm);
        self.arm(TimerKey::CleanupTerm, at, limits);
    }

    fn end(&mut self) {
        *self = TimerSet {
            ended: true,
            reached: self.reached,
            untracked: self.untracked,
            ..TimerSet::default()
        };
    }

    /// The last column of the table: who stands still now. The clock keeps what is left.
    pub(super) fn settle_pauses(&mut self, now: Moment) {
        let asked = !self.inputs.is_empty();
        let tool_runs = !self.tools.is_empty();
        let held = self.paused;
        for timer in &mut self.timers {
            let pause = match timer.key {
                TimerKey::FirstVisibleEvent | TimerKey::ToolIdle(_) => asked,
                TimerKey::StreamIdle => asked || tool_runs,
                TimerKey::Queue => held,
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
