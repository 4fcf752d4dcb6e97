//! The task specification that tests of this crate vary; a test sets only the fields that
//! matter to it. The core's sample cannot be used here, because it is compiled only for the
//! core's own tests.

use std::collections::BTreeMap;

use baton_core::ids::TenantId;
use baton_core::task::spec::{
    AgentOptions, DeadlineProfile, DispatchPolicy, InputTimeoutPolicy, PlacementTarget,
    RequestedProfile, RetryPolicy, TaskSpec, TurnKind, UnsafeLossPolicy,
};

pub(crate) fn task_spec() -> TaskSpec {
    TaskSpec {
        tenant: TenantId::new("acme").unwrap(),
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
        mcp: false,
        agent_held: false,
        traceparent: None,
    }
}
