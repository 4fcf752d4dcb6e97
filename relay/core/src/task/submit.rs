//! Submission of a task: one task per idempotency key, within the limits, or refused before
//! anything is written.

use std::sync::Arc;

use crate::attempt::timers::{TimerFact, TimerSet};
use crate::core_state::{Core, CoreTurn};
use crate::ids::{AttemptId, TaskId};
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::RecordChange;
use crate::io::rejection::{ExceededBound, Rejection};
use crate::io::stored_lookup::{
    PriorSubmission, StoredLookup, StoredNeeds, StoredRecords, UnreadableRecord,
};
use crate::record::{
    AttemptRecord, EndState, IdempotencyRecord, RetryCounters, TaskRecord, TaskState, TaskTimeline,
    TimelineEventKind, TraceIds,
};
use crate::task::live_task::LiveTask;
use crate::task::size_limits;
use crate::task::spec::{DispatchPolicy, TaskSpec};
use crate::time::{IdSource, WallTime};

/// Submits a task; at most one per idempotency key.
#[derive(Debug)]
pub struct SubmitTask {
    /// Chosen by the shell; unused if the idempotency key already exists.
    pub task: TaskId,
    pub spec: Arc<TaskSpec>,
    /// SHA-256 of the submission as sent; compared when an idempotency key repeats.
    pub digest: [u8; 32],
}

#[derive(Debug)]
pub struct SubmittedTask {
    pub record: Arc<TaskRecord>,
    /// False if the idempotency key already existed.
    pub created: bool,
}

impl Command for SubmitTask {
    type Reply = SubmittedTask;

    fn stored_needs(&self) -> StoredNeeds {
        StoredNeeds::submission(&self.spec)
    }

    fn run(
        self,
        core: &mut Core,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<SubmittedTask> {
        if let Some(prior) = core.find_prior_submission(&self.spec, stored.prior_submission)? {
            return core.answer_repeated_submit(&self, &prior);
        }
        core.admit_task(&self.spec)?;
        let live = core.open_task(&self, turn);
        let record = core.put_back_task(live, turn);
        let submitted = SubmittedTask {
            record,
            created: true,
        };
        Ok(CommandReply::after_task(self.task, submitted))
    }
}

impl Core {
    /// Creates a task with its first attempt queued. The caller has checked the limits.
    pub(crate) fn open_task(
        &mut self,
        submit: &SubmitTask,
        turn: &mut CoreTurn<'_>,
    ) -> Box<LiveTask> {
        let spec = Arc::clone(&submit.spec);
        turn.push_change(RecordChange::PutSpec {
            task: submit.task,
            spec: Arc::clone(&spec),
        });
        if let Some(key) = &spec.idempotency_key {
            let record = IdempotencyRecord {
                task: submit.task,
                digest: submit.digest,
            };
            self.idempotency_keys
                .insert((spec.tenant.clone(), key.clone()), record.clone());
            turn.push_change(RecordChange::PutIdempotency {
                tenant: spec.tenant.clone(),
                key: key.clone(),
                record,
            });
        }
        let record = new_task_record(submit.task, &spec, turn.now.wall, turn.id_source);
        let mut live = Box::new(LiveTask::new(spec, Arc::new(record), TimerSet::default()));
        live.add_event(TimelineEventKind::Submitted, None);
        self.queue_attempt(&mut live, false, turn);
        live
    }

    /// The earlier submission with this key. The core has the keys of live tasks, the store
    /// those of finished ones. An unreadable record is an error, because it may belong to a
    /// task and a second one must not be created.
    pub(crate) fn find_prior_submission(
        &self,
        spec: &TaskSpec,
        stored: StoredLookup<PriorSubmission>,
    ) -> Result<Option<PriorSubmission>, Rejection> {
        let key = spec.idempotency_key.as_ref();
        let Some(key) = key.filter(|_| !mutant!(KeyIgnored)) else {
            return Ok(None);
        };
        if let Some(known) = self
            .idempotency_keys
            .get(&(spec.tenant.clone(), key.clone()))
        {
            return Ok(Some(PriorSubmission {
                task: known.task,
                digest: known.digest,
                finished: None,
            }));
        }
        stored.map_err(|UnreadableRecord| Rejection::Unreadable)
    }

    fn answer_repeated_submit(
        &self,
        submit: &SubmitTask,
        prior: &PriorSubmission,
    ) -> CommandOutcome<SubmittedTask> {
        if prior.digest != submit.digest && !mutant!(ConflictIgnored) {
            return Err(Rejection::IdempotencyConflict);
        }
        let live = self.tasks.get(&prior.task).map(|live| live.shared_record());
        let record = live.or_else(|| prior.finished.clone());
        let submitted = SubmittedTask {
            record: record.ok_or(Rejection::UnknownTask)?,
            created: false,
        };
        Ok(CommandReply::after_task(prior.task, submitted))
    }

    pub(crate) fn admit_task(&self, spec: &TaskSpec) -> Result<(), Rejection> {
        self.check_open_limits(spec)?;
        match spec.dispatch_policy {
            DispatchPolicy::Queue => Ok(()),
            DispatchPolicy::FailFast if self.could_place(spec) => Ok(()),
            DispatchPolicy::FailFast => Err(Rejection::NoDaemon),
        }
    }

    /// Checks the limits on open tasks, for every way to open one.
    pub(crate) fn check_open_limits(&self, spec: &TaskSpec) -> Result<(), Rejection> {
        if self.tasks.len() >= self.config.max_open_tasks && !mutant!(BoundIgnored) {
            return Err(Rejection::QueueFull(ExceededBound::Tasks));
        }
        self.open_limits.check_room_for_task(spec, &self.config)?;
        if self.open_limits.open_count_of(&spec.tenant) >= self.config.max_open_tasks_per_tenant {
            return Err(Rejection::TenantQueueFull(ExceededBound::Tasks));
        }
        Ok(())
    }

    pub(crate) fn queue_attempt(
        &mut self,
        live: &mut LiveTask,
        requested_by_person: bool,
        turn: &mut CoreTurn<'_>,
    ) {
        let id = AttemptId(turn.id_source.new_id());
        self.queue_attempt_as(id, live, requested_by_person, turn);
    }

    /// Queues the next attempt. This is the only place that creates attempts. The id is new,
    /// which fences the previous attempt.
    pub(crate) fn queue_attempt_as(
        &mut self,
        id: AttemptId,
        live: &mut LiveTask,
        requested_by_person: bool,
        turn: &mut CoreTurn<'_>,
    ) {
        let previous = live
            .record()
            .newest_attempt()
            .map(|newest| (newest.id, newest.number));
        let reused = previous.filter(|_| mutant!(AttemptIdReused));
        let id = reused.map_or(id, |(earlier, _)| earlier);
        let number = previous.map_or(1, |(_, number)| number + 1);
        let mut attempt =
            AttemptRecord::queued(id, number, span_id(turn.id_source.new_id()), turn.now.wall);
        attempt.previous = previous.map(|(id, _)| id);
        attempt.requested_by_person = requested_by_person;
        attempt.fresh_conversation = live
            .record()
            .newest_attempt()
            .is_some_and(needs_fresh_conversation);
        let record = live.record_mut();
        if let Some(last) = record.attempts.last_mut() {
            last.successor = Some(id);
            // Resume instructions stay valid until a person gives new ones.
            attempt.resume = last.resume.take();
            size_limits::trim_earlier_attempt(last);
        }
        record.attempts.push(attempt);
        record.retry = None;
        record.attention = None;
        live.retry_at = None;
        live.ackable_seq = 0;
        live.timers = TimerSet::default();
        let limits = LiveTask::timer_limits(&live.spec, &self.config);
        live.timers
            .on_fact(&TimerFact::Queued, turn.now.monotonic, &limits);
        if self.is_queue_timer_paused(live) {
            live.timers
                .on_fact(&TimerFact::Paused, turn.now.monotonic, &limits);
        }
        live.add_event(TimelineEventKind::Queued, None);
        self.enqueue_task(live);
    }
}

/// An attempt that was released without a try still has to begin a fresh conversation.
fn needs_fresh_conversation(last: &AttemptRecord) -> bool {
    let end = last.state.end();
    last.fresh_conversation && end.is_some_and(|end| end.state == EndState::Released)
}

fn new_task_record(
    task: TaskId,
    spec: &TaskSpec,
    now: WallTime,
    id_source: &mut dyn IdSource,
) -> TaskRecord {
    TaskRecord {
        tenant: spec.tenant.clone(),
        task,
        revision: 0,
        state: TaskState::Pending,
        created: now,
        updated: now,
        ended: None,
        attempts: Vec::with_capacity(1),
        cancel: None,
        attention: None,
        retry: None,
        counters: RetryCounters::default(),
        paused: None,
        retry_stop_reason: None,
        checkpoint_count: 0,
        checkpointed_revision: 0,
        timeline: TaskTimeline::default(),
        trace: trace_ids(spec, id_source),
    }
}

/// Continues the caller's trace, or begins a new one.
fn trace_ids(spec: &TaskSpec, id_source: &mut dyn IdSource) -> TraceIds {
    let root_span = span_id(id_source.new_id());
    match spec.traceparent.as_deref().and_then(parse_traceparent) {
        Some((trace_id, parent, sampled)) => TraceIds {
            trace_id,
            root_span,
            parent_span: Some(parent),
            sampled,
        },
        None => TraceIds {
            trace_id: *id_source.new_id().as_bytes(),
            root_span,
            parent_span: None,
            sampled: true,
        },
    }
}

/// Uses the second half of a new id, which contains its random bits.
fn span_id(id: uuid::Uuid) -> [u8; 8] {
    (id.as_u64_pair().1 | 1).to_be_bytes()
}

/// `00-<32 hex>-<16 hex>-<2 hex>`; anything else, and all-zero ids, count as absent.
fn parse_traceparent(text: &str) -> Option<([u8; 16], [u8; 8], bool)> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let shaped = version == "00" && parts.next().is_none() && flags.len() == 2;
    let lower = |part: &str, len| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !shaped || !lower(trace, 32) || !lower(span, 16) || !lower(flags, 2) {
        return None;
    }
    let trace_id = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
    let span_id = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some((
        trace_id.to_be_bytes(),
        span_id.to_be_bytes(),
        flags & 1 == 1,
    ))
}
