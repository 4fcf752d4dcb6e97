//! Default values for unit tests. A test changes only the fields that it checks.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::config::Config;
use crate::ids::{Incarnation, RelayEpoch, TaskId, TenantId};
use crate::record::{RetryCounters, TaskRecord, TaskState, TaskTimeline, TraceIds};
use crate::task::spec::{
    AgentOptions, DeadlineProfile, DispatchPolicy, InputTimeoutPolicy, PlacementTarget,
    RequestedProfile, RetryPolicy, TaskSpec, TurnKind, UnsafeLossPolicy,
};
use crate::time::WallTime;

pub(crate) fn config() -> Config {
    Config::new(Incarnation(Uuid::from_u128(1)), RelayEpoch(1))
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

/// The record of a new task.
pub(crate) fn task_record() -> TaskRecord {
    TaskRecord {
        tenant: tenant("acme"),
        task: TaskId(Uuid::from_u128(1)),
        revision: 1,
        state: TaskState::Pending,
        created: WallTime(0),
        updated: WallTime(0),
        ended: None,
        attempts: Vec::new(),
        cancel: None,
        attention: None,
        retry: None,
        counters: RetryCounters::default(),
        paused: None,
        retry_stop_reason: None,
        checkpoint_count: 0,
        checkpointed_revision: 0,
        timeline: TaskTimeline::default(),
        trace: TraceIds {
            trace_id: [0; 16],
            root_span: [0; 8],
            parent_span: None,
            sampled: false,
        },
    }
}

pub(crate) fn task_spec() -> TaskSpec {
    TaskSpec {
        tenant: tenant("acme"),
        submitted_by: "tester".into(),
        idempotency_key: None,
        goal: String::new(),
        prompt: "do it".into(),
        agent: "claude".into(),
        options: AgentOptions::default(),
        argv: Vec::new(),
        cwd: None,
        workspace: None,
        env: BTreeMap::new(),
        conversation_id: None,
        channel_id: None,
        turn_kind: TurnKind::User,
        requested_profile: RequestedProfile::Absent,
        effective_profile: DeadlineProfile::default(),
        queue_ms: None,
        total_ms: None,
        lease_ttl_ms: 30_000,
        retry: RetryPolicy {
            max_attempts: 3,
            max_losses: 3,
            when_unsafe: UnsafeLossPolicy::Park,
            backoff_initial_ms: 1_000,
            backoff_max_ms: 60_000,
        },
        on_input_timeout: InputTimeoutPolicy::Fail,
        permission_rules: Vec::new(),
        dispatch_policy: DispatchPolicy::Queue,
        target: PlacementTarget::default(),
        priority: 50,
        labels: BTreeMap::new(),
        success_criteria: Vec::new(),
        contract: None,
        agent_scope: None,
        agent_held: false,
        traceparent: None,
        mcp: false,
    }
}
