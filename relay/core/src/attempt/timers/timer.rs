//! One timer: its key, its limit, the relay's slack or grace, and its clock, which can be
//! paused.

use std::sync::Arc;

use crate::attempt::deadline_profile;
use crate::config::Config;
use crate::ids::InputId;
use crate::record::TimerKind;
use crate::task::spec::{DeadlineProfile, TaskSpec};
use crate::time::MonotonicTime;

/// The agent's own name for one tool call; unique within an attempt.
pub type ToolCallId = Arc<str>;

/// Identifies an armed timer: its kind, and the tool call or input if there can be several.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TimerKey {
    Queue,
    Accept,
    ProcessStart,
    PromptWrite,
    FirstEvent,
    FirstVisibleEvent,
    StreamIdle,
    ToolIdle(ToolCallId),
    UserInput(InputId),
    CleanupTerm,
    Total,
    Lease,
}

impl TimerKey {
    pub fn kind(&self) -> TimerKind {
        match self {
            TimerKey::Queue => TimerKind::Queue,
            TimerKey::Accept => TimerKind::Accept,
            TimerKey::ProcessStart => TimerKind::ProcessStart,
            TimerKey::PromptWrite => TimerKind::PromptWrite,
            TimerKey::FirstEvent => TimerKind::FirstEvent,
            TimerKey::FirstVisibleEvent => TimerKind::FirstVisibleEvent,
            TimerKey::StreamIdle => TimerKind::StreamIdle,
            TimerKey::ToolIdle(_) => TimerKind::ToolIdle,
            TimerKey::UserInput(_) => TimerKind::UserInput,
            TimerKey::CleanupTerm => TimerKind::CleanupTerm,
            TimerKey::Total => TimerKind::Total,
            TimerKey::Lease => TimerKind::Lease,
        }
    }
}

/// Whether a deadline profile can set this timer. The daemon runs these eight too, so the relay
/// adds slack to them.
pub(super) fn is_profile_timer(kind: TimerKind) -> bool {
    match kind {
        TimerKind::ProcessStart
        | TimerKind::PromptWrite
        | TimerKind::FirstEvent
        | TimerKind::FirstVisibleEvent
        | TimerKind::StreamIdle
        | TimerKind::ToolIdle
        | TimerKind::UserInput
        | TimerKind::CleanupTerm => true,
        TimerKind::Queue | TimerKind::Accept | TimerKind::Total | TimerKind::Lease => false,
    }
}

/// Limits of all timers of one attempt, and the slack and grace that the relay adds.
#[derive(Clone, Copy, Debug)]
pub struct TimerLimits<'a> {
    pub profile: &'a DeadlineProfile,
    pub queue_ms: u64,
    pub accept_ms: u64,
    pub total_ms: u64,
    pub lease_ttl_ms: u64,
    /// Between TERM and KILL; always set.
    pub cleanup_term_ms: u64,
    /// Added to the eight profile timers, so that a daemon's own timer reports first.
    pub slack_ms: u64,
    /// Added to the lease, because the worker counts from an earlier time.
    pub grace_ms: u64,
}

const EMPTY_PROFILE: DeadlineProfile = DeadlineProfile {
    process_start_ms: None,
    prompt_write_ms: None,
    first_event_ms: None,
    first_visible_event_ms: None,
    stream_idle_ms: None,
    tool_idle_ms: None,
    user_input_ms: None,
    cleanup_term_ms: None,
};

impl<'a> TimerLimits<'a> {
    pub fn of_task(spec: &'a TaskSpec, config: &Config) -> Self {
        let profile = &spec.effective_profile;
        Self {
            profile,
            queue_ms: deadline_profile::queue_ms(spec, config),
            accept_ms: config.accept_ms,
            total_ms: deadline_profile::total_ms(spec, config),
            lease_ttl_ms: spec.lease_ttl_ms,
            cleanup_term_ms: deadline_profile::cleanup_term_ms(profile, config),
            slack_ms: config.slack_ms,
            grace_ms: config.grace_ms_for(spec.lease_ttl_ms),
        }
    }

    /// The same limits without a profile: of a running attempt only `total` and the lease are
    /// timed.
    pub(crate) fn without_profile(self) -> Self {
        Self {
            profile: &EMPTY_PROFILE,
            ..self
        }
    }

    /// The limit, or `None` if the timer is not used: absent and zero both switch it off.
    pub(super) fn limit_of(&self, kind: TimerKind) -> Option<u64> {
        let ms = match kind {
            TimerKind::ProcessStart => self.profile.process_start_ms,
            TimerKind::PromptWrite => self.profile.prompt_write_ms,
            TimerKind::FirstEvent => self.profile.first_event_ms,
            TimerKind::FirstVisibleEvent => self.profile.first_visible_event_ms,
            TimerKind::StreamIdle => self.profile.stream_idle_ms,
            TimerKind::ToolIdle => self.profile.tool_idle_ms,
            TimerKind::UserInput => self.profile.user_input_ms,
            TimerKind::CleanupTerm => Some(self.cleanup_term_ms),
            TimerKind::Queue => Some(self.queue_ms),
            TimerKind::Accept => Some(self.accept_ms),
            TimerKind::Total => Some(self.total_ms),
            TimerKind::Lease => Some(self.lease_ttl_ms),
        };
        ms.filter(|ms| *ms > 0)
    }

    pub(super) fn allowance(&self, kind: TimerKind) -> u64 {
        if is_profile_timer(kind) {
            self.slack_ms
        } else if kind == TimerKind::Lease {
            self.grace_ms
        } else {
            0
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerClock {
    Running { fires_at: MonotonicTime },
    Paused { left_ms: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttemptTimer {
    pub(super) key: TimerKey,
    pub(super) limit_ms: u64,
    pub(super) allowance_ms: u64,
    pub(super) clock: TimerClock,
}

impl AttemptTimer {
    pub(super) fn full_ms(&self) -> u64 {
        self.limit_ms.saturating_add(self.allowance_ms)
    }

    /// Restarts from `at`. A fact that is applied after a newer one never shortens the timer.
    pub(super) fn restart(&mut self, at: MonotonicTime) {
        let full = self.full_ms();
        match &mut self.clock {
            TimerClock::Running { fires_at } => *fires_at = (*fires_at).max(at + full),
            TimerClock::Paused { left_ms } => *left_ms = full,
        }
    }

    /// Extends a running timer at least until `until`. A paused timer has no fixed end.
    pub(super) fn extend(&mut self, until: MonotonicTime) {
        if let TimerClock::Running { fires_at } = &mut self.clock {
            *fires_at = (*fires_at).max(until);
        }
    }

    pub(super) fn shorten(&mut self, max_ms: u64, at: MonotonicTime) {
        let max_ms = max_ms.saturating_add(self.allowance_ms);
        match &mut self.clock {
            TimerClock::Running { fires_at } => *fires_at = (*fires_at).min(at + max_ms),
            TimerClock::Paused { left_ms } => *left_ms = (*left_ms).min(max_ms),
        }
    }

    pub(super) fn set_paused(&mut self, pause: bool, now: MonotonicTime) {
        match (self.clock, pause) {
            (TimerClock::Running { fires_at }, true) => {
                let left_ms = fires_at.since(now);
                self.clock = TimerClock::Paused { left_ms };
            }
            (TimerClock::Paused { left_ms }, false) => {
                let fires_at = now + left_ms;
                self.clock = TimerClock::Running { fires_at };
            }
            (TimerClock::Running { .. }, false) | (TimerClock::Paused { .. }, true) => {}
        }
    }

    pub(super) fn left_ms(&self, now: MonotonicTime) -> u64 {
        match self.clock {
            TimerClock::Running { fires_at } => fires_at.since(now),
            TimerClock::Paused { left_ms } => left_ms,
        }
    }

    pub(super) fn view(&self) -> ArmedTimerView {
        let (key, limit_ms) = (self.key.clone(), self.limit_ms);
        match self.clock {
            TimerClock::Running { fires_at } => ArmedTimerView::Running {
                key,
                limit_ms,
                limit_at: fires_at - self.allowance_ms,
                fires_at,
            },
            TimerClock::Paused { left_ms } => ArmedTimerView::Paused {
                key,
                limit_ms,
                left_ms: left_ms.saturating_sub(self.allowance_ms),
            },
        }
    }
}

/// One armed timer as inspect and watch show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArmedTimerView {
    Running {
        key: TimerKey,
        limit_ms: u64,
        /// When the limit itself is reached; shown to users.
        limit_at: MonotonicTime,
        /// When the relay acts: the limit plus slack or grace.
        fires_at: MonotonicTime,
    },
    Paused {
        key: TimerKey,
        limit_ms: u64,
        /// What is left of the limit, without slack.
        left_ms: u64,
    },
}
