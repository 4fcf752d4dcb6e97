//! Counts of open tasks by tenant and state, and of the bytes that they keep in memory until
//! they end. Checks the limits on both.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::config::Config;
use crate::ids::{TaskId, TenantId, TenantScope};
use crate::io::rejection::{ExceededBound, Rejection};
use crate::record::{
    AttemptRecord, AttemptState, InputRecord, ResumeInstructions, TaskRecord, TaskState,
};
use crate::task::spec::{PermissionRule, RequiredArtifact, TaskSpec};
use crate::time::WallTime;

/// Memory of a task apart from its long texts.
const RECORD_BYTES: u64 = 4 * 1024;

/// Counts that are updated whenever a task is put back, so that reading them does not iterate
/// over all tasks.
#[derive(Debug, Default)]
pub(crate) struct OpenTaskLimits {
    tenants: BTreeMap<TenantId, TenantUsage>,
    tasks: HashMap<TaskId, CountedTask>,
    bytes: u64,
}

/// What was counted for one task; subtracted again when the task changes or ends.
#[derive(Debug)]
struct CountedTask {
    state: CountedState,
    /// Bytes of the submission, which are fixed, and of texts added since.
    submitted_bytes: u64,
    added_bytes: u64,
}

/// The counted properties of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountedState {
    state: TaskState,
    paused: bool,
    inherited: bool,
    inputs: u64,
    queued: Option<WallTime>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct TenantUsage {
    counts: OpenTaskCounts,
    bytes: u64,
    /// The queue times of its queued tasks, oldest first.
    waiting: BTreeSet<(WallTime, TaskId)>,
}

/// Numbers of open tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenTaskCounts {
    pub(crate) open: u64,
    pub(crate) pending: u64,
    pub(crate) queued: u64,
    pub(crate) running: u64,
    pub(crate) needs_attention: u64,
    pub(crate) paused: u64,
    /// Tasks that the suspension after an import covered while it was active.
    pub(crate) inherited: u64,
    /// Inputs without an answer that the agent has received.
    pub(crate) inputs: u64,
}

impl OpenTaskLimits {
    /// Counts an open task in its current state. It replaces the earlier count of the same
    /// task.
    pub(crate) fn update_task(&mut self, spec: &TaskSpec, record: &TaskRecord, inherited: bool) {
        let (task, state) = (record.task, CountedState::from_record(record, inherited));
        let known = self.tasks.get(&task);
        let added = added_bytes(record);
        if known.is_some_and(|known| known.state == state && known.added_bytes == added) {
            return;
        }
        let submitted = known.map_or_else(|| submitted_bytes(spec), |known| known.submitted_bytes);
        self.remove(&spec.tenant, task);
        let tenant = self.tenants.entry(spec.tenant.clone()).or_default();
        tenant.counts.apply_change(&state, |count, by| *count += by);
        tenant
            .waiting
            .extend(state.queued.map(|since| (since, task)));
        tenant.bytes += submitted + added;
        self.bytes += submitted + added;
        let counted = CountedTask {
            state,
            submitted_bytes: submitted,
            added_bytes: added,
        };
        self.tasks.insert(task, counted);
    }

    /// Removes the count of a task that has ended. A task that was never counted changes
    /// nothing.
    pub(crate) fn remove(&mut self, tenant: &TenantId, task: TaskId) {
        let Some(counted) = self.tasks.remove(&task) else {
            return;
        };
        let (state, bytes) = (counted.state, counted.submitted_bytes + counted.added_bytes);
        self.bytes -= bytes;
        let Some(usage) = self.tenants.get_mut(tenant) else {
            return;
        };
        usage.counts.apply_change(&state, |count, by| *count -= by);
        usage.bytes -= bytes;
        if let Some(since) = state.queued {
            usage.waiting.remove(&(since, task));
        }
        if usage.counts.open == 0 {
            self.tenants.remove(tenant);
        }
    }

    pub(crate) fn open_count_of(&self, tenant: &TenantId) -> usize {
        let tenant = self.tenants.get(tenant);
        tenant.map_or(0, |tenant| {
            usize::try_from(tenant.counts.open).unwrap_or(usize::MAX)
        })
    }

    /// All counts of a scope, and the queue time of its oldest queued task.
    pub(crate) fn counts(&self, scope: &TenantScope) -> (OpenTaskCounts, Option<WallTime>) {
        let tenants: Vec<&TenantUsage> = match scope {
            TenantScope::All => self.tenants.values().collect(),
            TenantScope::One(tenant) => self.tenants.get(tenant).into_iter().collect(),
        };
        let mut sum = OpenTaskCounts::default();
        for tenant in &tenants {
            sum.add(&tenant.counts);
        }
        let oldest = tenants.iter().filter_map(|tenant| tenant.waiting.first());
        (sum, oldest.map(|(since, _)| *since).min())
    }

    /// Checks whether one more task fits.
    pub(crate) fn check_room_for_task(
        &self,
        spec: &TaskSpec,
        config: &Config,
    ) -> Result<(), Rejection> {
        self.check_room(&spec.tenant, submitted_bytes(spec), config)
    }

    /// Checks whether the instructions of a resume fit. Short ones always do, because
    /// `RECORD_BYTES` covers them.
    pub(crate) fn check_room_for_resume(
        &self,
        tenant: &TenantId,
        resume: &ResumeInstructions,
        config: &Config,
    ) -> Result<(), Rejection> {
        match resume_bytes(resume) {
            short if short <= RECORD_BYTES => Ok(()),
            long => self.check_room(tenant, long, config),
        }
    }

    /// Checks both byte limits. Each tenant has its own limit, so that the long prompts of one
    /// tenant do not block the others.
    fn check_room(&self, tenant: &TenantId, bytes: u64, config: &Config) -> Result<(), Rejection> {
        let tenant_bytes = self.tenants.get(tenant).map_or(0, |tenant| tenant.bytes);
        if self.bytes + bytes > config.max_open_bytes {
            return Err(Rejection::QueueFull(ExceededBound::Bytes));
        }
        if tenant_bytes + bytes > config.max_open_bytes_per_tenant {
            return Err(Rejection::TenantQueueFull(ExceededBound::Bytes));
        }
        Ok(())
    }

    pub(crate) fn is_inherited(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|one| one.state.inherited)
    }

    /// Whether the maintained counts equal a recount.
    pub(crate) fn equals_recount(&self, other: &Self) -> bool {
        (&self.tenants, self.bytes) == (&other.tenants, other.bytes)
    }
}

impl CountedState {
    fn from_record(record: &TaskRecord, inherited: bool) -> Self {
        let newest = record.newest_attempt();
        let asked = newest.iter().flat_map(|newest| &newest.inputs);
        let queued = newest.filter(|newest| newest.state == AttemptState::Queued);
        Self {
            state: record.state,
            paused: record.paused.is_some(),
            inherited,
            inputs: asked.filter(|input| input.state.is_pending()).count() as u64,
            queued: queued.and_then(|newest| newest.stage_times.queued),
        }
    }
}

impl OpenTaskCounts {
    fn apply_change(&mut self, task: &CountedState, by: fn(&mut u64, u64)) {
        by(&mut self.open, 1);
        match task.state {
            TaskState::Pending => by(&mut self.pending, 1),
            TaskState::Queued => by(&mut self.queued, 1),
            TaskState::Running => by(&mut self.running, 1),
            TaskState::NeedsAttention => by(&mut self.needs_attention, 1),
            // The core contains open tasks only.
            TaskState::Completed
            | TaskState::Failed
            | TaskState::Canceled
            | TaskState::TimedOut
            | TaskState::Lost => {}
        }
        by(&mut self.paused, u64::from(task.paused));
        by(&mut self.inherited, u64::from(task.inherited));
        by(&mut self.inputs, task.inputs);
    }

    fn add(&mut self, other: &Self) {
        let Self {
            open,
            pending,
            queued,
            running,
            needs_attention,
            paused,
            inherited,
            inputs,
        } = other;
        self.open += open;
        self.pending += pending;
        self.queued += queued;
        self.running += running;
        self.needs_attention += needs_attention;
        self.paused += paused;
        self.inherited += inherited;
        self.inputs += inputs;
    }
}

/// Bytes of the parts of a submission that can be long.
fn submitted_bytes(spec: &TaskSpec) -> u64 {
    let total = |list: &[String]| list.iter().map(String::len).sum::<usize>();
    let pairs = |map: &BTreeMap<String, String>| {
        let sizes = map.iter().map(|(key, value)| key.len() + value.len());
        sizes.sum::<usize>()
    };
    let rule =
        |rule: &PermissionRule| size_of::<PermissionRule>() + rule.tool.len() + rule.pattern.len();
    let file = |file: &RequiredArtifact| {
        size_of::<RequiredArtifact>()
            + file.path.len()
            + file.sha256.as_ref().map_or(0, String::len)
    };
    let files = spec.contract.iter().flat_map(|asks| &asks.artifacts);
    let target = &spec.target;
    let options = &spec.options;
    let bytes = spec.prompt.len()
        + spec.goal.len()
        + total(&spec.argv)
        + total(&spec.success_criteria)
        + total(&options.context_refs)
        + options.instructions.as_ref().map_or(0, String::len)
        + pairs(&spec.env)
        + pairs(&spec.labels)
        + pairs(&target.labels)
        + total(&target.capabilities)
        + spec.permission_rules.iter().map(rule).sum::<usize>()
        + files.map(file).sum::<usize>();
    RECORD_BYTES + bytes as u64
}

/// Bytes of texts added to an open task after submit: why it waits, what people answered and
/// instructed, and its results.
fn added_bytes(record: &TaskRecord) -> u64 {
    let attention = record.attention.as_ref().map_or(0, |attention| {
        attention.reason.len() + attention.hint.as_ref().map_or(0, |hint| hint.len())
    });
    attention as u64 + record.attempts.iter().map(attempt_bytes).sum::<u64>()
}

fn attempt_bytes(attempt: &AttemptRecord) -> u64 {
    let input = |input: &InputRecord| {
        let answer = input.state.answer();
        input.payload.len() + answer.map_or(0, |answer| answer.payload.len())
    };
    let inputs: usize = attempt.inputs.iter().map(input).sum();
    let result = attempt.result.as_ref().map_or(0, |result| result.len());
    let resume = attempt.resume.as_deref().map_or(0, resume_bytes);
    (inputs + result) as u64 + resume
}

fn resume_bytes(resume: &ResumeInstructions) -> u64 {
    let answers = resume.answers.iter();
    let answers: usize = answers
        .map(|(question, answer)| question.len() + answer.len())
        .sum();
    (resume.reason.len() + resume.instructions.len() + answers) as u64
}

#[cfg(test)]
#[path = "open_task_limits_tests.rs"]
mod tests;
