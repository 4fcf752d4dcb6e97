//! Specifications of submitted tasks, which differ in everything that the core decides by.

use std::collections::BTreeMap;

use baton_core::ids::TenantId;
use baton_core::task::spec::{
    AgentOptions, DeadlineProfile, DispatchPolicy, InputTimeoutPolicy, PlacementTarget,
    RequestedProfile, RetryPolicy, TaskSpec, TurnKind, UnsafeLossPolicy, WorkspaceSpec,
};

use crate::checks::permission_rules;
use crate::checks::required_files;
use crate::options::MAX_LEASE_TTL_MS;
use crate::random::SeededRng;
use crate::simulation::Simulation;

impl Simulation {
    pub(crate) fn random_spec(&mut self) -> TaskSpec {
        let number = self.clients.submitted.len();
        let rng = &mut self.rng;
        let key = rng.chance(50).then(|| format!("key-{number}"));
        let talks = self.options.conversations && rng.chance(50);
        let talk = talks.then(|| format!("talk-{}", rng.below(3)));
        let deadlines = self.options.hangs && rng.chance(60);
        let profile = DeadlineProfile {
            process_start_ms: deadlines.then_some(15_000),
            first_event_ms: deadlines.then_some(20_000),
            stream_idle_ms: deadlines.then_some(15_000),
            tool_idle_ms: deadlines.then_some(30_000),
            user_input_ms: deadlines.then_some(20_000),
            cleanup_term_ms: rng.chance(50).then_some(1_500),
            ..DeadlineProfile::default()
        };
        // The directory itself is the daemon's choice; only its identity matters here.
        let shared = rng.chance(20);
        let tenant = if rng.chance(70) { "acme" } else { "globex" };
        let ttl = if self.options.short_ttl {
            rng.between(5_000, 9_000)
        } else {
            rng.between(15_000, MAX_LEASE_TTL_MS)
        };
        let (agent_scope, agent_held) = random_agent_scope(rng, self.options.lease_holding_agents);
        TaskSpec {
            tenant: TenantId::new(tenant).expect("a good name"),
            submitted_by: "alice".into(),
            idempotency_key: key,
            goal: String::new(),
            prompt: format!("task {number}"),
            agent: "claude".into(),
            options: AgentOptions::default(),
            argv: Vec::new(),
            cwd: None,
            workspace: shared.then(WorkspaceSpec::default),
            env: BTreeMap::new(),
            conversation_id: talk,
            channel_id: None,
            turn_kind: TurnKind::User,
            requested_profile: RequestedProfile::Absent,
            effective_profile: profile,
            queue_ms: Some(rng.between(60_000, 900_000)),
            total_ms: Some(rng.between(60_000, 300_000)),
            lease_ttl_ms: ttl,
            retry: random_retry_policy(rng),
            on_input_timeout: rng
                .pick(&[
                    InputTimeoutPolicy::Fail,
                    InputTimeoutPolicy::Deny,
                    InputTimeoutPolicy::Park,
                ])
                .unwrap_or_default(),
            permission_rules: permission_rules::random_rules(rng),
            dispatch_policy: if rng.chance(5) {
                DispatchPolicy::FailFast
            } else {
                DispatchPolicy::Queue
            },
            target: PlacementTarget::default(),
            priority: u8::try_from(rng.pick(&[0, 50, 50, 100]).unwrap_or(50)).unwrap_or(50),
            labels: BTreeMap::new(),
            success_criteria: Vec::new(),
            contract: required_files::random_contract(rng, self.options.contracts),
            agent_scope,
            agent_held,
            traceparent: None,
            mcp: false,
        }
    }
}

/// The scope of agents that may have it, and whether only agents may.
fn random_agent_scope(rng: &mut SeededRng, agents: bool) -> (Option<String>, bool) {
    if !(agents && rng.chance(60)) {
        return (None, false);
    }
    let crew = if rng.chance(75) { "north" } else { "south" };
    (Some(crew.to_owned()), rng.chance(40))
}

fn random_retry_policy(rng: &mut SeededRng) -> RetryPolicy {
    use UnsafeLossPolicy::{Fail, Park, Retry};
    RetryPolicy {
        max_attempts: u32::try_from(rng.between(1, 4)).unwrap_or(1),
        max_losses: u32::try_from(rng.between(1, 4)).unwrap_or(1),
        when_unsafe: rng.pick(&[Park, Retry, Retry, Fail]).unwrap_or_default(),
        backoff_initial_ms: rng.between(1, 2_000),
        backoff_max_ms: 30_000,
    }
}

/// Two submissions differ only in the prompt here.
pub(crate) fn spec_digest(spec: &TaskSpec) -> [u8; 32] {
    let mut digest = [0; 32];
    for (place, byte) in digest.iter_mut().zip(spec.prompt.bytes()) {
        *place = byte;
    }
    digest
}
