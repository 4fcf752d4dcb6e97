//! Submission of a task: one task per idempotency key, within the limits, or refused before
//! anything is written.

use std::sync::Arc;

use crate::attempt::timers::TimerSet;
use crate::core_state::CoreOwners;
use crate::ids::TaskId;
use crate::io::command::{Command, CommandOutcome, CommandReply};
use crate::io::effects::RecordChange;
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::{
    PriorSubmission, StoredLookup, StoredNeeds, StoredRecords, UnreadableRecord,
};
use crate::record::{
    IdempotencyRecord, RetryCounters, TaskRecord, TaskState, TaskTimeline, TimelineEventKind,
    TraceIds,
};
use crate::schedule::Schedule;
use crate::task::live_task::LiveTask;
use crate::task::live_tasks::LiveTasks;
use crate::task::spec::{DispatchPolicy, TaskSpec};
use crate::time::{IdSource, WallTime};
use crate::turn::CoreTurn;

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
        core: &mut CoreOwners<'_>,
        stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<SubmittedTask> {
        let stored = stored.prior_submission;
        if let Some(prior) = find_prior_submission(core.tasks, &self.spec, stored)? {
            return answer_repeated_submit(core.tasks, &self, &prior);
        }
        admit_task(core, &self.spec, turn)?;
        let live = open_task(core.tasks, core.schedule, &self, turn);
        let record = core.put_back_task(live, turn);
        let submitted = SubmittedTask {
            record,
            created: true,
        };
        Ok(CommandReply::after_task(self.task, submitted))
    }
}

/// A new task with its first attempt in line. It was admitted.
pub(crate) fn open_task(
    tasks: &mut LiveTasks,
    schedule: &mut Schedule,
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
        tasks.insert_idempotency(spec.tenant.clone(), key.clone(), record.clone());
        turn.push_change(RecordChange::PutIdempotency {
            tenant: spec.tenant.clone(),
            key: key.clone(),
            record,
        });
    }
    let record = new_task_record(submit.task, &spec, turn.now.wall, turn.id_source);
    let mut live = Box::new(LiveTask::new(spec, Arc::new(record), TimerSet::default()));
    live.add_event(TimelineEventKind::Submitted, None);
    schedule.queue_attempt(&mut live, false, turn);
    live
}

/// An attempt that was released without a try still has to begin a fresh conversation.
pub(crate) fn find_prior_submission(
    tasks: &LiveTasks,
    spec: &TaskSpec,
    stored: StoredLookup<PriorSubmission>,
) -> Result<Option<PriorSubmission>, Rejection> {
    let key = spec.idempotency_key.as_ref();
    let Some(key) = key.filter(|_| !mutant!(KeyIgnored)) else {
        return Ok(None);
    };
    if let Some(known) = tasks.idempotency(&spec.tenant, key) {
        return Ok(Some(PriorSubmission {
            task: known.task,
            digest: known.digest,
            finished: None,
        }));
    }
    stored.map_err(|UnreadableRecord| Rejection::Unreadable)
}

fn answer_repeated_submit(
    tasks: &LiveTasks,
    submit: &SubmitTask,
    prior: &PriorSubmission,
) -> CommandOutcome<SubmittedTask> {
    if prior.digest != submit.digest && !mutant!(ConflictIgnored) {
        return Err(Rejection::IdempotencyConflict);
    }
    let live = tasks.get(prior.task).map(LiveTask::shared_record);
    let record = live.or_else(|| prior.finished.clone());
    let submitted = SubmittedTask {
        record: record.ok_or(Rejection::UnknownTask)?,
        created: false,
    };
    Ok(CommandReply::after_task(prior.task, submitted))
}

pub(crate) fn admit_task(
    core: &CoreOwners<'_>,
    spec: &TaskSpec,
    turn: &CoreTurn<'_>,
) -> Result<(), Rejection> {
    core.tasks.check_open_limits(spec, turn.config)?;
    match spec.dispatch_policy {
        DispatchPolicy::Queue => Ok(()),
        DispatchPolicy::FailFast if core.schedule.could_place(core.fleet.roster(), spec) => Ok(()),
        DispatchPolicy::FailFast => Err(Rejection::NoDaemon),
    }
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
pub(crate) fn span_id(id: uuid::Uuid) -> [u8; 8] {
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
