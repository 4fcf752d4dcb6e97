//! A live task in memory: its record, the timers of its newest attempt, and state that is not
//! stored.
//!
//! Every durable change goes through `record_mut`, which marks the task for writing. Pending
//! events become timeline events when the change is complete and the new state of the task is
//! known. This module makes no decisions.

use std::sync::Arc;

use crate::attempt::machine::{AttemptMachine, EventOutcome, MachineEvent};
use crate::attempt::timers::{ArmedTimerView, TimerFact, TimerKey, TimerLimits, TimerSet};
use crate::config::Config;
use crate::ids::{AttemptId, TaskId};
use crate::record::{
    AttemptRecord, AttemptStateKind, TaskRecord, TimelineEvent, TimelineEventKind, TimerKind,
    WorkspaceReport,
};
use crate::task::size_limits;
use crate::task::spec::TaskSpec;
use crate::task::task_state;
use crate::time::{ClockReading, MonotonicTime, WallTime};

#[derive(Debug)]
pub struct LiveTask {
    pub(crate) spec: Arc<TaskSpec>,
    record: Arc<TaskRecord>,
    pub(crate) timers: TimerSet,
    /// When the backoff of a scheduled retry ends.
    pub(crate) retry_at: Option<MonotonicTime>,
    /// Time left of the queue deadline when the newest attempt was offered.
    pub(crate) queue_remaining_ms: Option<u64>,
    /// Control frames up to this number are in the newest record given to the store. Only these
    /// may be acknowledged.
    pub(crate) ackable_seq: u64,
    /// When the newest attempt was confirmed, and how many heartbeats since then did not list
    /// it.
    pub(crate) confirmed_at: Option<MonotonicTime>,
    pub(crate) missed_heartbeats: u8,
    /// When the holder last sent a frame about it, and when its lease was last renewed.
    pub(crate) last_frame_at: Option<MonotonicTime>,
    pub(crate) renewed_at: Option<MonotonicTime>,
    /// Stall credit added since the last renewal.
    pub(crate) stall_credit_ms: u64,
    /// The task was finished and is live again; the next write must move it back in the store.
    reopened: bool,
    dirty: bool,
    pending_events: Vec<PendingEvent>,
}

#[derive(Debug)]
struct PendingEvent {
    kind: TimelineEventKind,
    attempt: Option<(AttemptId, AttemptStateKind)>,
    observed: Option<WallTime>,
    message: Option<Arc<str>>,
}

/// A completed change: the record to write and the events that it adds.
pub(crate) struct TaskChange {
    pub(crate) record: Arc<TaskRecord>,
    pub(crate) events: Vec<Arc<TimelineEvent>>,
}

impl LiveTask {
    pub(crate) fn new(spec: Arc<TaskSpec>, record: Arc<TaskRecord>, timers: TimerSet) -> Self {
        let ackable_seq = record
            .newest_attempt()
            .map_or(0, AttemptRecord::ackable_seq);
        Self {
            spec,
            record,
            timers,
            retry_at: None,
            queue_remaining_ms: None,
            ackable_seq,
            confirmed_at: None,
            missed_heartbeats: 0,
            last_frame_at: None,
            renewed_at: None,
            stall_credit_ms: 0,
            reopened: false,
            dirty: false,
            pending_events: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> TaskId {
        self.record.task
    }

    pub(crate) fn record(&self) -> &TaskRecord {
        &self.record
    }

    pub(crate) fn shared_record(&self) -> Arc<TaskRecord> {
        Arc::clone(&self.record)
    }

    /// For changes that must be stored; marks the task for writing.
    pub(crate) fn record_mut(&mut self) -> &mut TaskRecord {
        self.dirty = true;
        Arc::make_mut(&mut self.record)
    }

    pub(crate) fn newest_attempt(&self) -> &AttemptRecord {
        self.record
            .newest_attempt()
            .expect("a task gets its first attempt at submit")
    }

    pub(crate) fn newest_attempt_mut(&mut self) -> &mut AttemptRecord {
        let newest = self.record_mut().attempts.last_mut();
        newest.expect("a task gets its first attempt at submit")
    }

    pub(crate) fn is_newest_leased(&self) -> bool {
        self.newest_attempt().state.is_leased()
    }

    /// Records the number of a frame that changed nothing. It is not stored, because a replay
    /// after a restart is checked again.
    pub(crate) fn consume_control_seq(&mut self, control_seq: u64) {
        if let Some(newest) = Arc::make_mut(&mut self.record).attempts.last_mut() {
            newest.control_seq = control_seq;
        }
    }

    pub(crate) fn timer_limits<'a>(spec: &'a TaskSpec, config: &Config) -> TimerLimits<'a> {
        TimerLimits::of_task(spec, config)
    }

    /// The limits of a leased attempt. An agent that holds the lease reports no phases, so the
    /// phase timers of a profile apply only to daemons.
    pub(crate) fn attempt_timer_limits<'a>(
        attempt: &AttemptRecord,
        spec: &'a TaskSpec,
        config: &Config,
    ) -> TimerLimits<'a> {
        let limits = Self::timer_limits(spec, config);
        match attempt.agent_holder() {
            Some(_) => limits.without_profile(),
            None => limits,
        }
    }

    /// Applies an event to the newest attempt and collects the timeline events that result.
    pub(crate) fn apply_event(
        &mut self,
        event: MachineEvent,
        context: &AttemptContext<'_>,
    ) -> EventOutcome {
        let newest = self.record.attempts.len() - 1;
        let mut timers = std::mem::take(&mut self.timers);
        let outcome = self.apply_event_at(newest, event, &mut timers, context);
        self.timers = timers;
        outcome
    }

    /// Applies an event to any attempt. The caller provides its timers.
    pub(crate) fn apply_event_at(
        &mut self,
        index: usize,
        event: MachineEvent,
        timers: &mut TimerSet,
        context: &AttemptContext<'_>,
    ) -> EventOutcome {
        let attempt = &mut Arc::make_mut(&mut self.record).attempts[index];
        let had_ended = attempt.state.end().is_some();
        let limits = Self::attempt_timer_limits(attempt, &self.spec, context.config);
        let mut machine = AttemptMachine {
            attempt,
            timers,
            spec: &self.spec,
            limits,
            config: context.config,
            connected: context.connected,
            now: context.now,
            timeline_events: Vec::new(),
        };
        let outcome = machine.apply(event);
        let kinds = std::mem::take(&mut machine.timeline_events);
        if !had_ended && attempt.state.end().is_some() {
            attempt.budgets_at_ms = context.uptime_ms;
        }
        let at = Some((attempt.id, attempt.state.kind()));
        let message = attempt.state.end().and_then(|end| end.message.clone());
        for kind in kinds {
            let message = message
                .clone()
                .filter(|_| matches!(kind, TimelineEventKind::Ended { .. }));
            self.pending_events.push(PendingEvent {
                kind,
                attempt: at,
                observed: context.observed,
                message,
            });
        }
        self.dirty |= outcome == EventOutcome::Applied;
        outcome
    }

    pub(crate) fn add_event(&mut self, kind: TimelineEventKind, message: Option<Arc<str>>) {
        let attempt = self
            .record
            .newest_attempt()
            .map(|attempt| (attempt.id, attempt.state.kind()));
        self.pending_events.push(PendingEvent {
            kind,
            attempt,
            observed: None,
            message,
        });
        self.dirty = true;
    }

    /// Adds the daemon's message to the newest pending event, unless that already has one.
    pub(crate) fn set_event_message(&mut self, message: Option<Arc<str>>) {
        if let (Some(event), Some(message)) = (self.pending_events.last_mut(), message) {
            event.message.get_or_insert(message);
        }
    }

    /// Stores the daemon's report about the workspace of one of its attempts.
    pub(crate) fn set_workspace(
        &mut self,
        attempt: AttemptId,
        report: Option<Box<WorkspaceReport>>,
    ) {
        let index = self.record.attempts.iter().position(|a| a.id == attempt);
        let (Some(index), Some(report)) = (index, report) else {
            return;
        };
        if self.record.attempts[index].workspace.as_ref() != Some(&report) {
            self.record_mut().attempts[index].workspace = Some(report);
        }
    }

    /// Adds an event for an attempt that need not be the newest.
    pub(crate) fn add_event_for(&mut self, index: usize, kind: TimelineEventKind) {
        let attempt = &self.record.attempts[index];
        let attempt = Some((attempt.id, attempt.state.kind()));
        self.pending_events.push(PendingEvent {
            kind,
            attempt,
            observed: None,
            message: None,
        });
        self.dirty = true;
    }

    pub(crate) fn mark_reopened(&mut self) {
        self.reopened = true;
    }

    pub(crate) fn is_reopened(&self) -> bool {
        self.reopened
    }

    pub(crate) fn take_reopened(&mut self) -> bool {
        std::mem::take(&mut self.reopened)
    }

    /// Whether a change is waiting to be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Extends the lease until at least `until`, plus grace. The end is not stored, because a
    /// boot arms the full lease anyway.
    pub(crate) fn renew_lease(
        &mut self,
        until: MonotonicTime,
        config: &Config,
        now: MonotonicTime,
    ) {
        let limits = Self::timer_limits(&self.spec, config);
        self.timers
            .on_fact(&TimerFact::Renewed { until }, now, &limits);
        self.missed_heartbeats = 0;
        self.renewed_at = Some(now);
        self.stall_credit_ms = 0;
        if self
            .newest_attempt()
            .lease
            .as_ref()
            .is_some_and(|lease| lease.confirmed)
        {
            self.confirmed_at.get_or_insert(now);
        }
        if let Some(lease) = Arc::make_mut(&mut self.record)
            .attempts
            .last_mut()
            .and_then(|a| a.lease.as_mut())
        {
            lease.renewals += 1;
        }
    }

    /// When the task needs the next tick, if it does.
    pub(crate) fn next_due(&self) -> Option<MonotonicTime> {
        self.timers
            .next_due_at()
            .into_iter()
            .chain(self.retry_at)
            .min()
    }

    pub(crate) fn lease_ends_at(&self) -> Option<MonotonicTime> {
        self.timers.fires_at(&TimerKey::Lease)
    }

    /// Completes a change: derives the task state, numbers the pending events and updates the
    /// budgets. Returns `None` if nothing durable changed.
    pub(crate) fn finish_change(&mut self, now: ClockReading, clock_ms: u64) -> Option<TaskChange> {
        if !self.dirty {
            return None;
        }
        self.dirty = false;
        let deadline = self.displayed_deadline(now);
        let pending_events = std::mem::take(&mut self.pending_events);
        let budgets = self.timers.budgets(now.monotonic);
        let retry_left = self.retry_at.map(|at| at.since(now.monotonic));
        let lease_left = self.timers.left_ms(&TimerKey::Lease, now.monotonic);
        let record = Arc::make_mut(&mut self.record);
        if let Some(newest) = record.attempts.last_mut() {
            if let (Some(lease), Some(left)) = (&mut newest.lease, lease_left)
                && left <= lease.ttl_ms
            {
                // A lease extension has run out. Only an ordinary grant is outstanding again.
                lease.granted_ms = lease.ttl_ms;
            }
            newest.budgets = budgets;
            if newest.state.end().is_none() {
                newest.budgets_at_ms = clock_ms;
            }
            self.ackable_seq = newest.ackable_seq();
        }
        if let (Some(retry), Some(left)) = (&mut record.retry, retry_left) {
            retry.remaining_ms = left;
        }
        record.state = task_state::derive_task_state(record);
        record.updated = now.wall;
        record.ended = record
            .state
            .is_terminal()
            .then(|| record.ended.unwrap_or(now.wall));
        let state = record.state;
        let mut events = Vec::with_capacity(pending_events.len());
        for mut pending in pending_events {
            size_limits::clip_optional(&mut pending.message, size_limits::MAX_NOTE_BYTES);
            record.revision += 1;
            let event = Arc::new(TimelineEvent {
                revision: record.revision,
                at: now.wall,
                observed_at: pending.observed,
                attempt: pending.attempt.map(|(id, _)| id),
                kind: pending.kind,
                state: pending.attempt.map(|(_, state)| state),
                task_state: state,
                message: pending.message,
                deadline,
            });
            record.timeline.push(Arc::clone(&event));
            events.push(event);
        }
        Some(TaskChange {
            record: Arc::clone(&self.record),
            events,
        })
    }

    /// The deadline shown to people: the next one except the lease.
    fn displayed_deadline(&self, now: ClockReading) -> Option<(TimerKind, WallTime)> {
        let running = self.timers.armed_timers().filter_map(|armed| match armed {
            ArmedTimerView::Running { key, limit_at, .. } if key != TimerKey::Lease => {
                Some((limit_at, key.kind()))
            }
            ArmedTimerView::Running { .. } | ArmedTimerView::Paused { .. } => None,
        });
        let (at, kind) = running.min()?;
        Some((kind, wall_time_at(at, now)))
    }
}

/// The data besides the task that applying an event needs.
pub(crate) struct AttemptContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) connected: bool,
    pub(crate) now: ClockReading,
    /// The uptime of the relay. The age of an attempt's end is measured by it.
    pub(crate) uptime_ms: u64,
    pub(crate) observed: Option<WallTime>,
}

/// Converts a monotonic time to wall time, for display.
pub(crate) fn wall_time_at(at: MonotonicTime, now: ClockReading) -> WallTime {
    if at >= now.monotonic {
        WallTime(now.wall.0.saturating_add(at.since(now.monotonic)))
    } else {
        WallTime(now.wall.0.saturating_sub(now.monotonic.since(at)))
    }
}
