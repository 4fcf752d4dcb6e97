//! Every agent kind against every deadline of a profile: the stand-in stalls where the deadline
//! applies, and the task ends with that deadline's code. The result table is compared with the
//! reviewed file `deadlines.txt`.
//!
//! Each case sets one deadline only, so a busy machine delays it but cannot trigger another one.
//! All cases run at the same time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_proto::v1::{
    CommandSpec, DeadlineProfile, LifecyclePhase, TaskEvent, TaskEventKind, TaskSpec, TaskState,
};
use baton_tests::{
    ASKING_AGENTS, EmbeddedDaemon, EmbeddedRelay, TestClient, boottime, command_task, join_all,
    lock_with_file_lease, poll_until, recorded_ms, scripted_task, scripted_task_with_prompt,
    standin_agents,
};
use tempfile::TempDir;

use crate::STANDIN;

const DEADLINE_MS: u64 = 1_000;
/// More than a pipe buffers, so the write blocks while the agent does not read.
const LONG_PROMPT_BYTES: usize = 512 * 1024;

const AGENT_KINDS: [&str; 5] = ["command", "claude", "codex", "codex-exec", "acp"];

const DEADLINES: [&str; 8] = [
    "process_start",
    "prompt_write",
    "first_event",
    "first_visible_event",
    "stream_idle",
    "tool_idle",
    "user_input",
    "cleanup_term",
];

/// A relay, and a daemon with every agent kind twice: normal, and as `-stuck` with a program
/// that cannot be executed because another process has a file lease on it.
struct DeadlinesFixture {
    client: TestClient,
    _relay: EmbeddedRelay,
    _daemon: EmbeddedDaemon,
    blocked_program: BlockedProgram,
}

impl DeadlinesFixture {
    async fn start() -> Self {
        let mut blocked = BlockedProgram::create();
        let relay = EmbeddedRelay::start().await;
        let token = relay.daemon_token().await;
        let stuck_agents = standin_agents(&blocked.program, &[]);
        let stuck_agents = stuck_agents
            .into_iter()
            .map(|(name, agent)| (format!("{name}-stuck"), agent));
        let daemon = EmbeddedDaemon::start_with(relay.url(), &token, |config| {
            config.slots = 64;
            config
                .agents
                .extend(standin_agents(Path::new(STANDIN), &[]));
            config.agents.extend(stuck_agents);
        })
        .await;
        // By now the daemon has run every program for its version.
        blocked.lock_program().await;
        Self {
            client: relay.admin().clone(),
            _relay: relay,
            _daemon: daemon,
            blocked_program: blocked,
        }
    }
}

/// A copy of the stand-in with a file lease on it: executing it blocks until the lease is
/// released.
struct BlockedProgram {
    program: PathBuf,
    lease: Option<File>,
    _dir: TempDir,
}

impl BlockedProgram {
    fn create() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("standin");
        std::fs::copy(STANDIN, &program).expect("a program can be copied");
        Self {
            program,
            lease: None,
            _dir: dir,
        }
    }

    /// Retries, because processes forked by other tests may have the copy open for a moment.
    async fn lock_program(&mut self) {
        let lease = poll_until("a lease on the program", || {
            lock_with_file_lease(&self.program)
        })
        .await;
        self.lease = Some(lease);
    }

    fn unlock_program(&mut self) {
        self.lease = None;
    }
}

/// One cell of the table: the task, and whether it is canceled once it has printed output.
struct DeadlineCase {
    kind: &'static str,
    deadline: &'static str,
    spec: TaskSpec,
    is_canceled: bool,
}

/// The case, or the reason why this agent kind cannot reach the deadline.
fn deadline_case(
    kind: &'static str,
    deadline: &'static str,
    blocked: &Path,
) -> Result<DeadlineCase, &'static str> {
    let script = match (deadline, kind) {
        ("tool_idle", "command") => return Err("not reachable: a command has no tools"),
        ("user_input", "command") => return Err("not reachable: a command cannot ask"),
        ("user_input", "codex-exec") => return Err("not reachable: exec has no way to ask"),
        ("process_start", _) => "say never",
        // The prompt follows the handshake, which belongs to the start.
        ("prompt_write", "codex" | "acp") => "aloof",
        ("prompt_write", _) => "deaf",
        ("first_event", _) => "mute",
        ("first_visible_event", _) => "hint; stall",
        ("stream_idle", _) => "say hm; stall",
        ("tool_idle", _) => "begin Bash make; stall",
        ("user_input", _) => "ask Bash ls",
        // The turn may end on request, but the process stays until it is killed.
        _ => "ignore-term; hang; say hm; stall",
    };
    let spec = if kind == "command" {
        command_agent_task(deadline, blocked)
    } else {
        coding_agent_task(kind, deadline, script)
    };
    let spec = TaskSpec {
        profile: Some(profile_with_deadline(deadline)),
        ..spec
    };
    Ok(DeadlineCase {
        kind,
        deadline,
        spec,
        is_canceled: deadline == "cleanup_term",
    })
}

fn coding_agent_task(kind: &str, deadline: &str, script: &str) -> TaskSpec {
    let long = "x".repeat(LONG_PROMPT_BYTES);
    match (deadline, kind) {
        ("process_start", _) => scripted_task(&format!("{kind}-stuck"), script),
        ("prompt_write", _) => scripted_task_with_prompt(kind, script, &long),
        // codex exec prints its start event before it reads the prompt.
        ("first_event", "codex-exec") => scripted_task_with_prompt(kind, script, "x"),
        _ => scripted_task(kind, script),
    }
}

fn command_agent_task(deadline: &str, blocked: &Path) -> TaskSpec {
    let program = match deadline {
        "process_start" => blocked.to_str().expect("a plain path"),
        _ => STANDIN,
    };
    let arguments: &[&str] = match deadline {
        "stream_idle" => &["print", "1", "pause"],
        "cleanup_term" => &["ignore-term", "print", "1", "pause"],
        _ => &["pause"],
    };
    let argv = std::iter::once(program).chain(arguments.iter().copied());
    let prompt = match deadline {
        "prompt_write" => "x".repeat(LONG_PROMPT_BYTES),
        _ => "x".to_owned(),
    };
    TaskSpec {
        command: Some(CommandSpec {
            argv: argv.map(str::to_owned).collect(),
        }),
        prompt,
        ..scripted_task("command", "")
    }
}

fn profile_with_deadline(deadline: &str) -> DeadlineProfile {
    let limit = |name: &str| (name == deadline).then_some(DEADLINE_MS);
    DeadlineProfile {
        process_start_ms: limit("process_start"),
        prompt_write_ms: limit("prompt_write"),
        first_event_ms: limit("first_event"),
        first_visible_event_ms: limit("first_visible_event"),
        stream_idle_ms: limit("stream_idle"),
        tool_idle_ms: limit("tool_idle"),
        user_input_ms: limit("user_input"),
        cleanup_term_ms: limit("cleanup_term"),
    }
}

impl DeadlineCase {
    /// Runs the case and returns the failure code.
    async fn run(self, client: &TestClient) -> String {
        let task = client.submit(self.spec).await;
        let mut watch = client.watch(&task.task_id).await;
        let mut asked_at = 0;
        if self.is_canceled {
            watch
                .wait_for_event("the first output", |event| {
                    event.phase() == LifecyclePhase::FirstVisibleEventSeen
                })
                .await;
            client.cancel(&task.task_id).await;
            let asked = watch.wait_for_kind(TaskEventKind::CancelRequested).await;
            asked_at = recorded_ms(&asked);
        }
        let end = watch.wait_for_kind(TaskEventKind::Ended).await;
        let done = client.get(&task.task_id).await;
        let attempt = &done.attempts[0];
        if !self.is_canceled {
            let what = (self.kind, self.deadline);
            assert_eq!(done.state(), TaskState::TimedOut, "{what:?}: {done:?}");
            return attempt.failure_code.clone();
        }
        let signal = attempt.signal.unwrap_or(0);
        assert!(recorded_ms(&end) >= asked_at + DEADLINE_MS, "{done:?}");
        format!("{}, signal {signal} after it", attempt.failure_code)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_agent_kind_reaches_every_applicable_deadline() {
    let mut fixture = DeadlinesFixture::start().await;
    let rows = DEADLINES.into_iter().map(|deadline| {
        let (client, blocked) = (&fixture.client, fixture.blocked_program.program.as_path());
        async move {
            let cells = AGENT_KINDS.into_iter().map(|kind| async move {
                match deadline_case(kind, deadline, blocked) {
                    Ok(cell) => cell.run(client).await,
                    Err(reason) => reason.to_owned(),
                }
            });
            (deadline, join_all(cells).await)
        }
    });
    let rows = join_all(rows).await;
    fixture.blocked_program.unlock_program();
    let mut table = String::new();
    for (deadline, cells) in &rows {
        for (kind, cell) in AGENT_KINDS.iter().zip(cells) {
            table += &format!("{deadline:<20} {kind:<11} {cell}\n");
        }
    }
    println!("{table}");
    for kind in ASKING_AGENTS {
        let reached = |(_, cells): &&(&str, Vec<String>)| {
            let at = AGENT_KINDS.iter().position(|known| *known == kind);
            at.is_some_and(|at| !cells[at].starts_with("not reachable"))
        };
        assert_eq!(
            rows.iter().filter(reached).count(),
            DEADLINES.len(),
            "{kind}"
        );
    }
    assert_eq!(table, include_str!("deadlines.txt"), "see deadlines.txt");
}

/// A handshake before the prompt belongs to the start and does not use the prompt's deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handshake_counts_as_start_and_a_missing_one_times_out() {
    let fixture = DeadlinesFixture::start().await;
    let profile = |process_start_ms| DeadlineProfile {
        process_start_ms: Some(process_start_ms),
        prompt_write_ms: Some(DEADLINE_MS),
        ..DeadlineProfile::default()
    };
    for kind in ["codex", "acp"] {
        let slow = TaskSpec {
            profile: Some(profile(60 * DEADLINE_MS)),
            ..scripted_task_with_prompt(kind, &format!("late {}; say done", 2 * DEADLINE_MS), "x")
        };
        let never = TaskSpec {
            profile: Some(profile(DEADLINE_MS)),
            ..scripted_task_with_prompt(kind, "mute", "x")
        };
        let slow = fixture.client.submit(slow).await;
        let never = fixture.client.submit(never).await;
        fixture
            .client
            .watch(&slow.task_id)
            .await
            .collect_to_end()
            .await;
        let done = fixture.client.get(&slow.task_id).await;
        assert_eq!(done.state(), TaskState::Completed, "{kind}: {done:?}");
        let events = fixture
            .client
            .watch(&never.task_id)
            .await
            .collect_to_end()
            .await;
        let done = fixture.client.get(&never.task_id).await;
        let attempt = &done.attempts[0];
        assert_eq!(attempt.failure_code, "process_start_timeout", "{kind}");
        let ended = (attempt.exit_code, attempt.signal);
        assert_ne!(
            ended,
            (None, None),
            "{kind}: the process ran and was ended: {attempt:?}"
        );
        let started = |event: &TaskEvent| event.phase() == LifecyclePhase::AgentStarted;
        assert!(!events.iter().any(started), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_executed_delays_no_other_work() {
    let relay = EmbeddedRelay::start().await;
    let token = relay.daemon_token().await;
    let mut program = BlockedProgram::create();
    program.lock_program().await;
    let agents = standin_agents(&program.program, &[]);
    let began = boottime();
    // The daemon runs the program for its version before Hello, and that run blocks on the file
    // lease.
    let _daemon = EmbeddedDaemon::start_with(relay.url(), &token, |config| {
        config.agents.extend(agents);
    })
    .await;
    let client = relay.admin();
    let task = client.submit(command_task("true", &[], "beside")).await;
    client
        .wait_for_state(&task.task_id, TaskState::Completed)
        .await;
    let took = boottime().saturating_sub(began);
    assert!(took < Duration::from_secs(30), "{took:?}");
    program.unlock_program();
}
