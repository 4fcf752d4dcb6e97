//! One scenario with real processes end to end: a task blocks on one machine, all processes
//! restart, a person answers a day later, and another machine finishes the task. The tests check
//! its records, and that no secret leaked.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use baton_proto::timestamp_to_ms;
use baton_proto::v1::attempt_command::Body as Command;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    AttemptState, AttentionCause, CheckpointKind, DaemonState, DrainDaemonRequest,
    GetBlockedRequest, ListBlockedRequest, ListCheckpointsRequest, ListTasksRequest, ResumeAnswer,
    ResumeTaskRequest, Role, Task, TaskSpec, TaskState,
};
use baton_tests::{
    AttemptToolAccess, DaemonProcess, FrameTap, GrantedLease, LeaseAgent, McpClient, RelayProcess,
    TappedFrame, TestClock, TraceCollector, agent_scope_spec, attempt_processes, attribute_text,
    command_task, poll_until, wait_within,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use tempfile::TempDir;

use crate::secret_search::{SecretSearch, files_below};

const SCOPE: &str = "reviewers";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A machine with its daemon, connected through a frame tap.
struct ScenarioMachine {
    name: &'static str,
    credential: String,
    tap: FrameTap,
    daemon: DaemonProcess,
}

struct ScenarioFixture {
    baton: baton_tests::BatonExecutable,
    clock: TestClock,
    relay: RelayProcess,
    collector: TraceCollector,
    machines: Vec<ScenarioMachine>,
    dir: TempDir,
}

/// Everything that the scenario left behind.
struct ScenarioRemains {
    fixture: ScenarioFixture,
    task: Task,
    spans: Vec<Span>,
    events: Vec<Vec<u8>>,
    /// Answers to Get.
    shown_tasks: Vec<Task>,
    tool_access: Vec<AttemptToolAccess>,
    /// The environments of all processes of the task.
    environments: Vec<Vec<u8>>,
}

impl ScenarioFixture {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let clock = TestClock::new();
        let log = dir.path().join("log");
        let baton = clock.apply_to(crate::BATON).logging_to(log);
        let collector = TraceCollector::start().await;
        let otlp = ["--otlp", collector.url()];
        let relay = RelayProcess::start_with(baton, &otlp).await;
        Self {
            baton,
            clock,
            relay,
            collector,
            machines: Vec::new(),
            dir,
        }
    }

    async fn add_machine(&mut self, name: &'static str) {
        let admin = self.relay.admin();
        let (_, credential) = admin.create_token("", Role::Daemon).await;
        let tap = FrameTap::start(admin.url()).await;
        let daemon = self.start_daemon(name, &tap, &credential).await;
        self.machines.push(ScenarioMachine {
            name,
            credential,
            tap,
            daemon,
        });
        // A daemon that stops before it reads its first Welcome has no stored id. Its next start
        // would be a second daemon of the same name, which no look-up by name can find.
        let admin = self.relay.admin();
        admin.wait_for_daemon_state(name, DaemonState::Online).await;
    }

    async fn start_daemon(&self, name: &str, tap: &FrameTap, credential: &str) -> DaemonProcess {
        DaemonProcess::start(self.baton, self.dir.path(), name, &tap.url(), credential).await
    }

    /// Stops all processes, advances the clocks by a day and restarts everything.
    async fn restart_after_a_day(&mut self) {
        for machine in &mut self.machines {
            machine.daemon.terminate().await;
        }
        self.relay.kill().await;
        self.clock.advance_suspended(DAY);
        self.relay.start_again().await;
        let mut machines = std::mem::take(&mut self.machines);
        for machine in &mut machines {
            let (tap, credential) = (&machine.tap, &machine.credential);
            machine.daemon = self.start_daemon(machine.name, tap, credential).await;
        }
        self.machines = machines;
        for machine in &self.machines {
            let admin = self.relay.admin();
            admin
                .wait_for_daemon_state(machine.name, DaemonState::Online)
                .await;
        }
    }

    /// A task with tools that runs until the file `done` exists.
    fn scenario_task(&self) -> TaskSpec {
        let file = self.dir.path().join("done");
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
        TaskSpec {
            goal: "review the change".to_owned(),
            mcp: true,
            ..command_task("sh", &["-c", &script], "full-scenario")
        }
    }

    async fn start_mcp(&self, access: &AttemptToolAccess) -> McpClient {
        McpClient::start_for_attempt(self.baton, self.dir.path(), access).await
    }

    /// The agent reports progress and blocks the task with a question.
    async fn progress_and_block(&self, access: &AttemptToolAccess) {
        let tools = self.start_mcp(access).await;
        let items = json!({"completed_items": ["first"], "cursor": "page 3"});
        tools.call_tool("task_progress", items).await.into_content();
        let begun = json!({"summary": "begun"});
        tools
            .call_tool("task_checkpoint", begun)
            .await
            .into_content();
        let stuck = json!({"reason": "which branch?", "resume_hint": "a name"});
        tools.call_tool("task_block", stuck).await.into_content();
    }

    async fn resume_with_answer(&self, task_id: &str) -> Task {
        let request = ResumeTaskRequest {
            task_id: task_id.to_owned(),
            reason: "asked around".to_owned(),
            answers: vec![ResumeAnswer {
                question: "which branch?".to_owned(),
                answer: "the blue one".to_owned(),
            }],
            ..ResumeTaskRequest::default()
        };
        let mut tasks = self.relay.admin().tasks();
        let resumed = wait_within("an answer to Resume", tasks.resume(request)).await;
        let resumed = resumed.expect("the task is parked").into_inner();
        resumed.task.expect("the answer has the task")
    }

    async fn list_blocked(&self) -> Vec<String> {
        let mut tasks = self.relay.admin().tasks();
        let listed = tasks.list_blocked(ListBlockedRequest::default());
        let listed = wait_within("a list of blocked tasks", listed).await;
        let listed = listed.expect("the list is allowed").into_inner().tasks;
        listed.into_iter().map(|task| task.task_id).collect()
    }

    /// Checks the record of the parked task after the restart.
    async fn assert_blocked_for_a_day(&self, task_id: &str) {
        assert_eq!(self.list_blocked().await, [task_id]);
        let request = GetBlockedRequest {
            task_id: task_id.to_owned(),
        };
        let mut tasks = self.relay.admin().tasks();
        let shown = wait_within("an answer to GetBlocked", tasks.get_blocked(request)).await;
        let shown = shown.expect("the task is parked").into_inner();
        let row = shown.blocked.expect("the answer has the task");
        assert!(row.age_ms >= 24 * 3_600_000, "{} ms", row.age_ms);
        let newest = shown.checkpoint.expect("a block has a checkpoint");
        assert_eq!((newest.number, newest.kind()), (2, CheckpointKind::Blocked));
        let parked = self.relay.admin().get(task_id).await;
        let attention = parked.attention.expect("a parked task shows why");
        assert_eq!(attention.cause(), AttentionCause::Blocked);
        assert_eq!(
            (&*attention.reason, &*attention.resume_hint),
            ("which branch?", "a name")
        );
    }

    /// Another agent reads the resume data and completes the task.
    async fn complete_task(&self, access: &AttemptToolAccess) {
        let tools = self.start_mcp(access).await;
        let own = tools.call_tool("task_get", json!({})).await.into_content();
        let resume = &own["task"]["resume"];
        assert_eq!(
            resume["answers"][0]["answer"],
            json!("the blue one"),
            "{own}"
        );
        assert_eq!(resume["checkpoint"]["summary"], json!("begun"), "{own}");
        let items = json!({"completed_items": ["second"]});
        tools.call_tool("task_progress", items).await.into_content();
        let done = json!({"outcome": "completed", "summary": "reviewed", "result": "fine"});
        tools.call_tool("task_complete", done).await.into_content();
        std::fs::write(self.dir.path().join("done"), "").expect("a file can be written");
    }

    /// Drains this daemon, so that another one gets the task.
    async fn drain_daemon(&self, name: &str) {
        let request = DrainDaemonRequest {
            daemon: name.to_owned(),
            reason: "it is needed for something else".to_owned(),
            deadline_ms: None,
        };
        let mut fleet = self.relay.admin().fleet();
        let drained = wait_within("an answer to DrainDaemon", fleet.drain_daemon(request)).await;
        drained.expect("the daemon is known");
    }
}

impl ScenarioRemains {
    /// Repeats the scenario with agents that hold their leases themselves.
    async fn run_with_lease_agents(&mut self) -> Vec<GrantedLease> {
        let admin = self.fixture.relay.admin().clone();
        let ada = LeaseAgent::new(&admin, "ada", SCOPE).await;
        let bob = LeaseAgent::new(&admin, "bob", SCOPE).await;
        let first = ada
            .start(agent_scope_spec(SCOPE), "k")
            .await
            .expect("the task starts");
        ada.renew(&first).await.expect("the agent has the lease");
        ada.checkpoint(&first, "half way")
            .await
            .expect("the call is allowed");
        ada.block(&first, "which way?")
            .await
            .expect("the call is allowed");
        let second = bob
            .pick_up(&first.task_id, "")
            .await
            .expect("the task is parked");
        bob.release(&second, "no time")
            .await
            .expect("the agent has the lease");
        let third = ada.claim(&first.task_id).await.expect("the task waits");
        let third = third.expect("the claimed task is granted");
        ada.complete(&third, "done")
            .await
            .expect("the agent has the lease");
        let shown = admin.try_get_with_spec(&first.task_id).await;
        self.shown_tasks.push(shown.expect("the task exists"));
        let events = admin.watch(&first.task_id).await.collect_to_end().await;
        let events = events.iter().map(Message::encode_to_vec);
        self.events.extend(events);
        let spans = self.fixture.collector.wait_for_span("baton.task").await;
        self.spans.extend(spans.into_iter().map(|(_, span)| span));
        vec![first, second, third]
    }
}

async fn run_scenario() -> ScenarioRemains {
    let mut fixture = ScenarioFixture::start().await;
    fixture.add_machine("a").await;
    let client = fixture.relay.admin().clone();
    let task = client.submit(fixture.scenario_task()).await;
    let first = AttemptToolAccess::wait_for_attempt(&task.attempts[0].attempt_id).await;
    let mut environments = environments(&task.attempts[0].attempt_id);
    fixture.add_machine("b").await;
    fixture.progress_and_block(&first).await;
    client
        .wait_for_state(&task.task_id, TaskState::NeedsAttention)
        .await;
    poll_until("the first machine's outbox to be empty", || {
        fixture.machines[0].daemon.has_empty_outbox().then_some(())
    })
    .await;
    fixture.restart_after_a_day().await;
    fixture.assert_blocked_for_a_day(&task.task_id).await;
    fixture.drain_daemon("a").await;
    let resumed = fixture.resume_with_answer(&task.task_id).await;
    assert!(fixture.list_blocked().await.is_empty());
    let next = &resumed.attempts[1].attempt_id;
    let second = AttemptToolAccess::wait_for_attempt(next).await;
    environments.extend(self::environments(next));
    fixture.complete_task(&second).await;
    let events = client.watch(&task.task_id).await.collect_to_end().await;
    let spans = fixture.collector.wait_for_span("baton.task").await;
    ScenarioRemains {
        task: client.get(&task.task_id).await,
        spans: spans.into_iter().map(|(_, span)| span).collect(),
        events: events.iter().map(Message::encode_to_vec).collect(),
        shown_tasks: Vec::new(),
        tool_access: vec![first, second],
        environments,
        fixture,
    }
}

fn environments(attempt_id: &str) -> Vec<Vec<u8>> {
    let processes = attempt_processes(attempt_id).into_iter();
    let read = processes.map(|process| std::fs::read(format!("/proc/{}/environ", process.pid)));
    let read: Vec<Vec<u8>> = read.flatten().collect();
    assert!(read.len() > 1, "the shim and its child have environments");
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_blocked_on_one_daemon_is_finished_a_day_later_by_another() {
    let remains = run_scenario().await;
    let (task, admin) = (&remains.task, remains.fixture.relay.admin());
    let listed = admin.tasks().list(ListTasksRequest::default()).await;
    let listed = listed.expect("tasks are listed").into_inner().tasks;
    assert_eq!(listed.len(), 1, "one task");
    assert_eq!(
        (task.state(), &task.result[..]),
        (TaskState::Completed, &b"fine"[..])
    );
    let attempts = task.attempts.iter();
    let attempts: Vec<_> = attempts
        .map(|attempt| {
            (
                attempt.attempt_number,
                attempt.state(),
                &*attempt.daemon_name,
            )
        })
        .collect();
    let both = [
        (1, AttemptState::HandedOff, "a"),
        (2, AttemptState::Completed, "b"),
    ];
    assert_eq!(attempts, both);
    let (first, second) = (&task.attempts[0], &task.attempts[1]);
    assert_eq!(first.successor_attempt_id, second.attempt_id);
    assert!(!first.handed_off_to.is_empty());
    let progress = task.progress.clone().expect("progress outlives attempts");
    assert_eq!(progress.completed_items, ["first", "second"]);
    assert_eq!(progress.cursor, "page 3");
    let request = ListCheckpointsRequest {
        task_id: task.task_id.clone(),
        ..ListCheckpointsRequest::default()
    };
    let listed = admin.tasks().list_checkpoints(request).await;
    let listed = listed.expect("the task is known").into_inner().checkpoints;
    let listed: Vec<_> = listed
        .iter()
        .map(|one| (one.number, one.kind(), &*one.summary, &*one.created_by))
        .collect();
    let written = [
        (2, CheckpointKind::Blocked, "begun", "a"),
        (1, CheckpointKind::Progress, "begun", "a"),
    ];
    assert_eq!(listed, written);
    let at = |time: Option<&prost_types::Timestamp>| time.map_or(0, timestamp_to_ms);
    let (created, ended) = (at(task.created_at.as_ref()), at(task.ended_at.as_ref()));
    assert!(ended - created >= 24 * 3_600_000, "{created} to {ended}");
    assert_one_trace(&remains.spans);
}

/// The spans come from two runs of the relay and must form one trace with one root.
fn assert_one_trace(spans: &[Span]) {
    let traces: BTreeSet<&Vec<u8>> = spans.iter().map(|span| &span.trace_id).collect();
    assert_eq!(traces.len(), 1, "one trace");
    let locations_with_id = |name: &str| {
        spans
            .iter()
            .filter(|span| span.name == name)
            .collect::<Vec<_>>()
    };
    let (roots, attempts) = (
        locations_with_id("baton.task"),
        locations_with_id("baton.attempt"),
    );
    assert_eq!((roots.len(), attempts.len()), (1, 2), "{spans:#?}");
    for attempt in &attempts {
        assert_eq!(attempt.parent_span_id, roots[0].span_id);
    }
    let daemons = attempts
        .iter()
        .map(|span| attribute_text(&span.attributes, "baton.daemon.name"));
    assert_eq!(daemons.collect::<BTreeSet<_>>().len(), 2);
}

/// The lease tokens in all dispatches.
fn lease_tokens(machines: &[ScenarioMachine]) -> Vec<Vec<u8>> {
    let frames = machines.iter().flat_map(|machine| machine.tap.frames());
    let dispatched = frames.filter_map(|frame| {
        let TappedFrame::FromRelay(frame) = frame else {
            return None;
        };
        let Some(Frame::Attempt(command)) = frame.frame else {
            return None;
        };
        match command.body {
            Some(Command::Dispatch(dispatch)) => Some(dispatch.token?.value.to_vec()),
            _ => None,
        }
    });
    dispatched.collect()
}

/// All bytes that the scenario left behind, each with its location.
fn remaining_bytes(remains: &ScenarioRemains, export: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = files_below(remains.fixture.relay.data());
    found.extend(files_below(remains.fixture.dir.path()));
    assert!(
        found
            .iter()
            .any(|(path, _)| path == &*export.to_string_lossy())
    );
    let log = found.iter().find(|(path, _)| path.ends_with("/log"));
    let log = String::from_utf8_lossy(&log.expect("a log file exists").1).into_owned();
    assert!(log.contains("TRACE"), "the log has TRACE lines");
    for target in ["baton_relay", "baton_daemon"] {
        assert!(log.contains(target), "the log has no lines of {target}");
    }
    let spans = remains.spans.iter().map(Message::encode_to_vec);
    found.extend(spans.map(|span| ("a span".to_owned(), span)));
    let events = remains.events.iter().cloned();
    found.extend(events.map(|event| ("an event".to_owned(), event)));
    let shown = remains.shown_tasks.iter().chain([&remains.task]);
    found.extend(shown.map(|task| ("a task".to_owned(), task.encode_to_vec())));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_full_scenario_leaks_no_lease_token_capability_or_credential() {
    let mut remains = run_scenario().await;
    let leases = remains.run_with_lease_agents().await;
    let fixture = &remains.fixture;
    let export = fixture.dir.path().join("export");
    let arguments = ["export", "--out", &*export.to_string_lossy()];
    let made = crate::BATON.run(fixture.relay.data(), &arguments).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut tokens = lease_tokens(&fixture.machines);
    assert_eq!(tokens.len(), 2, "one for each attempt");
    tokens.extend(leases.iter().map(GrantedLease::token_bytes));
    let locations = remaining_bytes(&remains, &export);
    let nothing = BTreeSet::new();
    let found = SecretSearch::for_secrets(&tokens).locations_with_secret(&locations);
    assert_eq!(found, nothing, "a lease token");
    let capabilities = remains.tool_access.iter().map(|access| {
        let parts = access.capability.split_once('.');
        parts.expect("an attempt and a secret").1.into()
    });
    let capabilities: Vec<Vec<u8>> = capabilities.collect();
    let found = SecretSearch::for_secrets(&capabilities).locations_with_secret(&locations);
    assert_eq!(found, nothing, "a capability");
    let credentials = fixture.machines.iter();
    let credentials = credentials.map(|machine| machine.credential.clone().into_bytes());
    let credentials: Vec<Vec<u8>> = credentials.collect();
    let mut found = SecretSearch::for_secrets(&credentials).locations_with_secret(&locations);
    // A daemon's credential file is the one place for it.
    found.retain(|location| !location.ends_with("/credential"));
    assert_eq!(found, nothing, "a credential");
    let environments = remains.environments.iter().cloned();
    let environments: Vec<_> = environments
        .map(|one| ("an environment".to_owned(), one))
        .collect();
    let found = SecretSearch::for_secrets(&[tokens, credentials].concat())
        .locations_with_secret(&environments);
    assert_eq!(found, nothing);
    // Check the search itself: it finds the task id, and the capability in the environments.
    let id = remains.task.task_id.clone();
    let id_bytes = id.parse::<uuid::Uuid>().expect("an id").into_bytes();
    assert!(
        !SecretSearch::for_secrets(&[id_bytes.to_vec()])
            .locations_with_secret(&locations)
            .is_empty()
    );
    let locations_with_id =
        SecretSearch::for_secrets(&[id.into_bytes()]).locations_with_secret(&locations);
    for location in ["a span", "an event", "a task", "/log"] {
        assert!(
            locations_with_id
                .iter()
                .any(|found| found.ends_with(location)),
            "{location}"
        );
    }
    assert!(
        !SecretSearch::for_secrets(&capabilities)
            .locations_with_secret(&environments)
            .is_empty()
    );
}
