//! The twelve timers: each ends with the code or reason of PROTOCOL.md's table, in its time. A stalling child drives those
//! that a command can reach, a scripted daemon the others.

use baton_proto::timestamp_to_ms;
use baton_proto::v1::attempt_command::Body;
use baton_proto::v1::{
    AttemptState, AttentionCause, DeadlineProfile, LifecyclePhase, RetryPolicy, Role, TaskEvent,
    TaskEventKind, TaskSpec, TaskState, Termination, TimerKind,
};
use baton_tests::{Client, Relay, ScriptedDaemon, command, for_agent, recorded_ms};
use tokio::task::JoinSet;

use crate::{STANDIN, assert_not_after, assert_not_before, assert_within};

/// The relay's settings, as documented.
const SLACK: u64 = 2_000;
const ACCEPT: u64 = 10_000;
const LEASE_TTL: u64 = 5_000;
const LEASE_GRACE: u64 = 5_000;
/// What most cases set their timer to.
const LIMIT: u64 = 600;

pub(crate) async fn spawn(relay: &Relay, cases: &mut JoinSet<()>) {
    let client = relay.admin().clone();
    cases.spawn(queue(client.clone()));
    cases.spawn(accept(client.clone(), relay.scripted(&["accept"]).await));
    cases.spawn(process_start(
        client.clone(),
        relay.scripted(&["process_start"]).await,
    ));
    cases.spawn(tool_idle(
        client.clone(),
        relay.scripted(&["tool_idle"]).await,
    ));
    cases.spawn(user_input(
        client.clone(),
        relay.scripted(&["user_input"]).await,
    ));
    cases.spawn(cleanup_term(
        client.clone(),
        relay.scripted(&["cleanup_term"]).await,
    ));
    cases.spawn(lease(client.clone(), relay.scripted(&["lease"]).await));
    for case in stalling_children() {
        cases.spawn(case.run(client.clone()));
    }
}

/// No retry: the first end is the end.
fn once(spec: TaskSpec) -> TaskSpec {
    TaskSpec {
        retry: Some(RetryPolicy {
            max_attempts: Some(1),
            ..RetryPolicy::default()
        }),
        ..spec
    }
}

fn profiled(spec: TaskSpec, profile: DeadlineProfile) -> TaskSpec {
    once(TaskSpec {
        profile: Some(profile),
        ..spec
    })
}

fn is_phase(event: &TaskEvent, phase: LifecyclePhase) -> bool {
    event.kind() == TaskEventKind::Phase && event.phase() == phase
}

/// How long a timer took to end its attempt.
struct Took {
    /// From the relay's record of what armed it: what the relay promises.
    recorded: u64,
    /// From the daemon's own view, which comes before: a daemon counts from there.
    observed: u64,
}

/// Waits for the end and says how long after `armed` it came.
async fn ended_after(
    client: &Client,
    task_id: &str,
    armed: impl Fn(&TaskEvent) -> bool,
    state: AttemptState,
    code: &str,
) -> Took {
    let mut watch = client.watch(task_id).await;
    let from = watch
        .until(&format!("what arms the timer of {code}"), armed)
        .await;
    let end = watch.until_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (end.state(), end.failure_code.as_str()),
        (state, code),
        "{:#?}",
        watch.events
    );
    let observed = from.observed_at.as_ref().map_or(0, timestamp_to_ms);
    Took {
        recorded: recorded_ms(&end) - recorded_ms(&from),
        observed: recorded_ms(&end).saturating_sub(observed),
    }
}

async fn queue(client: Client) {
    let task = client
        .submit(TaskSpec {
            queue_ms: Some(LIMIT),
            ..for_agent("nobody has it")
        })
        .await;
    let mut watch = client.watch(&task.task_id).await;
    let queued = watch.until_kind(TaskEventKind::Queued).await;
    let parked = watch.until_state(TaskState::NeedsAttention).await;
    let cause = client
        .get(&task.task_id)
        .await
        .attention
        .expect("it says why")
        .cause();
    assert_eq!(cause, AttentionCause::Starved);
    assert_within(
        "queue",
        recorded_ms(&parked) - recorded_ms(&queued),
        LIMIT,
        SLACK,
    );
}

async fn accept(client: Client, mut daemon: ScriptedDaemon) {
    let task = client.submit(once(for_agent("accept"))).await;
    daemon.offered().await;
    let offered = |event: &TaskEvent| event.kind() == TaskEventKind::Offered;
    let took = ended_after(
        &client,
        &task.task_id,
        offered,
        AttemptState::Lost,
        "not_accepted",
    )
    .await;
    assert_within("accept", took.recorded, ACCEPT, SLACK);
}

/// Answers the relay's Cancel as a daemon does whose process is gone at once.
async fn obey(
    daemon: &mut ScriptedDaemon,
    mut attempt: baton_tests::ScriptedAttempt,
    timer: TimerKind,
) {
    let stated = daemon
        .expect_command("Cancel{deadline}", &attempt, |body| match body {
            Body::Cancel(cancel) => Some(cancel.timer()),
            _ => None,
        })
        .await;
    assert_eq!(stated, timer);
    attempt.canceled().await;
}

async fn process_start(client: Client, mut daemon: ScriptedDaemon) {
    let profile = DeadlineProfile {
        process_start_ms: Some(LIMIT),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(profiled(for_agent("process_start"), profile))
        .await;
    let mut attempt = daemon.offered().await;
    attempt.accept().await;
    daemon.confirmed(&attempt).await;
    attempt.started().await;
    obey(&mut daemon, attempt, TimerKind::ProcessStart).await;
    let armed = |event: &TaskEvent| is_phase(event, LifecyclePhase::Started);
    let code = "process_start_timeout";
    let took = ended_after(&client, &task.task_id, armed, AttemptState::TimedOut, code).await;
    assert_within("process_start", took.recorded, LIMIT, SLACK);
}

async fn tool_idle(client: Client, mut daemon: ScriptedDaemon) {
    let profile = DeadlineProfile {
        tool_idle_ms: Some(LIMIT),
        // Stops while the tool runs, or it would come first.
        stream_idle_ms: Some(LIMIT / 2),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(profiled(for_agent("tool_idle"), profile))
        .await;
    let mut attempt = daemon.running().await;
    attempt.tool(LifecyclePhase::ToolStarted, "call-1").await;
    obey(&mut daemon, attempt, TimerKind::ToolIdle).await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::ToolStarted;
    let code = "tool_idle_timeout";
    let took = ended_after(&client, &task.task_id, armed, AttemptState::TimedOut, code).await;
    assert_within("tool_idle", took.recorded, LIMIT, SLACK);
}

async fn user_input(client: Client, mut daemon: ScriptedDaemon) {
    let profile = DeadlineProfile {
        user_input_ms: Some(LIMIT),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(profiled(for_agent("user_input"), profile))
        .await;
    let mut attempt = daemon.running().await;
    attempt.ask_permission().await;
    obey(&mut daemon, attempt, TimerKind::UserInput).await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::InputAsked;
    let code = "user_input_timeout";
    let took = ended_after(&client, &task.task_id, armed, AttemptState::TimedOut, code).await;
    assert_within("user_input", took.recorded, LIMIT, SLACK);
}

/// A daemon that does not answer Cancel: the end is committed all the same, and says that nobody saw the process go.
async fn cleanup_term(admin: Client, mut daemon: ScriptedDaemon) {
    let client = admin.of_tenant("", Role::Submitter).await;
    let profile = DeadlineProfile {
        cleanup_term_ms: Some(LIMIT),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(profiled(for_agent("cleanup_term"), profile))
        .await;
    let attempt = daemon.running().await;
    daemon.acked(&attempt).await;
    client.cancel(&task.task_id).await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::CancelRequested;
    let code = "canceled_by_user";
    let took = ended_after(&client, &task.task_id, armed, AttemptState::Canceled, code).await;
    let attempt = client.get(&task.task_id).await.attempts.remove(0);
    assert_eq!(attempt.termination(), Termination::Unconfirmed);
    assert_within("cleanup_term", took.recorded, LIMIT, SLACK);
}

async fn lease(client: Client, mut daemon: ScriptedDaemon) {
    daemon.fall_silent();
    let task = client
        .submit(TaskSpec {
            lease_ttl_ms: Some(LEASE_TTL),
            ..once(for_agent("lease"))
        })
        .await;
    let mut attempt = daemon.offered().await;
    attempt.accept().await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::Confirmed;
    let took = ended_after(
        &client,
        &task.task_id,
        armed,
        AttemptState::Lost,
        "lease_expired",
    )
    .await;
    assert_within("lease", took.recorded, LEASE_TTL, LEASE_GRACE);
}

/// A child that stalls, and what it runs into.
struct Stall {
    timer: &'static str,
    arguments: &'static [&'static str],
    prompt_bytes: usize,
    profile: DeadlineProfile,
    total_ms: Option<u64>,
    armed: fn(&TaskEvent) -> bool,
    code: &'static str,
}

fn stalling_children() -> Vec<Stall> {
    let profile = DeadlineProfile::default();
    let prompted = |event: &TaskEvent| is_phase(event, LifecyclePhase::PromptWritten);
    vec![
        Stall {
            timer: "prompt_write",
            arguments: &["pause"],
            // More than a pipe holds.
            prompt_bytes: 512 * 1024,
            profile: DeadlineProfile {
                prompt_write_ms: Some(LIMIT),
                ..profile
            },
            total_ms: None,
            armed: |event| is_phase(event, LifecyclePhase::AgentStarted),
            code: "prompt_write_timeout",
        },
        Stall {
            timer: "first_event",
            arguments: &["pause"],
            prompt_bytes: 1,
            profile: DeadlineProfile {
                first_event_ms: Some(LIMIT),
                ..profile
            },
            total_ms: None,
            armed: prompted,
            code: "no_first_event_timeout",
        },
        Stall {
            timer: "first_visible_event",
            arguments: &["pause"],
            prompt_bytes: 1,
            profile: DeadlineProfile {
                first_visible_event_ms: Some(LIMIT),
                ..profile
            },
            total_ms: None,
            armed: prompted,
            code: "no_visible_event_timeout",
        },
        Stall {
            timer: "stream_idle",
            arguments: &["print", "1", "pause"],
            prompt_bytes: 1,
            profile: DeadlineProfile {
                stream_idle_ms: Some(LIMIT),
                ..profile
            },
            total_ms: None,
            armed: |event| {
                is_phase(event, LifecyclePhase::FirstEventSeen)
                    || is_phase(event, LifecyclePhase::FirstVisibleEventSeen)
            },
            code: "stream_idle_timeout",
        },
        Stall {
            timer: "total",
            arguments: &["print", "1", "pause"],
            prompt_bytes: 1,
            profile,
            total_ms: Some(LIMIT),
            armed: |event| event.kind() == TaskEventKind::Confirmed,
            code: "task_deadline_exceeded",
        },
    ]
}

impl Stall {
    async fn run(self, client: Client) {
        let spec = TaskSpec {
            prompt: "x".repeat(self.prompt_bytes),
            total_ms: self.total_ms,
            ..command(STANDIN, self.arguments, self.timer)
        };
        let task = client.submit(profiled(spec, self.profile)).await;
        let state = AttemptState::TimedOut;
        let took = ended_after(&client, &task.task_id, self.armed, state, self.code).await;
        assert_not_before(self.timer, took.observed, LIMIT);
        assert_not_after(self.timer, took.recorded, LIMIT, SLACK);
        let attempt = client.get(&task.task_id).await.attempts.remove(0);
        assert_eq!(
            attempt.termination(),
            Termination::Confirmed,
            "{}",
            self.timer
        );
    }
}
