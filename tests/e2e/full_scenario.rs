//! One story from end to end, all of it real processes: a task blocks on one machine, everything is started again, a person answers
//! a day later, and another machine finishes it. What must be there afterwards, and what must be nowhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use baton_proto::timestamp_to_ms;
use baton_proto::v1::attempt_command::Body as Command;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::{
    AttemptState, CheckpointKind, DaemonState, DrainDaemonRequest, ListCheckpointsRequest,
    ListTasksRequest, ResumeAnswer, ResumeTaskRequest, Role, Task, TaskSpec, TaskState,
};
use baton_tests::{
    AttemptToolAccess, DaemonProcess, FrameTap, GrantedLease, LeaseAgent, McpClient, RelayProcess,
    TappedFrame, TestClock, TraceCollector, agent_scope_spec, attempt_processes, attribute_text,
    command_task, poll_until, wait_within,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tempfile::TempDir;

const SCOPE: &str = "reviewers";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A machine: its daemon, by a wire that is listened to.
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

/// What the story left, for those who look.
struct ScenarioRemains {
    fixture: ScenarioFixture,
    task: Task,
    spans: Vec<Span>,
    events: Vec<Vec<u8>>,
    tool_access: Vec<AttemptToolAccess>,
    /// The environments of everything that ran for the task.
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
    }

    async fn start_daemon(&self, name: &str, tap: &FrameTap, credential: &str) -> DaemonProcess {
        DaemonProcess::start(self.baton, self.dir.path(), name, &tap.url(), credential).await
    }

    /// Everything ends, a day goes by, and everything is started again.
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

    /// Runs until it may end, and has tools.
    fn scenario_task(&self) -> TaskSpec {
        let file = self.dir.path().join("done");
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
        TaskSpec {
            goal: "review the change".to_owned(),
            mcp: true,
            ..command_task("sh", &["-c", &script], "whole-story")
        }
    }

    async fn start_mcp(&self, handed: &AttemptToolAccess) -> McpClient {
        McpClient::start_for_attempt(self.baton, self.dir.path(), handed).await
    }

    /// The agent works, and gives up for want of an answer.
    async fn progress_and_block(&self, handed: &AttemptToolAccess) {
        let tools = self.start_mcp(handed).await;
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
        let resumed = resumed.expect("it is parked").into_inner();
        resumed.task.expect("the task after it")
    }

    /// Another agent reads what was left, and finishes.
    async fn complete_task(&self, handed: &AttemptToolAccess) {
        let tools = self.start_mcp(handed).await;
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

    /// No daemon but the others may have the task.
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
    /// The same once more by agents that hold their leases themselves.
    async fn run_with_lease_agents(&mut self) -> Vec<GrantedLease> {
        let admin = self.fixture.relay.admin().clone();
        let ada = LeaseAgent::new(&admin, "ada", SCOPE).await;
        let bob = LeaseAgent::new(&admin, "bob", SCOPE).await;
        let first = ada
            .start(agent_scope_spec(SCOPE), "k")
            .await
            .expect("it starts");
        ada.renew(&first).await.expect("it holds it");
        ada.checkpoint(&first, "half way").await.expect("it may");
        ada.block(&first, "which way?").await.expect("it may");
        let second = bob.pick_up(&first.task_id, "").await.expect("it is free");
        bob.complete(&second, "done").await.expect("it holds it");
        let events = admin.watch(&first.task_id).await.collect_to_end().await;
        let events = events.iter().map(prost::Message::encode_to_vec);
        self.events.extend(events);
        let spans = self.fixture.collector.wait_for_span("baton.task").await;
        self.spans.extend(spans.into_iter().map(|(_, span)| span));
        vec![first, second]
    }
}

async fn run_scenario() -> ScenarioRemains {
    let mut stage = ScenarioFixture::start().await;
    stage.add_machine("a").await;
    let client = stage.relay.admin().clone();
    let task = client.submit(stage.scenario_task()).await;
    let first = AttemptToolAccess::wait_for_attempt(&task.attempts[0].attempt_id).await;
    let mut environments = environments(&task.attempts[0].attempt_id);
    stage.add_machine("b").await;
    stage.progress_and_block(&first).await;
    client
        .wait_for_state(&task.task_id, TaskState::NeedsAttention)
        .await;
    poll_until("the first machine to be done with it", || {
        stage.machines[0].daemon.has_empty_outbox().then_some(())
    })
    .await;
    stage.restart_after_a_day().await;
    stage.drain_daemon("a").await;
    let resumed = stage.resume_with_answer(&task.task_id).await;
    let next = &resumed.attempts[1].attempt_id;
    let second = AttemptToolAccess::wait_for_attempt(next).await;
    environments.extend(self::environments(next));
    stage.complete_task(&second).await;
    let events = client.watch(&task.task_id).await.collect_to_end().await;
    let spans = stage.collector.wait_for_span("baton.task").await;
    ScenarioRemains {
        task: client.get(&task.task_id).await,
        spans: spans.into_iter().map(|(_, span)| span).collect(),
        events: events.iter().map(prost::Message::encode_to_vec).collect(),
        tool_access: vec![first, second],
        environments,
        fixture: stage,
    }
}

fn environments(attempt_id: &str) -> Vec<Vec<u8>> {
    let processes = attempt_processes(attempt_id).into_iter();
    let read = processes.map(|process| std::fs::read(format!("/proc/{}/environ", process.pid)));
    let read: Vec<Vec<u8>> = read.flatten().collect();
    assert!(read.len() > 1, "a shim and what it started");
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn what_blocks_on_one_daemon_is_resumed_a_day_later_and_finished_by_another() {
    let told = run_scenario().await;
    let (task, admin) = (&told.task, told.fixture.relay.admin());
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
    let progress = task.progress.clone().expect("it outlives attempts");
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
    assert_one_trace(&told.spans);
}

/// Told by two runs of the relay, and still one trace with one root.
fn assert_one_trace(spans: &[Span]) {
    let traces: BTreeSet<&Vec<u8>> = spans.iter().map(|span| &span.trace_id).collect();
    assert_eq!(traces.len(), 1, "one trace");
    let named = |name: &str| {
        spans
            .iter()
            .filter(|span| span.name == name)
            .collect::<Vec<_>>()
    };
    let (roots, attempts) = (named("baton.task"), named("baton.attempt"));
    assert_eq!((roots.len(), attempts.len()), (1, 2), "{spans:#?}");
    for attempt in &attempts {
        assert_eq!(attempt.parent_span_id, roots[0].span_id);
    }
    let daemons = attempts
        .iter()
        .map(|span| attribute_text(&span.attributes, "baton.daemon.name"));
    assert_eq!(daemons.collect::<BTreeSet<_>>().len(), 2);
}

/// A secret in every spelling in which it could leak.
fn secret_spellings(secret: &[u8]) -> Vec<Vec<u8>> {
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    vec![
        secret.to_vec(),
        hex.to_uppercase().into(),
        hex.into(),
        STANDARD_NO_PAD.encode(secret).into(),
        URL_SAFE_NO_PAD.encode(secret).into(),
        // As a list of numbers, which is how bytes are printed by default.
        format!("{secret:?}").trim_matches(['[', ']']).into(),
    ]
}

/// The lease tokens that went over the wires.
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

/// Everything that the story left behind, by where it is.
fn remaining_bytes(told: &ScenarioRemains, export: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = files_below(told.fixture.relay.data());
    found.extend(files_below(told.fixture.dir.path()));
    assert!(
        found
            .iter()
            .any(|(path, _)| path == &*export.to_string_lossy())
    );
    let log = found.iter().find(|(path, _)| path.ends_with("/log"));
    let log = String::from_utf8_lossy(&log.expect("there is a log").1).into_owned();
    assert!(log.contains("TRACE"), "the log has the finest level");
    for said in ["baton_relay", "baton_daemon"] {
        assert!(log.contains(said), "the log has {said}");
    }
    let spans = told.spans.iter().map(prost::Message::encode_to_vec);
    found.extend(spans.map(|span| ("a span".to_owned(), span)));
    let events = told.events.iter().cloned();
    found.extend(events.map(|event| ("an event".to_owned(), event)));
    found
}

fn files_below(root: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut open) = (Vec::new(), vec![PathBuf::from(root)]);
    while let Some(path) = open.pop() {
        if let Ok(entries) = std::fs::read_dir(&path) {
            open.extend(entries.flatten().map(|entry| entry.path()));
        } else if path.is_file()
            && let Ok(bytes) = std::fs::read(&path)
        {
            found.push((path.to_string_lossy().into_owned(), bytes));
        }
    }
    found
}

/// Finds any of several secrets, however spelled, in one pass: a log of the finest level is long.
struct SecretSearch {
    spellings: Vec<Vec<u8>>,
    /// Whether one of them begins with these two bytes.
    first_two_bytes: Vec<bool>,
}

impl SecretSearch {
    fn for_secrets(secrets: &[Vec<u8>]) -> Self {
        assert!(!secrets.is_empty(), "there is something to look for");
        let spellings: Vec<Vec<u8>> = secrets
            .iter()
            .flat_map(|one| secret_spellings(one))
            .collect();
        let mut first_two_bytes = vec![false; 1 << 16];
        for one in &spellings {
            first_two_bytes[usize::from(u16::from_be_bytes([one[0], one[1]]))] = true;
        }
        Self {
            spellings,
            first_two_bytes,
        }
    }

    fn is_found_in(&self, bytes: &[u8]) -> bool {
        let mut begin = bytes.windows(2).enumerate();
        begin.any(|(at, two)| {
            let may = self.first_two_bytes[usize::from(u16::from_be_bytes([two[0], two[1]]))];
            may && self
                .spellings
                .iter()
                .any(|one| bytes[at..].starts_with(one))
        })
    }

    fn places_with_secret<'a>(&self, places: &'a [(String, Vec<u8>)]) -> BTreeSet<&'a str> {
        let found = places.iter().filter(|(_, bytes)| self.is_found_in(bytes));
        found.map(|(place, _)| place.as_str()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_token_capability_or_credential_is_left_anywhere_by_a_whole_story() {
    let mut told = run_scenario().await;
    let leases = told.run_with_lease_agents().await;
    let stage = &told.fixture;
    let export = stage.dir.path().join("export");
    let words = ["export", "--out", &*export.to_string_lossy()];
    let made = crate::BATON.run(stage.relay.data(), &words).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut tokens = lease_tokens(&stage.machines);
    assert_eq!(tokens.len(), 2, "one for each attempt");
    tokens.extend(leases.iter().map(GrantedLease::token_bytes));
    let places = remaining_bytes(&told, &export);
    let nowhere = BTreeSet::new();
    let found = SecretSearch::for_secrets(&tokens).places_with_secret(&places);
    assert_eq!(found, nowhere, "a lease token");
    let capabilities = told.tool_access.iter().map(|handed| {
        let parts = handed.capability.split_once('.');
        parts.expect("an attempt and a secret").1.into()
    });
    let capabilities: Vec<Vec<u8>> = capabilities.collect();
    let found = SecretSearch::for_secrets(&capabilities).places_with_secret(&places);
    assert_eq!(found, nowhere, "a capability");
    let credentials = stage.machines.iter();
    let credentials = credentials.map(|machine| machine.credential.clone().into_bytes());
    let credentials: Vec<Vec<u8>> = credentials.collect();
    let mut found = SecretSearch::for_secrets(&credentials).places_with_secret(&places);
    // Its own file is where a daemon has it from.
    found.retain(|place| !place.ends_with("/credential"));
    assert_eq!(found, nowhere, "a credential");
    let given = told.environments.iter().cloned();
    let given: Vec<_> = given
        .map(|one| ("an environment".to_owned(), one))
        .collect();
    let found =
        SecretSearch::for_secrets(&[tokens, credentials].concat()).places_with_secret(&given);
    assert_eq!(found, nowhere);
    // What is there is found: the task by its id, and the capability where it belongs.
    let id = told.task.task_id.clone();
    let raw = id.parse::<uuid::Uuid>().expect("an id").into_bytes();
    assert!(
        !SecretSearch::for_secrets(&[raw.to_vec()])
            .places_with_secret(&places)
            .is_empty()
    );
    let named = SecretSearch::for_secrets(&[id.into_bytes()]).places_with_secret(&places);
    for place in ["a span", "an event", "/log"] {
        assert!(named.iter().any(|named| named.ends_with(place)), "{place}");
    }
    assert!(
        !SecretSearch::for_secrets(&capabilities)
            .places_with_secret(&given)
            .is_empty()
    );
}
