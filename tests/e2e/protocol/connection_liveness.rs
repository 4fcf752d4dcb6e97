//! Network problems: short drops, proxies that close idle streams, a daemon that receives
//! nothing, and replaced credentials. `BATON_DROPS=1000` makes the full run of the first test;
//! `BATON_IDLE=60` sets the idle limit of the proxies in seconds.

use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    LifecyclePhase, RevokeTokenRequest, Role, TaskEventKind, TaskState, WatchTaskRequest,
    daemon_frame,
};
use baton_tests::{
    DaemonProcess, FrameTap, IdleGateway, PassedTraffic, RelayProcess, TappedFrame, TcpProxy,
    TestClient, assert_counted_lines, boottime, command_task, counting_task, poll_until,
    task_until_file, wait_within,
};

use crate::BATON;

const DROP_COUNT: usize = 25;
const CHILD_COUNT: usize = 4;

fn configured_drops() -> usize {
    std::env::var("BATON_DROPS").map_or(DROP_COUNT, |drops| {
        drops.parse().expect("BATON_DROPS is a number")
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn short_stream_drops_rerun_nothing_and_lose_nothing() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let proxy = TcpProxy::start_to(client.url()).await;
    let dir = tempfile::tempdir().unwrap();
    let _daemon = DaemonProcess::start(BATON, dir.path(), "dropped", &proxy.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let mut tasks = Vec::new();
    for number in 0..CHILD_COUNT {
        let mark = format!("dropped-{number}");
        tasks.push(client.submit(counting_task(&go_on, &mark)).await.task_id);
    }
    for task in &tasks {
        client.wait_for_state(task, TaskState::Running).await;
    }
    let (clock, drops) = (Clock::boot(), configured_drops());
    let mut cuts = 0;
    // A cut may find no open connection, so count new connections instead of cuts.
    while proxy.connection_count() <= drops {
        // A random time: during output, a heartbeat, a handshake, or between two connections.
        let gap = Duration::from_millis(rand::random_range(0..400));
        clock.sleep_until(clock.now().after(gap)).await;
        proxy.cut_connections();
        cuts += 1;
    }
    std::fs::write(&go_on, "").unwrap();
    for task in &tasks {
        client.wait_for_state(task, TaskState::Completed).await;
        let record = client.get(task).await;
        assert_eq!(record.attempts.len(), 1, "no second attempt was started");
        let lines = assert_counted_lines(&client.read_output_to_end(task).await);
        assert!(lines > drops / 2, "there was output between the drops");
        assert_phases_once(client, task).await;
    }
    println!(
        "{drops} connections broken by {cuts} cuts: {} attempts continued, their output complete and without duplicates",
        tasks.len()
    );
}

/// Checks that each phase of a single attempt was recorded once.
async fn assert_phases_once(client: &TestClient, task_id: &str) {
    let events = client.watch(task_id).await.collect_to_end().await;
    for phase in [
        LifecyclePhase::Started,
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstVisibleEventSeen,
        LifecyclePhase::CleanupFinished,
    ] {
        let count = events
            .iter()
            .filter(|event| event.kind() == TaskEventKind::Phase && event.phase() == phase)
            .count();
        assert_eq!(count, 1, "{phase:?} in {events:#?}");
    }
}

/// Shorter than a minute to keep the test short, but longer than the default ping and heartbeat
/// intervals.
const IDLE_STREAM_LIMIT: Duration = Duration::from_secs(8);
const IDLE_CLIENT_LIMIT: Duration = Duration::from_secs(20);

fn configured_idle(short: Duration) -> Duration {
    std::env::var("BATON_IDLE").map_or(short, |seconds| {
        Duration::from_secs(seconds.parse().expect("BATON_IDLE is a number"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_closes_idle_streams_closes_none() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    // One proxy closes idle connections, the other idle streams. HTTP/2 pings count only for the
    // first.
    let proxy =
        TcpProxy::start_with_idle_limit(client.url(), configured_idle(IDLE_STREAM_LIMIT)).await;
    let gateway = IdleGateway::start(&proxy.url(), configured_idle(IDLE_STREAM_LIMIT)).await;
    let dir = tempfile::tempdir().unwrap();
    let _daemon = DaemonProcess::start(BATON, dir.path(), "quiet", &gateway.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let task = client
        .submit(task_until_file(&go_on, "quiet"))
        .await
        .task_id;
    let for_clients = IdleGateway::start(client.url(), configured_idle(IDLE_CLIENT_LIMIT)).await;
    let through = TestClient::new(&for_clients.url(), client.token_secret());
    let mut reading = tokio::spawn({
        let (through, task) = (through.clone(), task.clone());
        async move { through.read_output_to_end(&task).await }
    });
    let request = WatchTaskRequest {
        task_id: task.clone(),
        ..WatchTaskRequest::default()
    };
    let opened = through.tasks().watch(request).await;
    let mut watching = opened.expect("the watch opens").into_inner();
    let (mut keep_alives, since) = (0, boottime());
    // Read only keep-alive messages until an idle stream would have been closed.
    while keep_alives < 2 || boottime() - since <= configured_idle(IDLE_CLIENT_LIMIT) {
        let message = wait_within("the next watch message", watching.message()).await;
        let message = message
            .expect("the watch stays open")
            .expect("the watch stays open");
        keep_alives += usize::from(message.item.is_none());
    }
    std::fs::write(&go_on, "").unwrap();
    loop {
        let message = wait_within("the end of the task", watching.message()).await;
        match message.expect("the watch stays open").and_then(|m| m.item) {
            Some(Item::Event(event)) if event.task_state() == TaskState::Completed => break,
            Some(_) | None => {}
        }
    }
    let output = wait_within("the output", &mut reading).await;
    assert_eq!(
        output.expect("the reader task runs to its end"),
        b"begun\nfinished\n"
    );
    assert_eq!(
        (gateway.ended_streams(), for_clients.ended_streams()),
        (0, 0)
    );
    println!(
        "proxies with an idle limit of {:?} (clients: {:?}) closed nothing in {:?} without an event",
        configured_idle(IDLE_STREAM_LIMIT),
        configured_idle(IDLE_CLIENT_LIMIT),
        boottime() - since
    );
    assert_eq!(client.get(&task).await.attempts.len(), 1);
}

async fn run_health(daemon: &DaemonProcess) -> (Option<i32>, String) {
    let output = BATON.run(&daemon.data, &["health"]).await;
    (output.code, output.stdout + &output.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_receives_nothing_turns_unhealthy_and_gets_no_work() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let proxy = TcpProxy::start_to(client.url()).await;
    let dir = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::start(BATON, dir.path(), "deaf", &proxy.url(), &secret).await;
    let first = client.submit(command_task("true", &[], "deaf")).await;
    client
        .wait_for_state(&first.task_id, TaskState::Completed)
        .await;
    assert_eq!(run_health(&daemon).await.0, Some(0));

    // The daemon can still send to the relay, but receives nothing.
    proxy.set_passed_traffic(PassedTraffic::ToRelayOnly);
    let since = boottime();
    let (_, why) = wait_within("the daemon to turn unhealthy", async {
        loop {
            let (code, output) = run_health(&daemon).await;
            if code == Some(1) {
                return (code, output);
            }
        }
    })
    .await;
    assert!(why.contains("unhealthy: "), "{why}");
    let unhealthy_after = boottime() - since;
    let daemon_id = std::fs::read_to_string(daemon.data.join("daemon-id")).unwrap();
    client.wait_until_offline(daemon_id.trim()).await;
    println!(
        "a daemon that receives nothing was unhealthy after {unhealthy_after:?} and offline after {:?}",
        boottime() - since
    );
    let waiting = client.submit(command_task("true", &[], "deaf")).await;
    let queued = client.get(&waiting.task_id).await;
    assert_eq!(queued.state(), TaskState::Queued, "{queued:?}");

    proxy.set_passed_traffic(PassedTraffic::Both);
    client
        .wait_for_state(&waiting.task_id, TaskState::Completed)
        .await;
    let (code, output) = run_health(&daemon).await;
    assert_eq!(code, Some(0), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_replaced_after_revocation_keeps_the_attempt() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (old, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::start(BATON, dir.path(), "rotated", client.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let task = client
        .submit(task_until_file(&go_on, "rotated"))
        .await
        .task_id;
    client.wait_for_state(&task, TaskState::Running).await;
    revoke_token(client, old.token_id).await;
    let why = wait_within("the daemon to turn unhealthy", async {
        loop {
            let (code, output) = run_health(&daemon).await;
            if code == Some(1) && !output.contains("the stream broke") {
                return output;
            }
        }
    })
    .await;
    assert!(why.contains("no longer accepts this token"), "{why}");
    let (_, secret) = client.create_token("", Role::Daemon).await;
    std::fs::write(daemon.data.join("credential"), secret).unwrap();
    std::fs::write(&go_on, "").unwrap();
    client.wait_for_state(&task, TaskState::Completed).await;
    assert_eq!(client.get(&task).await.attempts.len(), 1);
    assert_eq!(run_health(&daemon).await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_replaced_before_revocation_keeps_the_daemon_working() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (old, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let tap = FrameTap::start(client.url()).await;
    let daemon = DaemonProcess::start(BATON, dir.path(), "early", &tap.url(), &secret).await;
    let task = client
        .submit(command_task("true", &[], "early"))
        .await
        .task_id;
    client.wait_for_state(&task, TaskState::Completed).await;
    let (_, secret) = client.create_token("", Role::Daemon).await;
    std::fs::write(daemon.data.join("credential"), secret).unwrap();
    revoke_token(client, old.token_id).await;
    // The file already has the new credential, so it does not change again.
    poll_until("the daemon to reconnect", || {
        (hello_count(&tap) > 1).then_some(())
    })
    .await;
    let task = client
        .submit(command_task("true", &[], "later"))
        .await
        .task_id;
    client.wait_for_state(&task, TaskState::Completed).await;
}

async fn revoke_token(client: &TestClient, token_id: String) {
    let request = RevokeTokenRequest { token_id };
    let revoked = client.operator().revoke_token(request).await;
    revoked.expect("an administrator revokes tokens");
}

fn hello_count(tap: &FrameTap) -> usize {
    let is_hello = |frame: &TappedFrame| match frame {
        TappedFrame::FromDaemon(up) => matches!(up.frame, Some(daemon_frame::Frame::Hello(_))),
        TappedFrame::FromRelay(_) => false,
    };
    tap.frames().iter().filter(|frame| is_hello(frame)).count()
}
