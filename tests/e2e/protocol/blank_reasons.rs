//! A required reason that is blank is refused at every surface before anything is looked up: the relay counts what it looks
//! up for its clients, in its records and in its core, and the count does not move.

use baton_proto::v1::{
    AgentBlockRequest, AgentFailRequest, AgentLease, BlockDraft, BlockTaskRequest,
    BulkForceRequest, CompleteTaskRequest, DisconnectDaemonRequest, DrainDaemonRequest,
    ForceFailRequest, ForceReleaseRequest, ForceVerb, ForgetDaemonRequest, PauseRequest,
    ReleaseInheritedRequest, ResumeTaskRequest, RetryTaskRequest, Role, pause_request,
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

/// Who asks about what: another one's, nobody's, or without the right proof.
struct WrongCaller {
    what: &'static str,
    client: TestClient,
    agent: TestClient,
    lease: AgentLease,
}

/// Everything that is wrong beside the reason.
async fn wrong_callers(relay: &EmbeddedRelay) -> Vec<WrongCaller> {
    let admin = relay.admin();
    let agent = LeaseAgent::new(admin, "ada", SCOPE).await;
    let lease = agent
        .start(agent_scope_spec(SCOPE), "k")
        .await
        .expect("it starts");
    let foreign = LeaseAgent::of_tenant(admin, "theirs", "mallory", SCOPE).await;
    let other = admin.client_of_tenant("theirs", Role::Admin).await;
    let named = |change: fn(&mut AgentLease)| {
        let mut named = lease.lease_ref.clone();
        change(&mut named);
        named
    };
    let asked = |what, client: &TestClient, agent: &LeaseAgent, lease| WrongCaller {
        what,
        client: client.clone(),
        agent: agent.client.clone(),
        lease,
    };
    let unknown = named(|lease| UNKNOWN_ID.clone_into(&mut lease.task_id));
    let malformed = named(|lease| "no id".clone_into(&mut lease.task_id));
    let forged = named(|lease| {
        let token = lease.token.as_mut().expect("a lease has a token");
        token.value = vec![0; 32].into();
    });
    vec![
        asked("an unknown id", admin, &agent, unknown),
        asked("no id at all", admin, &agent, malformed),
        asked("a wrong token", admin, &agent, forged),
        asked("a foreign id", &other, &foreign, lease.lease_ref.clone()),
    ]
}

/// RPCs whose reason is required: those of the table of verbs, and those for fleets and failures.
fn rpcs_with_reason() -> Vec<&'static str> {
    let verbs = VERBS.iter().filter(|verb| verb.needs_reason);
    let others = [
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
    reason = "one arm per RPC, and each only fills in what it takes"
)]
async fn call_rpc(asked: &WrongCaller, rpc: &str, reason: &str) -> Result<(), Status> {
    let (task_id, reason) = (asked.lease.task_id.clone(), reason.to_owned());
    let lease = Some(asked.lease.clone());
    let (mut tasks, mut operator) = (asked.client.tasks(), asked.client.operator());
    let (mut agents, mut fleet) = (asked.agent.agents(), asked.client.fleet());
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
            unknown => panic!("{unknown} needs a reason, and nobody asks it without one"),
        }
    };
    wait_within(rpc, answer).await
}

/// What the relay has looked up for its clients until now.
fn lookup_count(relay: &EmbeddedRelay) -> u64 {
    relay.counter_value("look_ups")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_rpc_with_a_blank_reason_looks_nothing_up() {
    let relay = EmbeddedRelay::start().await;
    for asked in wrong_callers(&relay).await {
        // So that the count is known to move.
        let before = lookup_count(&relay);
        let because = call_rpc(&asked, "Tasks.Block", "because").await;
        let found = lookup_count(&relay) > before;
        assert_eq!(found, asked.what != "no id at all", "{because:?}");
        for rpc in rpcs_with_reason() {
            for reason in BLANK_REASONS {
                let before = lookup_count(&relay);
                let refused = call_rpc(&asked, rpc, reason).await;
                let status = refused.expect_err("a reason is required");
                let what = asked.what;
                assert_eq!(
                    status.code(),
                    Code::InvalidArgument,
                    "{rpc}, {what}: {status:?}"
                );
                assert_eq!(lookup_count(&relay), before, "{rpc}, {what}: it looked");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_a_blank_reason_looks_nothing_up() {
    let relay = EmbeddedRelay::start().await;
    let theirs = relay
        .admin()
        .client_of_tenant("theirs", Role::Submitter)
        .await;
    let foreign = theirs.submit(agent_task("nobody")).await.task_id;
    let data = relay.data_directory();
    let run = async |words: &[&str]| {
        let address = ["--relay", relay.url()];
        let words: Vec<&str> = words.iter().copied().chain(address).collect();
        BATON.run(&data, &words).await
    };
    let of_verbs = VERBS.iter().filter(|verb| verb.needs_reason);
    let commands: Vec<&str> = of_verbs.filter_map(|verb| verb.command).collect();
    assert_eq!(commands.len(), 7, "{commands:?}");
    // The beginning of an id has to be looked for, and is not before there is a reason.
    for id in [UNKNOWN_ID, &foreign, &foreign[..8]] {
        for command in commands.iter().chain(&["forget", "drain", "disconnect"]) {
            for reason in BLANK_REASONS {
                let before = lookup_count(&relay);
                let said = run(&[command, id, "--reason", reason]).await;
                assert_eq!(said.code, Some(2), "{command}: {said:?}");
                assert!(said.stderr.contains("reason"), "{command}: {said:?}");
                assert_eq!(lookup_count(&relay), before, "{command} looked");
            }
        }
        let before = lookup_count(&relay);
        let said = run(&["block", id, "--reason", "because"]).await;
        // Refused by the relay, or for want of a task that begins so.
        let refused = if id.len() < UNKNOWN_ID.len() { 2 } else { 1 };
        assert_eq!(said.code, Some(refused), "{said:?}");
        assert!(lookup_count(&relay) > before, "the count moves");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_with_a_blank_reason_looks_nothing_up() {
    let relay = EmbeddedRelay::start().await;
    let agent = LeaseAgent::new(relay.admin(), "ada", SCOPE).await;
    let theirs = relay
        .admin()
        .client_of_tenant("theirs", Role::Submitter)
        .await;
    let foreign = theirs.submit(agent_task("nobody")).await.task_id;
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
                let told = tools.call_tool(name, arguments).await;
                assert_eq!(told.error_field("status"), "invalid_argument", "{name}");
                assert_eq!(told.error_field("field"), "reason", "{name}");
                assert_eq!(lookup_count(&relay), before, "{name} looked");
            }
        }
    }
}
