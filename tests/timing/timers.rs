//! The twelve timers: each ends with the code or reason of PROTOCOL.md's table, in time. A
//! stalling child triggers those that a command can reach, a scripted daemon the others.

use baton_proto::timestamp_to_ms;
use baton_proto::v1::attempt_command::Body;
use baton_proto::v1::{
    AttemptState, AttentionCause, DeadlineProfile, LifecyclePhase, RetryPolicy, Role, TaskEvent,
    TaskEventKind, TaskSpec, TaskState, Termination, TimerKind,
};
use baton_tests::{
    EmbeddedRelay, ScriptedDaemon, TestClient, agent_task, command_task, recorded_ms,
};
use tokio::task::JoinSet;

use crate::{STANDIN, assert_not_after, assert_not_before, assert_within};

/// The relay's documented settings.
const SLACK_MS: u64 = 2_000;
const ACCEPT_MS: u64 = 10_000;
const LEASE_TTL_MS: u64 = 5_000;
const LEASE_GRACE_MS: u64 = 5_000;
/// The timer value of most cases.
const TIMER_MS: u64 = 600;

pub(crate) async fn spawn_cases(relay: &EmbeddedRelay, cases: &mut JoinSet<()>) {
    let client = relay.admin().clone();
    cases.spawn(check_queue(client.clone()));
    cases.spawn(check_accept(
        client.clone(),
        relay.start_scripted_daemon(&["accept"]).await,
    ));
    cases.spawn(check_process_start(
        client.clone(),
        relay.start_scripted_daemon(&["process_start"]).await,
    ));
    cases.spawn(check_tool_idle(
        client.clone(),
        relay.start_scripted_daemon(&["tool_idle"]).await,
    ));
    cases.spawn(check_user_input(
        client.clone(),
        relay.start_scripted_daemon(&["user_input"]).await,
    ));
    cases.spawn(check_cleanup_term(
        client.clone(),
        relay.start_scripted_daemon(&["cleanup_term"]).await,
    ));
    cases.spawn(check_lease(
        client.clone(),
        relay.start_scripted_daemon(&["lease"]).await,
    ));
    for case in stalling_children() {
        cases.spawn(case.run(client.clone()));
    }
}

/// Without a retry, so that the first end is final.
fn without_retry(spec: TaskSpec) -> TaskSpec {
    TaskSpec {
        retry: Some(RetryPolicy {
            max_attempts: Some(1),
            ..RetryPolicy::default()
        }),
        ..spec
    }
}

fn with_profile(spec: TaskSpec, profile: DeadlineProfile) -> TaskSpec {
    without_retry(TaskSpec {
        profile: Some(profile),
        ..spec
    })
}

fn is_phase(event: &TaskEvent, phase: LifecyclePhase) -> bool {
    event.kind() == TaskEventKind::Phase && event.phase() == phase
}

/// How long a timer took to end its attempt.
struct TimerDuration {
    /// From the relay's record of the arming event: the guaranteed limit.
    since_recorded_ms: u64,
    /// From the daemon's observation, which is earlier: a daemon counts from there.
    since_observed_ms: u64,
}

/// Waits for the end and returns how long after `armed` it was.
async fn measure_timer(
    client: &TestClient,
    task_id: &str,
    armed: impl Fn(&TaskEvent) -> bool,
    state: AttemptState,
    code: &str,
) -> TimerDuration {
    let mut watch = client.watch(task_id).await;
    let from = watch
        .wait_for_event(&format!("the event that arms the timer of {code}"), armed)
        .await;
    let end = watch.wait_for_kind(TaskEventKind::Ended).await;
    assert_eq!(
        (end.state(), end.failure_code.as_str()),
        (state, code),
        "{:#?}",
        watch.events
    );
    let observed = from.observed_at.as_ref().map_or(0, timestamp_to_ms);
    TimerDuration {
        since_recorded_ms: recorded_ms(&end) - recorded_ms(&from),
        since_observed_ms: recorded_ms(&end).saturating_sub(observed),
    }
}

async fn check_queue(client: TestClient) {
    let task = client
        .submit(TaskSpec {
            queue_ms: Some(TIMER_MS),
            ..agent_task("no-such-agent")
        })
        .await;
    let mut watch = client.watch(&task.task_id).await;
    let queued = watch.wait_for_kind(TaskEventKind::Queued).await;
    let parked = watch.wait_for_state(TaskState::NeedsAttention).await;
    let cause = client
        .get(&task.task_id)
        .await
        .attention
        .expect("the task has a failure")
        .cause();
    assert_eq!(cause, AttentionCause::Starved);
    assert_within(
        "queue",
        recorded_ms(&parked) - recorded_ms(&queued),
        TIMER_MS,
        SLACK_MS,
    );
}

async fn check_accept(client: TestClient, mut daemon: ScriptedDaemon) {
    let task = client.submit(without_retry(agent_task("accept"))).await;
    daemon.next_dispatch().await;
    let offered = |event: &TaskEvent| event.kind() == TaskEventKind::Offered;
    let took = measure_timer(
        &client,
        &task.task_id,
        offered,
        AttemptState::Lost,
        "not_accepted",
    )
    .await;
    assert_within("accept", took.since_recorded_ms, ACCEPT_MS, SLACK_MS);
}

/// Answers the relay's Cancel as a daemon does whose process ended at once.
async fn answer_cancel(
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
    attempt.send_canceled().await;
}

async fn check_process_start(client: TestClient, mut daemon: ScriptedDaemon) {
    let profile = DeadlineProfile {
        process_start_ms: Some(TIMER_MS),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(with_profile(agent_task("process_start"), profile))
        .await;
    let mut attempt = daemon.next_dispatch().await;
    attempt.accept().await;
    daemon.wait_for_confirmation(&attempt).await;
    attempt.send_started().await;
    answer_cancel(&mut daemon, attempt, TimerKind::ProcessStart).await;
    let armed = |event: &TaskEvent| is_phase(event, LifecyclePhase::Started);
    let code = "process_start_timeout";
    let took = measure_timer(&client, &task.task_id, armed, AttemptState::TimedOut, code).await;
    assert_within("process_start", took.since_recorded_ms, TIMER_MS, SLACK_MS);
}

async fn check_tool_idle(client: TestClient, mut daemon: ScriptedDaemon) {
    let profile = DeadlineProfile {
        tool_idle_ms: Some(TIMER_MS),
        // Stopped while the tool runs, otherwise it would fire first.
        stream_idle_ms: Some(TIMER_MS / 2),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(with_profile(agent_task("tool_idle"), profile))
        .await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt
        .send_tool_phase(LifecyclePhase::ToolStarted, "call-1")
        .await;
    answer_cancel(&mut daemon, attempt, TimerKind::ToolIdle).await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::ToolStarted;
    let code = "tool_idle_timeout";
    let took = measure_timer(&client, &task.task_id, armed, AttemptState::TimedOut, code).await;
    assert_within("tool_idle", took.since_recorded_ms, TIMER_MS, SLACK_MS);
}

async fn check_user_input(client: TestClient, mut daemon: ScriptedDaemon) {
    let profile = DeadlineProfile {
        user_input_ms: Some(TIMER_MS),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(with_profile(agent_task("user_input"), profile))
        .await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.ask_permission().await;
    answer_cancel(&mut daemon, attempt, TimerKind::UserInput).await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::InputAsked;
    let code = "user_input_timeout";
    let took = measure_timer(&client, &task.task_id, armed, AttemptState::TimedOut, code).await;
    assert_within("user_input", took.since_recorded_ms, TIMER_MS, SLACK_MS);
}

/// A daemon that does not answer Cancel: the end is committed anyway, as unconfirmed.
async fn check_cleanup_term(admin: TestClient, mut daemon: ScriptedDaemon) {
    let client = admin.client_of_tenant("", Role::Submitter).await;
    let profile = DeadlineProfile {
        cleanup_term_ms: Some(TIMER_MS),
        ..DeadlineProfile::default()
    };
    let task = client
        .submit(with_profile(agent_task("cleanup_term"), profile))
        .await;
    let attempt = daemon.start_next_attempt().await;
    daemon.wait_until_acked(&attempt).await;
    client.cancel(&task.task_id).await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::CancelRequested;
    let code = "canceled_by_user";
    let took = measure_timer(&client, &task.task_id, armed, AttemptState::Canceled, code).await;
    let attempt = client.get(&task.task_id).await.attempts.remove(0);
    assert_eq!(attempt.termination(), Termination::Unconfirmed);
    assert_within("cleanup_term", took.since_recorded_ms, TIMER_MS, SLACK_MS);
}

async fn check_lease(client: TestClient, mut daemon: ScriptedDaemon) {
    daemon.stop_heartbeats();
    let task = client
        .submit(TaskSpec {
            lease_ttl_ms: Some(LEASE_TTL_MS),
            ..without_retry(agent_task("lease"))
        })
        .await;
    let mut attempt = daemon.next_dispatch().await;
    attempt.accept().await;
    let armed = |event: &TaskEvent| event.kind() == TaskEventKind::Confirmed;
    let took = measure_timer(
        &client,
        &task.task_id,
        armed,
        AttemptState::Lost,
        "lease_expired",
    )
    .await;
    assert_within(
        "lease",
        took.since_recorded_ms,
        LEASE_TTL_MS,
        LEASE_GRACE_MS,
    );
}

/// A child that stalls, and the timer that it triggers.
struct StallCase {
    timer: &'static str,
    arguments: &'static [&'static str],
    prompt_bytes: usize,
    profile: DeadlineProfile,
    total_ms: Option<u64>,
    is_armed_by: fn(&TaskEvent) -> bool,
    code: &'static str,
}

fn stalling_children() -> Vec<StallCase> {
    let profile = DeadlineProfile::default();
    let prompted = |event: &TaskEvent| is_phase(event, LifecyclePhase::PromptWritten);
    vec![
        StallCase {
            timer: "prompt_write",
            arguments: &["pause"],
            // More than a pipe can buffer.
            prompt_bytes: 512 * 1024,
            profile: DeadlineProfile {
                prompt_write_ms: Some(TIMER_MS),
                ..profile
            },
            total_ms: None,
            is_armed_by: |event| is_phase(event, LifecyclePhase::AgentStarted),
            code: "prompt_write_timeout",
        },
        StallCase {
            timer: "first_event",
            arguments: &["pause"],
            prompt_bytes: 1,
            profile: DeadlineProfile {
                first_event_ms: Some(TIMER_MS),
                ..profile
            },
            total_ms: None,
            is_armed_by: prompted,
            code: "no_first_event_timeout",
        },
        StallCase {
            timer: "first_visible_event",
            arguments: &["pause"],
            prompt_bytes: 1,
            profile: DeadlineProfile {
                first_visible_event_ms: Some(TIMER_MS),
                ..profile
            },
            total_ms: None,
            is_armed_by: prompted,
            code: "no_visible_event_timeout",
        },
        StallCase {
            timer: "stream_idle",
            arguments: &["print", "1", "pause"],
            prompt_bytes: 1,
            profile: DeadlineProfile {
                stream_idle_ms: Some(TIMER_MS),
                ..profile
            },
            total_ms: None,
            is_armed_by: |event| {
                is_phase(event, LifecyclePhase::FirstEventSeen)
                    || is_phase(event, LifecyclePhase::FirstVisibleEventSeen)
            },
            code: "stream_idle_timeout",
        },
        StallCase {
            timer: "total",
            arguments: &["print", "1", "pause"],
            prompt_bytes: 1,
            profile,
            total_ms: Some(TIMER_MS),
            is_armed_by: |event| event.kind() == TaskEventKind::Confirmed,
            code: "task_deadline_exceeded",
        },
    ]
}

impl StallCase {
    async fn run(self, client: TestClient) {
        let spec = TaskSpec {
            prompt: "x".repeat(self.prompt_bytes),
            total_ms: self.total_ms,
            ..command_task(STANDIN, self.arguments, self.timer)
        };
        let task = client.submit(with_profile(spec, self.profile)).await;
        let state = AttemptState::TimedOut;
        let took = measure_timer(&client, &task.task_id, self.is_armed_by, state, self.code).await;
        assert_not_before(self.timer, took.since_observed_ms, TIMER_MS);
        assert_not_after(self.timer, took.since_recorded_ms, TIMER_MS, SLACK_MS);
        let attempt = client.get(&task.task_id).await.attempts.remove(0);
        assert_eq!(
            attempt.termination(),
            Termination::Confirmed,
            "{}",
            self.timer
        );
    }
}
