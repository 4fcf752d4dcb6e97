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
    Agent, BentClock, Collector, DaemonProcess, Handed, Lease, RelayProcess, Tap, Taped, Tools,
    attribute, command, for_scope, of_attempt, poll_until, within,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tempfile::TempDir;

const SCOPE: &str = "reviewers";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A machine: its daemon, by a wire that is listened to.
struct Machine {
    name: &'static str,
    credential: String,
    tap: Tap,
    daemon: DaemonProcess,
}

struct Stage {
    baton: baton_tests::Baton,
    clock: BentClock,
    relay: RelayProcess,
    collector: Collector,
    machines: Vec<Machine>,
    dir: TempDir,
}

/// What the story left, for those who look.
struct Told {
    stage: Stage,
    task: Task,
    spans: Vec<Span>,
    events: Vec<Vec<u8>>,
    handed: Vec<Handed>,
    /// The environments of everything that ran for the task.
    environments: Vec<Vec<u8>>,
}

impl Stage {
    async fn set() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let clock = BentClock::new();
        let log = dir.path().join("log");
        let baton = clock.bend(crate::BATON).logging_to(log);
        let collector = Collector::start().await;
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

    async fn add(&mut self, name: &'static str) {
        let admin = self.relay.admin();
        let (_, credential) = admin.make_token("", Role::Daemon).await;
        let tap = Tap::start(admin.url()).await;
        let daemon = self.daemon(name, &tap, &credential).await;
        self.machines.push(Machine {
            name,
            credential,
            tap,
            daemon,
        });
    }

    async fn daemon(&self, name: &str, tap: &Tap, credential: &str) -> DaemonProcess {
        DaemonProcess::start(self.baton, self.dir.path(), name, &tap.url(), credential).await
    }

    /// Everything ends, a day goes by, and everything is started again.
    async fn next_day(&mut self) {
        for machine in &mut self.machines {
            machine.daemon.terminate().await;
        }
        self.relay.kill().await;
        self.clock.suspend(DAY);
        self.relay.revive().await;
        let mut machines = std::mem::take(&mut self.machines);
        for machine in &mut machines {
            let (tap, credential) = (&machine.tap, &machine.credential);
            machine.daemon = self.daemon(machine.name, tap, credential).await;
        }
        self.machines = machines;
        for machine in &self.machines {
            let admin = self.relay.admin();
            admin.until_daemon(machine.name, DaemonState::Online).await;
        }
    }

    /// Runs until it may end, and has tools.
    fn spec(&self) -> TaskSpec {
        let file = self.dir.path().join("done");
        let script = format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
        TaskSpec {
            goal: "review the change".to_owned(),
            mcp: true,
            ..command("sh", &["-c", &script], "whole-story")
        }
    }

    async fn tools(&self, handed: &Handed) -> Tools {
        Tools::inside(self.baton, self.dir.path(), handed).await
    }

    /// The agent works, and gives up for want of an answer.
    async fn block(&self, handed: &Handed) {
        let tools = self.tools(handed).await;
        let items = json!({"completed_items": ["first"], "cursor": "page 3"});
        tools.call("task_progress", items).await.granted();
        let begun = json!({"summary": "begun"});
        tools.call("task_checkpoint", begun).await.granted();
        let stuck = json!({"reason": "which branch?", "resume_hint": "a name"});
        tools.call("task_block", stuck).await.granted();
    }

    async fn resume(&self, task_id: &str) -> Task {
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
        let resumed = within("an answer to Resume", tasks.resume(request)).await;
        let resumed = resumed.expect("it is parked").into_inner();
        resumed.task.expect("the task after it")
    }

    /// Another agent reads what was left, and finishes.
    async fn finish(&self, handed: &Handed) {
        let tools = self.tools(handed).await;
        let own = tools.call("task_get", json!({})).await.granted();
        let resume = &own["task"]["resume"];
        assert_eq!(
            resume["answers"][0]["answer"],
            json!("the blue one"),
            "{own}"
        );
        assert_eq!(resume["checkpoint"]["summary"], json!("begun"), "{own}");
        let items = json!({"completed_items": ["second"]});
        tools.call("task_progress", items).await.granted();
        let done = json!({"outcome": "completed", "summary": "reviewed", "result": "fine"});
        tools.call("task_complete", done).await.granted();
        std::fs::write(self.dir.path().join("done"), "").expect("a file can be written");
    }

    /// No daemon but the others may have the task.
    async fn drain(&self, name: &str) {
        let request = DrainDaemonRequest {
            daemon: name.to_owned(),
            reason: "it is needed for something else".to_owned(),
            deadline_ms: None,
        };
        let mut fleet = self.relay.admin().fleet();
        let drained = within("an answer to DrainDaemon", fleet.drain_daemon(request)).await;
        drained.expect("the daemon is known");
    }
}

impl Told {
    /// The same once more by agents that hold their leases themselves.
    async fn by_agents(&mut self) -> Vec<Lease> {
        let admin = self.stage.relay.admin().clone();
        let ada = Agent::new(&admin, "ada", SCOPE).await;
        let bob = Agent::new(&admin, "bob", SCOPE).await;
        let first = ada.start(for_scope(SCOPE), "k").await.expect("it starts");
        ada.renew(&first).await.expect("it holds it");
        ada.checkpoint(&first, "half way").await.expect("it may");
        ada.block(&first, "which way?").await.expect("it may");
        let second = bob.pick_up(&first.task_id, "").await.expect("it is free");
        bob.complete(&second, "done").await.expect("it holds it");
        let events = admin.watch(&first.task_id).await.to_end().await;
        let events = events.iter().map(prost::Message::encode_to_vec);
        self.events.extend(events);
        let spans = self.stage.collector.until("baton.task").await;
        self.spans.extend(spans.into_iter().map(|(_, span)| span));
        vec![first, second]
    }
}

async fn tell() -> Told {
    let mut stage = Stage::set().await;
    stage.add("a").await;
    let client = stage.relay.admin().clone();
    let task = client.submit(stage.spec()).await;
    let first = Handed::to(&task.attempts[0].attempt_id).await;
    let mut environments = environments(&task.attempts[0].attempt_id);
    stage.add("b").await;
    stage.block(&first).await;
    client
        .until_state(&task.task_id, TaskState::NeedsAttention)
        .await;
    poll_until("the first machine to be done with it", || {
        stage.machines[0].daemon.is_settled().then_some(())
    })
    .await;
    stage.next_day().await;
    stage.drain("a").await;
    let resumed = stage.resume(&task.task_id).await;
    let next = &resumed.attempts[1].attempt_id;
    let second = Handed::to(next).await;
    environments.extend(self::environments(next));
    stage.finish(&second).await;
    let events = client.watch(&task.task_id).await.to_end().await;
    let spans = stage.collector.until("baton.task").await;
    Told {
        task: client.get(&task.task_id).await,
        spans: spans.into_iter().map(|(_, span)| span).collect(),
        events: events.iter().map(prost::Message::encode_to_vec).collect(),
        handed: vec![first, second],
        environments,
        stage,
    }
}

fn environments(attempt_id: &str) -> Vec<Vec<u8>> {
    let processes = of_attempt(attempt_id).into_iter();
    let read = processes.map(|process| std::fs::read(format!("/proc/{}/environ", process.pid)));
    let read: Vec<Vec<u8>> = read.flatten().collect();
    assert!(read.len() > 1, "a shim and what it started");
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn what_blocks_on_one_daemon_is_resumed_a_day_later_and_finished_by_another() {
    let told = tell().await;
    let (task, admin) = (&told.task, told.stage.relay.admin());
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
    one_trace(&told.spans);
}

/// Told by two runs of the relay, and still one trace with one root.
fn one_trace(spans: &[Span]) {
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
        .map(|span| attribute(&span.attributes, "baton.daemon.name"));
    assert_eq!(daemons.collect::<BTreeSet<_>>().len(), 2);
}

/// A secret in every spelling in which it could leak.
fn spellings(secret: &[u8]) -> Vec<Vec<u8>> {
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
fn lease_tokens(machines: &[Machine]) -> Vec<Vec<u8>> {
    let frames = machines.iter().flat_map(|machine| machine.tap.frames());
    let dispatched = frames.filter_map(|frame| {
        let Taped::Down(frame) = frame else {
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
fn remains(told: &Told, export: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = files(told.stage.relay.data());
    found.extend(files(told.stage.dir.path()));
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

fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
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
struct Search {
    spelled: Vec<Vec<u8>>,
    /// Whether one of them begins with these two bytes.
    begins: Vec<bool>,
}

impl Search {
    fn of(secrets: &[Vec<u8>]) -> Self {
        assert!(!secrets.is_empty(), "there is something to look for");
        let spelled: Vec<Vec<u8>> = secrets.iter().flat_map(|one| spellings(one)).collect();
        let mut begins = vec![false; 1 << 16];
        for one in &spelled {
            begins[usize::from(u16::from_be_bytes([one[0], one[1]]))] = true;
        }
        Self { spelled, begins }
    }

    fn finds_in(&self, bytes: &[u8]) -> bool {
        let mut begin = bytes.windows(2).enumerate();
        begin.any(|(at, two)| {
            let may = self.begins[usize::from(u16::from_be_bytes([two[0], two[1]]))];
            may && self.spelled.iter().any(|one| bytes[at..].starts_with(one))
        })
    }

    fn places<'a>(&self, places: &'a [(String, Vec<u8>)]) -> BTreeSet<&'a str> {
        let found = places.iter().filter(|(_, bytes)| self.finds_in(bytes));
        found.map(|(place, _)| place.as_str()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_token_capability_or_credential_is_left_anywhere_by_a_whole_story() {
    let mut told = tell().await;
    let leases = told.by_agents().await;
    let stage = &told.stage;
    let export = stage.dir.path().join("export");
    let words = ["export", "--out", &*export.to_string_lossy()];
    let made = crate::BATON.run(stage.relay.data(), &words).await;
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut tokens = lease_tokens(&stage.machines);
    assert_eq!(tokens.len(), 2, "one for each attempt");
    tokens.extend(leases.iter().map(Lease::secret));
    let places = remains(&told, &export);
    let nowhere = BTreeSet::new();
    let found = Search::of(&tokens).places(&places);
    assert_eq!(found, nowhere, "a lease token");
    let capabilities = told.handed.iter().map(|handed| {
        let parts = handed.capability.split_once('.');
        parts.expect("an attempt and a secret").1.into()
    });
    let capabilities: Vec<Vec<u8>> = capabilities.collect();
    let found = Search::of(&capabilities).places(&places);
    assert_eq!(found, nowhere, "a capability");
    let credentials = stage.machines.iter();
    let credentials = credentials.map(|machine| machine.credential.clone().into_bytes());
    let credentials: Vec<Vec<u8>> = credentials.collect();
    let mut found = Search::of(&credentials).places(&places);
    // Its own file is where a daemon has it from.
    found.retain(|place| !place.ends_with("/credential"));
    assert_eq!(found, nowhere, "a credential");
    let given = told.environments.iter().cloned();
    let given: Vec<_> = given
        .map(|one| ("an environment".to_owned(), one))
        .collect();
    let found = Search::of(&[tokens, credentials].concat()).places(&given);
    assert_eq!(found, nowhere);
    // What is there is found: the task by its id, and the capability where it belongs.
    let id = told.task.task_id.clone();
    let raw = id.parse::<uuid::Uuid>().expect("an id").into_bytes();
    assert!(!Search::of(&[raw.to_vec()]).places(&places).is_empty());
    let named = Search::of(&[id.into_bytes()]).places(&places);
    for place in ["a span", "an event", "/log"] {
        assert!(named.iter().any(|named| named.ends_with(place)), "{place}");
    }
    assert!(!Search::of(&capabilities).places(&given).is_empty());
}
