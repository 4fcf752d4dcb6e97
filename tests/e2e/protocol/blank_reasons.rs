//! A blank reason is refused by RPCs, commands and tools before any lookup. The relay counts
//! lookups for clients, in its records and in its core, and the count must not change.

use baton_proto::v1::{
    AgentBlockRequest, AgentCheckpointRequest, AgentFailRequest, AgentLease, BlockDraft,
    BlockTaskRequest, BulkForceRequest, CheckpointDraft, CompleteTaskRequest,
    DisconnectDaemonRequest, DrainDaemonRequest, ForceFailRequest, ForceReleaseRequest, ForceVerb,
    ForgetDaemonRequest, PauseRequest, ReleaseInheritedRequest, ResumeTaskRequest,
    RetryTaskRequest, Role, pause_request,
};
use baton_proto::verbs::{self, VERBS};
use baton_tests::{
    EmbeddedRelay, LeaseAgent, McpClient, TestClient, agent_scope_spec, agent_task, wait_within,
};
use serde_json::json;
use tonic::{Code, Status};

use crate::BATON;

const SCOPE: &str = "reviewers";
const UNKNOWN_ID: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";
const BLANK_REASONS: [&str; 3] = ["", " ", " \n\t\u{2003}"];

/// A caller that names an unknown or foreign task, or has a wrong token.
struct WrongCaller {
    what: &'static str,
    client: TestClient,
    agent: TestClient,
    lease: AgentLease,
}

/// Callers whose request is wrong in another way than its blank reason.
async fn wrong_callers(relay: &EmbeddedRelay) -> Vec<WrongCaller> {
    let admin = relay.admin();
    let agent = LeaseAgent::new(admin, "ada", SCOPE).await;
    let lease = agent
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("the task starts");
    let foreign = LeaseAgent::of_tenant(admin, "theirs", "mallory", SCOPE).await;
    let other = admin.client_of_tenant("theirs", Role::Admin).await;
    let lease_with = |change: fn(&mut AgentLease)| {
        let mut changed = lease.lease_ref.clone();
        change(&mut changed);
        changed
    };
    let caller = |what, client: &TestClient, agent: &LeaseAgent, lease| WrongCaller {
        what,
        client: client.clone(),
        agent: agent.client.clone(),
        lease,
    };
    let unknown = lease_with(|lease| UNKNOWN_ID.clone_into(&mut lease.task_id));
    let malformed = lease_with(|lease| "no id".clone_into(&mut lease.task_id));
    let forged = lease_with(|lease| {
        let token = lease.token.as_mut().expect("a lease has a token");
        token.value = vec![0; 32].into();
    });
    vec![
        caller("an unknown id", admin, &agent, unknown),
        caller("no id at all", admin, &agent, malformed),
        caller("a wrong token", admin, &agent, forged),
        caller("a foreign id", &other, &foreign, lease.lease_ref.clone()),
    ]
}

/// RPCs that require a reason: those in the table of verbs, those for fleets and
/// failures, and the summary of a checkpoint.
fn rpcs_with_reason() -> Vec<&'static str> {
    let verbs = VERBS.iter().filter(|verb| verb.needs_reason);
    let others = [
        "Agents.Checkpoint",
        "Agents.Fail",
        "Fleet.DisconnectDaemon",
        "Fleet.DrainDaemon",
        "Fleet.ForgetDaemon",
        "Operator.ReleaseInherited",
    ];
    verbs
        .flat_map(|verb| verb.rpcs.iter().copied())
        .chain(others)
        .collect()
}

#[expect(
    clippy::too_many_lines,
    reason = "one arm per RPC, and each only fills in its request"
)]
async fn call_rpc(caller: &WrongCaller, rpc: &str, reason: &str) -> Result<(), Status> {
    let (task_id, reason) = (caller.lease.task_id.clone(), reason.to_owned());
    let lease = Some(caller.lease.clone());
    let (mut tasks, mut operator) = (caller.client.tasks(), caller.client.operator());
    let (mut agents, mut fleet) = (caller.agent.agents(), caller.client.fleet());
    let answer = async {
        match rpc {
            "Agents.Block" => {
                let block = Some(BlockDraft {
                    reason,
                    ..BlockDraft::default()
                });
                let request = AgentBlockRequest {
                    lease,
                    block,
                    ..AgentBlockRequest::default()
                };
                agents.block(request).await.map(drop)
            }
            "Agents.Checkpoint" => {
                let checkpoint = Some(CheckpointDraft {
                    summary: reason,
                    ..CheckpointDraft::default()
                });
                let request = AgentCheckpointRequest {
                    lease,
                    checkpoint,
                    ..AgentCheckpointRequest::default()
                };
                agents.checkpoint(request).await.map(drop)
            }
            "Agents.Fail" => {
                let request = AgentFailRequest {
                    lease,
                    message: reason,
                    ..AgentFailRequest::default()
                };
                agents.fail(request).await.map(drop)
            }
            "Tasks.Block" => {
                let request = BlockTaskRequest {
                    task_id,
                    reason,
                    ..BlockTaskRequest::default()
                };
                tasks.block(request).await.map(drop)
            }
            "Tasks.Resume" => {
                let request = ResumeTaskRequest {
                    task_id,
                    reason,
                    ..ResumeTaskRequest::default()
                };
                tasks.resume(request).await.map(drop)
            }
            "Operator.RetryTask" => {
                let request = RetryTaskRequest {
                    task_id,
                    reason,
                    ..RetryTaskRequest::default()
                };
                operator.retry_task(request).await.map(drop)
            }
            "Operator.BulkForce" => {
                let request = BulkForceRequest {
                    verb: ForceVerb::Fail.into(),
                    task_ids: vec![task_id],
                    reason,
                    ..BulkForceRequest::default()
                };
                operator.bulk_force(request).await.map(drop)
            }
            "Operator.ForceRelease" => {
                let request = ForceReleaseRequest {
                    task_id,
                    reason,
                    ..ForceReleaseRequest::default()
                };
                operator.force_release(request).await.map(drop)
            }
            "Operator.ForceFail" => {
                let request = ForceFailRequest {
                    task_id,
                    reason,
                    ..ForceFailRequest::default()
                };
                operator.force_fail(request).await.map(drop)
            }
            "Operator.CompleteTask" => {
                let request = CompleteTaskRequest {
                    task_id,
                    reason,
                    ..CompleteTaskRequest::default()
                };
                operator.complete_task(request).await.map(drop)
            }
            "Operator.Pause" => {
                let target = Some(pause_request::Target::TaskId(task_id));
                operator
                    .pause(PauseRequest { target, reason })
                    .await
                    .map(drop)
            }
            "Operator.ReleaseInherited" => {
                let request = ReleaseInheritedRequest { reason };
                operator.release_inherited(request).await.map(drop)
            }
            "Fleet.DisconnectDaemon" => {
                let daemon = task_id;
                let request = DisconnectDaemonRequest { daemon, reason };
                fleet.disconnect_daemon(request).await.map(drop)
            }
            "Fleet.DrainDaemon" => {
                let request = DrainDaemonRequest {
                    daemon: task_id,
                    reason,
                    ..DrainDaemonRequest::default()
                };
                fleet.drain_daemon(request).await.map(drop)
            }
            "Fleet.ForgetDaemon" => {
                let daemon = task_id;
                let request = ForgetDaemonRequest { daemon, reason };
                fleet.forget_daemon(request).await.map(drop)
            }
            unknown => panic!("{unknown} requires a reason, but this test has no call for it"),
        }
    };
    wait_within(rpc, answer).await
}

/// The number of lookups that the relay has made for its clients.
fn lookup_count(relay: &EmbeddedRelay) -> u64 {
    relay.counter_value("look_ups")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_rpc_with_a_blank_reason_causes_no_lookup() {
    let relay = EmbeddedRelay::start().await;
    for caller in wrong_callers(&relay).await {
        // First show that a lookup changes the count.
        let before = lookup_count(&relay);
        let with_reason = call_rpc(&caller, "Tasks.Block", "because").await;
        let looked_up = lookup_count(&relay) > before;
        assert_eq!(looked_up, caller.what != "no id at all", "{with_reason:?}");
        for rpc in rpcs_with_reason() {
            for reason in BLANK_REASONS {
                let before = lookup_count(&relay);
                let refused = call_rpc(&caller, rpc, reason).await;
                let status = refused.expect_err("a reason is required");
                let what = caller.what;
                assert_eq!(
                    status.code(),
                    Code::InvalidArgument,
                    "{rpc}, {what}: {status:?}"
                );
                assert_eq!(
                    lookup_count(&relay),
                    before,
                    "{rpc}, {what}: a lookup was made"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_a_blank_reason_causes_no_lookup() {
    let relay = EmbeddedRelay::start().await;
    let other_tenant = relay
        .admin()
        .client_of_tenant("theirs", Role::Submitter)
        .await;
    let foreign = other_tenant.submit(agent_task("nobody")).await.task_id;
    let data = relay.data_directory();
    let run = async |arguments: &[&str]| {
        let address = ["--relay", relay.url()];
        let arguments: Vec<&str> = arguments.iter().copied().chain(address).collect();
        BATON.run(&data, &arguments).await
    };
    let verbs_with_reason = VERBS.iter().filter(|verb| verb.needs_reason);
    let commands: Vec<&str> = verbs_with_reason.filter_map(|verb| verb.command).collect();
    assert_eq!(commands.len(), 7, "{commands:?}");
    // An id prefix needs a lookup, which must not happen before the reason is checked.
    for id in [UNKNOWN_ID, &foreign, &foreign[..8]] {
        for command in commands.iter().chain(&["forget", "drain", "disconnect"]) {
            for reason in BLANK_REASONS {
                let before = lookup_count(&relay);
                let output = run(&[command, id, "--reason", reason]).await;
                assert_eq!(output.code, Some(2), "{command}: {output:?}");
                assert!(output.stderr.contains("reason"), "{command}: {output:?}");
                assert_eq!(lookup_count(&relay), before, "{command} made a lookup");
            }
        }
        let before = lookup_count(&relay);
        let output = run(&["block", id, "--reason", "because"]).await;
        // A full id is refused by the relay; no task matches the prefix.
        let refused = if id.len() < UNKNOWN_ID.len() { 2 } else { 1 };
        assert_eq!(output.code, Some(refused), "{output:?}");
        assert!(lookup_count(&relay) > before, "a lookup changes the count");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_with_a_blank_reason_causes_no_lookup() {
    let relay = EmbeddedRelay::start().await;
    let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let other_tenant = relay
        .admin()
        .client_of_tenant("theirs", Role::Submitter)
        .await;
    let foreign = other_tenant.submit(agent_task("nobody")).await.task_id;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for (name, token) in [
        ("right", agent.client.token_secret()),
        ("wrong", "btn_wrong"),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, token).expect("a file can be written");
        let file = file.to_str().expect("a plain path");
        let arguments = ["--relay", relay.url(), "--token-file", file];
        let tools = McpClient::start(BATON, &relay.data_directory(), &arguments).await;
        let with_reason = verbs::agent_tools().filter(|(verb, _)| verb.needs_reason);
        for name in with_reason.flat_map(|(_, tool)| tool.aliases.iter().chain([&tool.name])) {
            for (task_id, reason) in [UNKNOWN_ID, &foreign, "no id"]
                .into_iter()
                .flat_map(|id| BLANK_REASONS.map(|reason| (id, reason)))
            {
                let before = lookup_count(&relay);
                let arguments = json!({"task_id": task_id, "reason": reason});
                let response = tools.call_tool(name, arguments).await;
                assert_eq!(response.error_field("status"), "invalid_argument", "{name}");
                assert_eq!(response.error_field("code"), "blank", "{name}");
                assert_eq!(response.error_field("field"), "reason", "{name}");
                assert_eq!(lookup_count(&relay), before, "{name} made a lookup");
            }
        }
    }
}
