//! Timers across a restart of the relay. Stored is how much of each limit is used, never a
//! time.
//!
//! Downtime of the relay counts for no timer. The time used before it stays used, so that
//! repeated restarts cannot postpone `total`, `queue` or `user_input`.

use crate::ids::InputId;
use crate::record::{LifecyclePhase, TimerBudget, TimerKind};
use crate::time::MonotonicTime;

use super::timer::{AttemptTimer, TimerClock, TimerKey, TimerLimits, ToolCallId};
use super::timer_set::TimerSet;

/// The stored state of an attempt's timers.
#[derive(Clone, Debug, Default)]
pub struct StoredTimers<'a> {
    pub budgets: &'a [TimerBudget],
    /// The furthest once-phase seen or implied.
    pub furthest_phase: Option<LifecyclePhase>,
    pub tools: Vec<ToolCallId>,
    /// Inputs whose answer has not reached the agent.
    pub inputs: Vec<InputId>,
    pub cleaning: bool,
    /// The task or the scheduler is paused.
    pub paused: bool,
    /// The largest outstanding grant. The lease lasts this long from boot, plus grace, because
    /// it could not be renewed while the relay was down.
    pub lease_ms: u64,
    /// Minimum for a phase timer: the frame that disarms it may be in the outbox of a daemon
    /// that has yet to reconnect.
    pub floor_ms: u64,
}

impl TimerSet {
    /// The budgets to store. Older than 30 s, they are too inexact for the hard deadlines.
    pub fn budgets(&self, now: MonotonicTime) -> Vec<TimerBudget> {
        self.timers.iter().map(|timer| budget(timer, now)).collect()
    }

    /// Arms the stored timers with what is left of them.
    pub fn restore(
        stored: &StoredTimers<'_>,
        now: MonotonicTime,
        limits: &TimerLimits<'_>,
    ) -> TimerSet {
        let timers = stored
            .budgets
            .iter()
            .filter_map(|budget| timer(budget, stored, now, limits));
        let mut set = TimerSet {
            timers: timers.collect(),
            furthest_phase: stored.furthest_phase,
            tools: stored.tools.iter().cloned().collect(),
            inputs: stored.inputs.iter().copied().collect(),
            cleaning: stored.cleaning,
            paused: stored.paused,
            ..TimerSet::default()
        };
        set.timers.sort_by(|a, b| a.key.cmp(&b.key));
        set.timers.dedup_by(|a, b| a.key == b.key);
        set.update_pauses(now);
        set
    }
}

fn budget(timer: &AttemptTimer, now: MonotonicTime) -> TimerBudget {
    let (tool, input) = match &timer.key {
        TimerKey::ToolIdle(tool) => (Some(tool.clone()), None),
        TimerKey::UserInput(input) => (None, Some(*input)),
        TimerKey::Queue
        | TimerKey::Accept
        | TimerKey::ProcessStart
        | TimerKey::PromptWrite
        | TimerKey::FirstEvent
        | TimerKey::FirstVisibleEvent
        | TimerKey::StreamIdle
        | TimerKey::CleanupTerm
        | TimerKey::Total
        | TimerKey::Lease => (None, None),
    };
    TimerBudget {
        timer: timer.key.kind(),
        tool,
        input,
        limit_ms: timer.limit_ms,
        consumed_ms: timer.full_ms().saturating_sub(timer.left_ms(now)),
        paused: matches!(timer.clock, TimerClock::Paused { .. }),
    }
}

/// The key of a stored budget. `None` if the budget lacks its tool call or input id.
fn key(budget: &TimerBudget) -> Option<TimerKey> {
    Some(match budget.timer {
        TimerKind::Queue => TimerKey::Queue,
        TimerKind::Accept => TimerKey::Accept,
        TimerKind::ProcessStart => TimerKey::ProcessStart,
        TimerKind::PromptWrite => TimerKey::PromptWrite,
        TimerKind::FirstEvent => TimerKey::FirstEvent,
        TimerKind::FirstVisibleEvent => TimerKey::FirstVisibleEvent,
        TimerKind::StreamIdle => TimerKey::StreamIdle,
        TimerKind::ToolIdle => TimerKey::ToolIdle(budget.tool.clone()?),
        TimerKind::UserInput => TimerKey::UserInput(budget.input?),
        TimerKind::CleanupTerm => TimerKey::CleanupTerm,
        TimerKind::Total => TimerKey::Total,
        TimerKind::Lease => TimerKey::Lease,
    })
}

fn timer(
    budget: &TimerBudget,
    stored: &StoredTimers<'_>,
    now: MonotonicTime,
    limits: &TimerLimits<'_>,
) -> Option<AttemptTimer> {
    let allowance_ms = limits.allowance(budget.timer);
    let full = budget.limit_ms.saturating_add(allowance_ms);
    let left = full.saturating_sub(budget.consumed_ms);
    let left = match budget.timer {
        TimerKind::Total if mutant!(TotalRestartsAtBoot) => full,
        TimerKind::Lease if mutant!(BootGraceMissing) => left,
        TimerKind::Total | TimerKind::Queue | TimerKind::UserInput => left,
        // The time of the last output is not stored, so these timers start again at boot.
        TimerKind::StreamIdle | TimerKind::ToolIdle => full,
        TimerKind::Lease => stored.lease_ms.saturating_add(allowance_ms),
        TimerKind::ProcessStart
        | TimerKind::PromptWrite
        | TimerKind::FirstEvent
        | TimerKind::FirstVisibleEvent
        | TimerKind::CleanupTerm
        | TimerKind::Accept => left.max(stored.floor_ms),
    };
    Some(AttemptTimer {
        key: key(budget)?,
        limit_ms: budget.limit_ms,
        allowance_ms,
        clock: TimerClock::Running {
            fires_at: now + left,
        },
    })
}
