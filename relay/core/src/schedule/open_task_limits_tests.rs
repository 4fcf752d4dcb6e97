//! Tests of the limits on open tasks: each task counts with the bytes that it keeps, and its
//! count is removed when it changes or ends.

use proptest::prelude::*;

use super::*;
use crate::ids::AttemptId;
use crate::record::{AttentionCause, PauseMark, TaskAttention};
use crate::samples::{task_record, task_spec, tenant};
use crate::task::spec::{CompletionContract, MissingPolicy, PermissionEffect};

/// Every text that a client can make long counts.
#[test]
fn permission_rules_and_required_files_count_toward_the_byte_limit() {
    let light = submitted_bytes(&task_spec());
    let mut spec = task_spec();
    spec.permission_rules = vec![
        PermissionRule {
            effect: PermissionEffect::Allow,
            tool: "Bash".into(),
            pattern: "x".repeat(1_000),
        };
        256
    ];
    assert!(submitted_bytes(&spec) - light > 256 * 1_000);
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
    assert!(submitted_bytes(&spec) - light > 64 * 1_000);
}

fn record(n: u64) -> TaskRecord {
    let id = uuid::Uuid::from_u128(u128::from(n));
    let attempt = AttemptRecord::queued(AttemptId(id), 1, [0; 8], WallTime(n));
    TaskRecord {
        task: TaskId(id),
        state: TaskState::Queued,
        attempts: vec![attempt],
        ..task_record()
    }
}

#[test]
fn long_prompts_reach_the_byte_limit_and_removal_frees_it() {
    let mut open = OpenTaskLimits::default();
    let mut spec = task_spec();
    spec.prompt = "x".repeat(1 << 20);
    let most = config(4 << 20, 4 << 20);
    let mut admitted = 0;
    while open.check_room_for_task(&spec, &most).is_ok() {
        admitted += 1;
        open.update_task(&spec, &record(admitted), false);
    }
    assert_eq!((admitted, open.open_count_of(&spec.tenant)), (3, 3));
    open.update_task(&spec, &record(1), true);
    assert_eq!(
        open.open_count_of(&spec.tenant),
        3,
        "a task is counted once"
    );
    open.remove(&spec.tenant, record(1).task);
    assert_eq!(open.check_room_for_task(&spec, &most), Ok(()));
    for n in 1..4 {
        open.remove(&spec.tenant, record(n).task);
    }
    assert!(open.equals_recount(&OpenTaskLimits::default()) && open.tasks.is_empty());
}

fn config(max_open_bytes: u64, max_open_bytes_per_tenant: u64) -> Config {
    Config {
        max_open_bytes,
        max_open_bytes_per_tenant,
        ..crate::samples::config()
    }
}

#[test]
fn long_prompts_of_one_tenant_do_not_block_another() {
    let mut open = OpenTaskLimits::default();
    let most = config(8 << 20, 4 << 20);
    let long = |name: &str| TaskSpec {
        tenant: tenant(name),
        prompt: "x".repeat(1 << 20),
        ..task_spec()
    };
    let (greedy, other) = (long("greedy"), long("other"));
    for n in 1..4 {
        assert_eq!(open.check_room_for_task(&greedy, &most), Ok(()));
        open.update_task(&greedy, &record(n), false);
    }
    let full = Err(Rejection::TenantQueueFull(ExceededBound::Bytes));
    assert_eq!(open.check_room_for_task(&greedy, &most), full);
    let long_resume = ResumeInstructions {
        instructions: "x".repeat(1 << 20).into(),
        ..ResumeInstructions::default()
    };
    assert_eq!(
        open.check_room_for_resume(&greedy.tenant, &long_resume, &most),
        full
    );
    for n in 4..7 {
        assert_eq!(open.check_room_for_task(&other, &most), Ok(()));
        open.update_task(&other, &record(n), false);
    }
    let third = long("third");
    open.update_task(&third, &record(7), false);
    assert_eq!(
        open.check_room_for_task(&third, &most),
        Err(Rejection::QueueFull(ExceededBound::Bytes))
    );
    open.remove(&greedy.tenant, record(1).task);
    assert_eq!(open.check_room_for_task(&greedy, &most), Ok(()));
}

#[test]
fn resume_instructions_count_while_they_are_stored() {
    let mut open = OpenTaskLimits::default();
    let (spec, mut resumed) = (task_spec(), record(1));
    open.update_task(&spec, &resumed, false);
    let before = open.bytes;
    let resume = ResumeInstructions {
        instructions: "x".repeat(50_000).into(),
        answers: vec![("which?".into(), "y".repeat(10_000).into())],
        ..ResumeInstructions::default()
    };
    let fits = |resume: &ResumeInstructions, most| {
        let most = config(most, u64::MAX);
        open.check_room_for_resume(&spec.tenant, resume, &most)
            .is_ok()
    };
    assert!(fits(&resume, before + 60_006));
    assert!(!fits(&resume, before + 60_005));
    assert!(
        fits(&ResumeInstructions::default(), 0),
        "short instructions always fit"
    );
    resumed.attempts[0].resume = Some(Box::new(resume));
    resumed.attention = Some(TaskAttention {
        cause: AttentionCause::Blocked,
        reason: "z".repeat(2_000).into(),
        hint: None,
        checkpoint: None,
        since: WallTime(0),
    });
    open.update_task(&spec, &resumed, false);
    assert_eq!(open.bytes, before + 62_006);
    resumed.attempts[0].resume = None;
    resumed.attention = None;
    open.update_task(&spec, &resumed, false);
    assert_eq!(open.bytes, before);
}

/// A task changes its state, or ends.
#[derive(Clone, Debug)]
enum TaskMove {
    To(u64, TaskState, bool, u64),
    Gone(u64),
}

fn moves() -> impl Strategy<Value = Vec<TaskMove>> {
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
        .prop_map(|(n, state, paused, since)| TaskMove::To(n, state, paused, since));
    let gone = (1..9u64).prop_map(TaskMove::Gone);
    prop::collection::vec(prop_oneof![3 => to, 1 => gone], 0..60)
}

proptest! {
    #[test]
    fn maintained_counts_equal_a_recount(moves in moves()) {
        let mut maintained = OpenTaskLimits::default();
        let mut open_tasks: BTreeMap<u64, (TaskSpec, TaskRecord)> = BTreeMap::new();
        for task_move in moves {
            match task_move {
                TaskMove::To(n, state, paused, since) => {
                    let spec = TaskSpec { tenant: tenant(["acme", "globex"][n as usize % 2]), ..task_spec() };
                    let mut moved = record(n);
                    moved.state = state;
                    moved.paused = paused.then(|| PauseMark { by: "".into(), reason: "".into(), since: WallTime(0) });
                    moved.attempts[0].result = Some(vec![0; 100 * since as usize].into());
                    moved.attempts[0].stage_times.queued = Some(WallTime(since));
                    if state != TaskState::Queued {
                        moved.attempts[0].state = AttemptState::Streaming;
                    }
                    maintained.update_task(&spec, &moved, since % 2 == 0);
                    open_tasks.insert(n, (spec, moved));
                }
                TaskMove::Gone(n) => {
                    if let Some((spec, record)) = open_tasks.remove(&n) {
                        maintained.remove(&spec.tenant, record.task);
                    }
                }
            }
            let mut recount = OpenTaskLimits::default();
            for (spec, record) in open_tasks.values() {
                let since = record.attempts[0].stage_times.queued.unwrap();
                recount.update_task(spec, record, since.0 % 2 == 0);
            }
            prop_assert!(maintained.equals_recount(&recount), "{:?} and {:?}", maintained, recount);
            let queued = open_tasks.values().filter(|(_, record)| record.state == TaskState::Queued);
            let oldest = queued.filter_map(|(_, record)| record.attempts[0].stage_times.queued).min();
            let (counts, since) = maintained.counts(&TenantScope::All);
            prop_assert_eq!((counts.open, since), (open_tasks.len() as u64, oldest));
        }
    }
}
