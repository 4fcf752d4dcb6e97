//! How much is open: the tasks of each tenant by how they stand, and the bytes that all of them keep in memory until they
//! end.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{TaskId, TenantId, TenantScope};
use crate::record::{AttemptRecord, InputRecord, Resume, State, TaskRecord, TaskState};
use crate::spec::{PermissionRule, RequiredArtifact, TaskSpec};
use crate::time::Wall;

/// What a task takes besides words that can be long.
const RECORD_BYTES: u64 = 4 * 1024;

/// Kept up to date where tasks are put back, so that nobody has to walk all of them to know how many there are.
#[derive(Debug, Default)]
pub(crate) struct Open {
    tenants: BTreeMap<TenantId, Tenant>,
    tasks: HashMap<TaskId, Counted>,
    bytes: u64,
}

/// What was counted of one task, to be taken back when it moves.
#[derive(Debug)]
struct Counted {
    stands: Stands,
    /// What was submitted, which stays, and what was said since.
    submitted: u64,
    said: u64,
}

/// How one task stands, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stands {
    state: TaskState,
    paused: bool,
    inherited: bool,
    inputs: u64,
    queued: Option<Wall>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tenant {
    counts: Counts,
    /// Since when each of its queued tasks waits, oldest first.
    waiting: BTreeSet<(Wall, TaskId)>,
}

/// Open tasks, by how they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) open: u64,
    pub(crate) pending: u64,
    pub(crate) queued: u64,
    pub(crate) running: u64,
    pub(crate) needs_attention: u64,
    pub(crate) paused: u64,
    /// Those that the hold after an import covered when it stood.
    pub(crate) inherited: u64,
    /// What agents asked and nobody has answered.
    pub(crate) inputs: u64,
}

impl Open {
    /// A task that is open, as it stands now; the first time it is one more.
    pub(crate) fn note(&mut self, spec: &TaskSpec, record: &TaskRecord, inherited: bool) {
        let (task, stands) = (record.task, Stands::of(record, inherited));
        let known = self.tasks.get(&task);
        let said = words(record);
        if known.is_some_and(|known| known.stands == stands && known.said == said) {
            return;
        }
        let submitted = known.map_or_else(|| weight(spec), |known| known.submitted);
        self.remove(&spec.tenant, task);
        let tenant = self.tenants.entry(spec.tenant.clone()).or_default();
        tenant.counts.change(&stands, |count, by| *count += by);
        tenant
            .waiting
            .extend(stands.queued.map(|since| (since, task)));
        self.bytes += submitted + said;
        let counted = Counted {
            stands,
            submitted,
            said,
        };
        self.tasks.insert(task, counted);
    }

    /// It has ended. One that was never noted changes nothing.
    pub(crate) fn remove(&mut self, tenant: &TenantId, task: TaskId) {
        let Some(counted) = self.tasks.remove(&task) else {
            return;
        };
        let stands = counted.stands;
        self.bytes -= counted.submitted + counted.said;
        let Some(of_tenant) = self.tenants.get_mut(tenant) else {
            return;
        };
        of_tenant.counts.change(&stands, |count, by| *count -= by);
        if let Some(since) = stands.queued {
            of_tenant.waiting.remove(&(since, task));
        }
        if of_tenant.counts.open == 0 {
            self.tenants.remove(tenant);
        }
    }

    pub(crate) fn tasks_of(&self, tenant: &TenantId) -> usize {
        let tenant = self.tenants.get(tenant);
        tenant.map_or(0, |tenant| {
            usize::try_from(tenant.counts.open).unwrap_or(usize::MAX)
        })
    }

    /// All counts of a scope, and since when its oldest queued task waits.
    pub(crate) fn counts(&self, scope: &TenantScope) -> (Counts, Option<Wall>) {
        let theirs: Vec<&Tenant> = match scope {
            TenantScope::All => self.tenants.values().collect(),
            TenantScope::One(tenant) => self.tenants.get(tenant).into_iter().collect(),
        };
        let mut sum = Counts::default();
        for tenant in &theirs {
            sum.add(&tenant.counts);
        }
        let oldest = theirs.iter().filter_map(|tenant| tenant.waiting.first());
        (sum, oldest.map(|(since, _)| *since).min())
    }

    /// Whether one more fits.
    pub(crate) fn has_room_for(&self, spec: &TaskSpec, most_bytes: u64) -> bool {
        self.bytes + weight(spec) <= most_bytes
    }

    /// Whether what somebody has to say when a task goes on fits. Short words always do: their room is the record's.
    pub(crate) fn has_room_to_say(&self, resume: &Resume, most_bytes: u64) -> bool {
        let said = resume_words(resume);
        said <= RECORD_BYTES || self.bytes + said <= most_bytes
    }

    pub(crate) fn is_inherited(&self, task: TaskId) -> bool {
        self.tasks
            .get(&task)
            .is_some_and(|one| one.stands.inherited)
    }

    /// Whether two ways of counting came to the same.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        (&self.tenants, self.bytes) == (&other.tenants, other.bytes)
    }
}

impl Stands {
    fn of(record: &TaskRecord, inherited: bool) -> Self {
        let newest = record.newest();
        let asked = newest.iter().flat_map(|newest| &newest.inputs);
        let queued = newest.filter(|newest| newest.state == State::Queued);
        Self {
            state: record.state,
            paused: record.paused.is_some(),
            inherited,
            inputs: asked.filter(|input| input.state.is_pending()).count() as u64,
            queued: queued.and_then(|newest| newest.times.queued),
        }
    }
}

impl Counts {
    fn change(&mut self, stands: &Stands, by: fn(&mut u64, u64)) {
        by(&mut self.open, 1);
        match stands.state {
            TaskState::Pending => by(&mut self.pending, 1),
            TaskState::Queued => by(&mut self.queued, 1),
            TaskState::Running => by(&mut self.running, 1),
            TaskState::NeedsAttention => by(&mut self.needs_attention, 1),
            // The core holds open tasks only.
            TaskState::Completed
            | TaskState::Failed
            | TaskState::Canceled
            | TaskState::TimedOut
            | TaskState::Lost => {}
        }
        by(&mut self.paused, u64::from(stands.paused));
        by(&mut self.inherited, u64::from(stands.inherited));
        by(&mut self.inputs, stands.inputs);
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

/// Bytes of what was submitted and can be long.
fn weight(spec: &TaskSpec) -> u64 {
    let words = |list: &[String]| list.iter().map(String::len).sum::<usize>();
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
        + words(&spec.argv)
        + words(&spec.success_criteria)
        + words(&options.context_refs)
        + options.instructions.as_ref().map_or(0, String::len)
        + pairs(&spec.env)
        + pairs(&spec.labels)
        + pairs(&target.labels)
        + words(&target.capabilities)
        + spec.permission_rules.iter().map(rule).sum::<usize>()
        + files.map(file).sum::<usize>();
    RECORD_BYTES + bytes as u64
}

/// Bytes of what was said of a task since, and is kept while it is open: what it waits for, what people answered and told
/// it, what it ended with.
fn words(record: &TaskRecord) -> u64 {
    let attention = record.attention.as_ref().map_or(0, |attention| {
        attention.reason.len() + attention.hint.as_ref().map_or(0, |hint| hint.len())
    });
    attention as u64 + record.attempts.iter().map(attempt_words).sum::<u64>()
}

fn attempt_words(attempt: &AttemptRecord) -> u64 {
    let input = |input: &InputRecord| {
        let answer = input.state.answer();
        input.payload.len() + answer.map_or(0, |answer| answer.payload.len())
    };
    let inputs: usize = attempt.inputs.iter().map(input).sum();
    let result = attempt.result.as_ref().map_or(0, |result| result.len());
    let resume = attempt.resume.as_deref().map_or(0, resume_words);
    (inputs + result) as u64 + resume
}

fn resume_words(resume: &Resume) -> u64 {
    let answers = resume.answers.iter();
    let answers: usize = answers
        .map(|(question, answer)| question.len() + answer.len())
        .sum();
    (resume.reason.len() + resume.instructions.len() + answers) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::id::AttemptId;
    use crate::record::{Attention, AttentionCause, Pause};
    use crate::samples::{task_record, task_spec, tenant};
    use crate::spec::{CompletionContract, MissingPolicy, PermissionEffect};

    /// Whatever a client can make long counts.
    #[test]
    fn rules_files_and_places_weigh_as_much_as_words() {
        let light = weight(&task_spec());
        let mut spec = task_spec();
        spec.permission_rules = vec![
            PermissionRule {
                effect: PermissionEffect::Allow,
                tool: "Bash".into(),
                pattern: "x".repeat(1_000),
            };
            256
        ];
        assert!(weight(&spec) - light > 256 * 1_000);
        let mut spec = task_spec();
        spec.contract = Some(CompletionContract {
            artifacts: vec![
                RequiredArtifact {
                    path: "x".repeat(1_000),
                    min_size: None,
                    sha256: None,
                };
                64
            ],
            missing_policy: MissingPolicy::Reject,
        });
        assert!(weight(&spec) - light > 64 * 1_000);
    }

    fn record(n: u64) -> TaskRecord {
        let id = uuid::Uuid::from_u128(u128::from(n));
        let attempt = AttemptRecord::queued(AttemptId(id), 1, [0; 8], Wall(n));
        TaskRecord {
            task: TaskId(id),
            state: TaskState::Queued,
            attempts: vec![attempt],
            ..task_record()
        }
    }

    #[test]
    fn what_was_added_is_taken_away_and_long_prompts_fill_the_room() {
        let mut open = Open::default();
        let mut spec = task_spec();
        spec.prompt = "x".repeat(1 << 20);
        let most = 4 << 20;
        let mut admitted = 0;
        while open.has_room_for(&spec, most) {
            admitted += 1;
            open.note(&spec, &record(admitted), false);
        }
        assert_eq!((admitted, open.tasks_of(&spec.tenant)), (3, 3));
        open.note(&spec, &record(1), true);
        assert_eq!(open.tasks_of(&spec.tenant), 3, "it is the same one");
        open.remove(&spec.tenant, record(1).task);
        assert!(open.has_room_for(&spec, most));
        for n in 1..4 {
            open.remove(&spec.tenant, record(n).task);
        }
        assert!(open.agrees_with(&Open::default()) && open.tasks.is_empty());
    }

    #[test]
    fn what_people_say_weighs_while_the_task_is_open() {
        let mut open = Open::default();
        let (spec, mut said) = (task_spec(), record(1));
        open.note(&spec, &said, false);
        let before = open.bytes;
        let resume = Resume {
            instructions: "x".repeat(50_000).into(),
            answers: vec![("which?".into(), "y".repeat(10_000).into())],
            ..Resume::default()
        };
        assert!(open.has_room_to_say(&resume, before + 60_006));
        assert!(!open.has_room_to_say(&resume, before + 60_005));
        assert!(
            open.has_room_to_say(&Resume::default(), 0),
            "short ones fit"
        );
        said.attempts[0].resume = Some(Box::new(resume));
        said.attention = Some(Attention {
            cause: AttentionCause::Blocked,
            reason: "z".repeat(2_000).into(),
            hint: None,
            checkpoint: None,
            since: Wall(0),
        });
        open.note(&spec, &said, false);
        assert_eq!(open.bytes, before + 62_006);
        said.attempts[0].resume = None;
        said.attention = None;
        open.note(&spec, &said, false);
        assert_eq!(open.bytes, before);
    }

    /// A task moves, or ends.
    #[derive(Clone, Debug)]
    enum Move {
        To(u64, TaskState, bool, u64),
        Gone(u64),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let states = [
            TaskState::Pending,
            TaskState::Queued,
            TaskState::Running,
            TaskState::NeedsAttention,
        ];
        let to = (
            1..9u64,
            prop::sample::select(states.to_vec()),
            any::<bool>(),
            0..5u64,
        )
            .prop_map(|(n, state, paused, since)| Move::To(n, state, paused, since));
        let gone = (1..9u64).prop_map(Move::Gone);
        prop::collection::vec(prop_oneof![3 => to, 1 => gone], 0..60)
    }

    proptest! {
        #[test]
        fn counts_that_are_kept_equal_a_recount(moves in moves()) {
            let mut kept = Open::default();
            let mut stand: BTreeMap<u64, (TaskSpec, TaskRecord)> = BTreeMap::new();
            for one in moves {
                match one {
                    Move::To(n, state, paused, since) => {
                        let spec = TaskSpec { tenant: tenant(["acme", "globex"][n as usize % 2]), ..task_spec() };
                        let mut moved = record(n);
                        moved.state = state;
                        moved.paused = paused.then(|| Pause { by: "".into(), reason: "".into(), since: Wall(0) });
                        moved.attempts[0].result = Some(vec![0; 100 * since as usize].into());
                        moved.attempts[0].times.queued = Some(Wall(since));
                        if state != TaskState::Queued {
                            moved.attempts[0].state = State::Streaming;
                        }
                        kept.note(&spec, &moved, since % 2 == 0);
                        stand.insert(n, (spec, moved));
                    }
                    Move::Gone(n) => {
                        if let Some((spec, record)) = stand.remove(&n) {
                            kept.remove(&spec.tenant, record.task);
                        }
                    }
                }
                let mut recount = Open::default();
                for (spec, record) in stand.values() {
                    let since = record.attempts[0].times.queued.unwrap();
                    recount.note(spec, record, since.0 % 2 == 0);
                }
                prop_assert!(kept.agrees_with(&recount), "{:?} and {:?}", kept, recount);
                let queued = stand.values().filter(|(_, record)| record.state == TaskState::Queued);
                let oldest = queued.filter_map(|(_, record)| record.attempts[0].times.queued).min();
                let (counts, since) = kept.counts(&TenantScope::All);
                prop_assert_eq!((counts.open, since), (stand.len() as u64, oldest));
            }
        }
    }
}
