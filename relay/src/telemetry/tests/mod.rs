//! Tests with the record of a task with two attempts: which spans are built, when they are due,
//! and how they are sent.

mod span_export;
mod trace;

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_core::ids::{AttemptId, DaemonId, InputId, InstanceId, TaskId, TenantId};
use baton_core::record::{
    AttemptEnd, AttemptRecord, AttemptState, AttemptStateKind, DaemonHolder, EndState, EndedBy,
    FailureCode, InputKind, InputRecord, InputState, LeaseHolder, LeaseRecord, LifecyclePhase,
    ProcessExitStatus, RetryCounters, StageTimes, TaskRecord, TaskState, TaskTimeline,
    TerminationReceipt, TimelineEvent, TimelineEventKind, TimerKind, TokenUsage, TraceIds,
};
use baton_core::task::spec::{AgentOptions, TaskSpec};
use baton_core::time::WallTime;
use uuid::Uuid;

use crate::test_samples::task_spec;

const FIRST: AttemptId = AttemptId(Uuid::from_u128(0xa1));
const SECOND: AttemptId = AttemptId(Uuid::from_u128(0xa2));
const INPUT: InputId = InputId(Uuid::from_u128(0x17));
const CALLER: [u8; 8] = [0xca; 8];
const ROOT: [u8; 8] = [0x10; 8];
/// Text of every field that must not appear in a span.
const PRIVATE: &str = "a private word";

fn wall(ms: u64) -> Option<WallTime> {
    Some(WallTime(ms))
}

fn spec() -> Arc<TaskSpec> {
    Arc::new(TaskSpec {
        submitted_by: PRIVATE.into(),
        idempotency_key: Some(PRIVATE.into()),
        goal: PRIVATE.into(),
        prompt: PRIVATE.into(),
        options: AgentOptions {
            model: Some("large".into()),
            instructions: Some(PRIVATE.into()),
            ..AgentOptions::default()
        },
        argv: vec![PRIVATE.into()],
        cwd: Some(PRIVATE.into()),
        env: BTreeMap::from([("KEY".into(), PRIVATE.into())]),
        conversation_id: Some("talk".into()),
        labels: BTreeMap::from([("note".into(), PRIVATE.into())]),
        ..task_spec()
    })
}

fn end(state: EndState, code: Option<FailureCode>, at: u64) -> AttemptEnd {
    AttemptEnd {
        state,
        retryable: code.is_some(),
        failure_code: code,
        message: Some(PRIVATE.into()),
        user_message: Some(PRIVATE.into()),
        ended_by: EndedBy::Daemon,
        cause_phase: Some(LifecyclePhase::PromptWritten),
        exit: Some(ProcessExitStatus::Code(0)),
        receipt: TerminationReceipt::Confirmed,
        killed_after_result: false,
        is_adopted_late: false,
        cleanup: Some(PRIVATE.into()),
        at: WallTime(at),
    }
}

fn attempt(id: AttemptId, number: u32, times: StageTimes, end: AttemptEnd) -> AttemptRecord {
    AttemptRecord {
        id,
        number,
        state: AttemptState::Ended(end),
        holder: Some(LeaseHolder::Daemon(DaemonHolder {
            daemon: DaemonId(Uuid::from_u128(0xd)),
            name: "worker".into(),
            instance: InstanceId(Uuid::from_u128(0x1)),
            boot_id: "boot".into(),
        })),
        lease: Some(LeaseRecord {
            token_hash: [7; 32],
            ttl_ms: 30_000,
            granted_ms: 30_000,
            renewals: 4,
            confirmed: true,
        }),
        phase: None,
        furthest_phase: None,
        retry_safe: true,
        prompt_written: None,
        open_tools: Vec::new(),
        inputs: Vec::new(),
        control_seq: 0,
        refused_completion_seq: None,
        output_end: 42,
        final_offset: None,
        stage_times: times,
        budgets: Vec::new(),
        budgets_at_ms: 0,
        usage: TokenUsage::default(),
        agent_session_id: None,
        fresh_conversation: false,
        result: Some(PRIVATE.as_bytes().into()),
        artifacts: Vec::new(),
        workspace: None,
        has_late_terminal: false,
        requested_by_person: false,
        previous: None,
        successor: None,
        handed_off_to: None,
        resume: None,
        span_id: [u8::try_from(number).unwrap(); 8],
    }
}

/// An attempt that got its prompt and sent nothing until its deadline. Its processes ended two
/// seconds later.
fn timed_out() -> AttemptRecord {
    let times = StageTimes {
        queued: wall(1_000),
        offered: wall(1_100),
        accepted: wall(1_110),
        started: wall(1_115),
        agent_started: wall(1_150),
        prompt_written: wall(1_160),
        cleanup_started: wall(5_160),
        cleanup_finished: wall(7_160),
        ended: wall(7_170),
        ..StageTimes::default()
    };
    let code = Some(FailureCode::NoFirstEventTimeout);
    attempt(FIRST, 1, times, end(EndState::TimedOut, code, 7_170))
}

/// An attempt that ran a tool, asked a person and completed.
fn completed() -> AttemptRecord {
    let times = StageTimes {
        queued: wall(8_000),
        offered: wall(8_001),
        accepted: wall(8_002),
        agent_started: wall(8_010),
        prompt_written: wall(8_020),
        first_event: wall(8_500),
        ended: wall(9_900),
        ..StageTimes::default()
    };
    let mut attempt = attempt(SECOND, 2, times, end(EndState::Completed, None, 9_900));
    attempt.previous = Some(FIRST);
    attempt.agent_session_id = Some("session".into());
    attempt.usage.input_tokens = 11;
    attempt.usage.output_tokens = 22;
    attempt.inputs = vec![InputRecord {
        id: INPUT,
        kind: InputKind::Permission,
        state: InputState::Withdrawn,
        payload: PRIVATE.as_bytes().into(),
        tool_name: None,
        asked: WallTime(9_000),
        digest: [0; 32],
    }];
    attempt
}

fn timeline() -> Vec<(u64, Option<AttemptId>, TimelineEventKind)> {
    let tool = |id: &str| TimelineEventKind::ToolStarted {
        id: id.into(),
        name: "bash".into(),
    };
    let ended = |code| TimelineEventKind::Ended {
        code,
        retryable: false,
    };
    let expired = TimelineEventKind::DeadlineExpired {
        timer: TimerKind::FirstEvent,
    };
    vec![
        (1_000, Some(FIRST), TimelineEventKind::Submitted),
        (
            1_100,
            Some(FIRST),
            TimelineEventKind::Offered {
                daemon: "worker".into(),
            },
        ),
        (5_160, Some(FIRST), expired),
        (
            7_170,
            Some(FIRST),
            ended(Some(FailureCode::NoFirstEventTimeout)),
        ),
        (
            7_170,
            Some(FIRST),
            TimelineEventKind::RetryScheduled { after_ms: 830 },
        ),
        (8_000, Some(SECOND), TimelineEventKind::Queued),
        (8_600, Some(SECOND), tool("t1")),
        (8_700, Some(SECOND), tool("t2")),
        (
            8_900,
            Some(SECOND),
            TimelineEventKind::ToolFinished { id: "t1".into() },
        ),
        (
            9_000,
            Some(SECOND),
            TimelineEventKind::InputAsked { input: INPUT },
        ),
        (
            9_400,
            Some(SECOND),
            TimelineEventKind::InputAnswered { input: INPUT },
        ),
        (
            9_410,
            Some(SECOND),
            TimelineEventKind::InputReceived { input: INPUT },
        ),
        (9_900, Some(SECOND), ended(None)),
    ]
}

fn events() -> Vec<Arc<TimelineEvent>> {
    let timeline = timeline();
    let last = timeline.len() as u64;
    let event =
        |(revision, (at, attempt, kind)): (u64, (u64, Option<AttemptId>, TimelineEventKind))| {
            Arc::new(TimelineEvent {
                revision,
                at: WallTime(at),
                observed_at: None,
                attempt,
                kind,
                state: Some(AttemptStateKind::Streaming),
                task_state: if revision == last {
                    TaskState::Completed
                } else {
                    TaskState::Running
                },
                message: Some(PRIVATE.into()),
                deadline: None,
            })
        };
    (1..).zip(timeline).map(event).collect()
}

/// The completed task.
fn record() -> TaskRecord {
    let events = events();
    TaskRecord {
        tenant: TenantId::new("acme").unwrap(),
        task: TaskId(Uuid::from_u128(0x7a5c)),
        revision: events.len() as u64,
        state: TaskState::Completed,
        created: WallTime(1_000),
        updated: WallTime(9_900),
        ended: wall(9_900),
        attempts: vec![timed_out(), completed()],
        cancel: None,
        attention: None,
        retry: None,
        counters: RetryCounters::default(),
        paused: None,
        retry_stop_reason: None,
        checkpoint_count: 0,
        checkpointed_revision: 0,
        timeline: TaskTimeline {
            dropped_through: 0,
            events,
        },
        trace: TraceIds {
            trace_id: [0xab; 16],
            root_span: ROOT,
            parent_span: Some(CALLER),
            sampled: true,
        },
    }
}

/// The task after the end of its first attempt, with the events that were new then.
fn after_first() -> (TaskRecord, Vec<Arc<TimelineEvent>>) {
    let mut record = record();
    record.state = TaskState::Queued;
    record.ended = None;
    record.attempts.truncate(1);
    record.timeline.events.truncate(5);
    record.revision = 5;
    let new = record.timeline.events[2..].to_vec();
    (record, new)
}
