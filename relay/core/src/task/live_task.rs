//! A live task in memory: its record, the timers of its newest attempt and what is not worth storing.
//!
//! Every change goes through `record_mut`, which marks it for writing; `notes` becomes the timeline when the change
//! is complete and the task's new state is known. It decides nothing.

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
    /// When the backoff of a due retry ends.
    pub(crate) retry_at: Option<MonotonicTime>,
    /// What was left of the queue deadline when the newest attempt was offered.
    pub(crate) queue_remaining_ms: Option<u64>,
    /// Control frames up to here are in the newest record handed to the store; only they may be acknowledged.
    pub(crate) ackable_seq: u64,
    /// When the newest attempt was confirmed, and in how many heartbeats since it was not named.
    pub(crate) confirmed_at: Option<MonotonicTime>,
    pub(crate) missed_heartbeats: u8,
    /// When its worker last said something about it, and when it was last renewed.
    pub(crate) last_frame_at: Option<MonotonicTime>,
    pub(crate) renewed_at: Option<MonotonicTime>,
    /// Stall credit given since the last renewal.
    pub(crate) stall_credit_ms: u64,
    /// It was finished and is live again, which the store has not been told yet.
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

/// A finished change: what to write and what is new in it.
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

    /// For changes that must be stored.
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

    /// Takes the number of a frame that changed nothing. Not stored: a replay after a restart is judged again.
    pub(crate) fn consume_control_seq(&mut self, control_seq: u64) {
        if let Some(newest) = Arc::make_mut(&mut self.record).attempts.last_mut() {
            newest.control_seq = control_seq;
        }
    }

    pub(crate) fn timer_limits<'a>(spec: &'a TaskSpec, config: &Config) -> TimerLimits<'a> {
        TimerLimits::of_task(spec, config)
    }

    /// The same for an attempt that is leased: a daemon reports the phases that a profile times, an agent that holds
    /// the lease itself reports none.
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

    /// Tells the newest attempt's machine, and notes what it says.
    pub(crate) fn apply_event(
        &mut self,
        event: MachineEvent,
        scene: &AttemptContext<'_>,
    ) -> EventOutcome {
        let newest = self.record.attempts.len() - 1;
        let mut timers = std::mem::take(&mut self.timers);
        let outcome = self.apply_event_at(newest, event, &mut timers, scene);
        self.timers = timers;
        outcome
    }

    /// The same for any attempt; its timers are the caller's.
    pub(crate) fn apply_event_at(
        &mut self,
        index: usize,
        event: MachineEvent,
        timers: &mut TimerSet,
        scene: &AttemptContext<'_>,
    ) -> EventOutcome {
        let attempt = &mut Arc::make_mut(&mut self.record).attempts[index];
        let was_over = attempt.state.end().is_some();
        let limits = Self::attempt_timer_limits(attempt, &self.spec, scene.config);
        let mut machine = AttemptMachine {
            attempt,
            timers,
            spec: &self.spec,
            limits,
            config: scene.config,
            connected: scene.connected,
            now: scene.now,
            timeline_events: Vec::new(),
        };
        let outcome = machine.apply(event);
        let notes = std::mem::take(&mut machine.timeline_events);
        if !was_over && attempt.state.end().is_some() {
            attempt.budgets_at_ms = scene.uptime_ms;
        }
        let at = Some((attempt.id, attempt.state.kind()));
        let message = attempt.state.end().and_then(|end| end.message.clone());
        for kind in notes {
            let message = message
                .clone()
                .filter(|_| matches!(kind, TimelineEventKind::Ended { .. }));
            self.pending_events.push(PendingEvent {
                kind,
                attempt: at,
                observed: scene.observed,
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

    /// Adds a daemon's words to the newest note.
    pub(crate) fn set_event_message(&mut self, message: Option<Arc<str>>) {
        if let (Some(note), Some(message)) = (self.pending_events.last_mut(), message) {
            note.message.get_or_insert(message);
        }
    }

    /// What a daemon says about where one of its attempts ran.
    pub(crate) fn set_workspace(&mut self, attempt: AttemptId, said: Option<Box<WorkspaceReport>>) {
        let index = self.record.attempts.iter().position(|a| a.id == attempt);
        let (Some(index), Some(said)) = (index, said) else {
            return;
        };
        if self.record.attempts[index].workspace.as_ref() != Some(&said) {
            self.record_mut().attempts[index].workspace = Some(said);
        }
    }

    /// The same for an attempt that need not be the newest.
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

    /// Whether something is waiting to be written.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// The lease lasts at least until `until`, plus grace. Not stored: a boot arms it in full anyway.
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

    /// Something to look at again, at the latest.
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

    /// Completes a change: derives the state, numbers the notes, brings the budgets up to date. `None` if nothing
    /// durable changed.
    pub(crate) fn finish_change(&mut self, now: ClockReading, clock_ms: u64) -> Option<TaskChange> {
        if !self.dirty {
            return None;
        }
        self.dirty = false;
        let deadline = self.displayed_deadline(now);
        let notes = std::mem::take(&mut self.pending_events);
        let budgets = self.timers.budgets(now.monotonic);
        let retry_left = self.retry_at.map(|at| at.since(now.monotonic));
        let lease_left = self.timers.left_ms(&TimerKey::Lease, now.monotonic);
        let record = Arc::make_mut(&mut self.record);
        if let Some(newest) = record.attempts.last_mut() {
            if let (Some(lease), Some(left)) = (&mut newest.lease, lease_left)
                && left <= lease.ttl_ms
            {
                // A hold has run out: what is outstanding is an ordinary grant again.
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
        let mut events = Vec::with_capacity(notes.len());
        for mut note in notes {
            size_limits::clip_optional(&mut note.message, size_limits::MAX_NOTE_BYTES);
            record.revision += 1;
            let event = Arc::new(TimelineEvent {
                revision: record.revision,
                at: now.wall,
                observed_at: note.observed,
                attempt: note.attempt.map(|(id, _)| id),
                kind: note.kind,
                state: note.attempt.map(|(_, state)| state),
                task_state: state,
                message: note.message,
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

    /// The deadline that people want to see: the next one that is not the lease.
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

/// What an event of one moment needs besides the task.
pub(crate) struct AttemptContext<'a> {
    pub(crate) config: &'a Config,
    pub(crate) connected: bool,
    pub(crate) now: ClockReading,
    /// The relay's uptime: what the age of an end is counted by.
    pub(crate) uptime_ms: u64,
    pub(crate) observed: Option<WallTime>,
}

/// A moment on the wall clock, for display.
pub(crate) fn wall_time_at(at: MonotonicTime, now: ClockReading) -> WallTime {
    if at >= now.monotonic {
        WallTime(now.wall.0.saturating_add(at.since(now.monotonic)))
    } else {
        WallTime(now.wall.0.saturating_sub(now.monotonic.since(at)))
    }
}
