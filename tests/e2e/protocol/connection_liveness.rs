//! Networks that misbehave: drops that nobody may notice, proxies that end what is quiet, daemons that cannot hear, and two
//! daemons that think they are one. `BATON_DROPS=1000` makes the full run of the first, `BATON_IDLE=60` the second's proxies
//! wait for so many seconds.

use std::path::Path;
use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    DaemonFrame, GoodbyeCode, LifecyclePhase, RelayFrame, RevokeTokenRequest, Role, TaskEventKind,
    TaskSpec, TaskState, WatchTaskRequest, daemon_frame, relay_frame,
};
use baton_tests::{
    DaemonProcess, FrameTap, IdleGateway, PassedTraffic, RelayProcess, TappedFrame, TcpProxy,
    TestClient, TestClock, boottime, command_task, poll_until, wait_within,
};

use crate::BATON;

const DROP_COUNT: usize = 25;
const CHILD_COUNT: usize = 4;

fn configured_drops() -> usize {
    std::env::var("BATON_DROPS").map_or(DROP_COUNT, |drops| {
        drops.parse().expect("BATON_DROPS is a number")
    })
}

/// Says numbers until `file` is there, and then the last of them once more.
fn counting_task(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "i=0; until [ -e {} ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo last $i",
        file.display()
    );
    command_task("sh", &["-c", &script], mark)
}

/// Says a word, and a second one when `file` is there.
fn quiet_task(file: &Path, mark: &str) -> TaskSpec {
    let script = format!(
        "echo begun; until [ -e {} ]; do sleep 0.05; done; echo finished",
        file.display()
    );
    command_task("sh", &["-c", &script], mark)
}

/// Every line once and in order.
fn assert_counted_lines(output: &[u8], dropped: usize) {
    let text = String::from_utf8_lossy(output);
    let mut lines: Vec<&str> = text.lines().collect();
    let last = lines.pop().expect("it said something").to_owned();
    assert_eq!(last, format!("last {}", lines.len()));
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("line {}", number + 1));
    }
    assert!(lines.len() > dropped, "it said something between the drops");
}

#[tokio::test(flavor = "multi_thread")]
async fn short_drops_of_the_stream_rerun_nothing_and_lose_nothing() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let wire = TcpProxy::start_to(client.url()).await;
    let dir = tempfile::tempdir().unwrap();
    let _daemon = DaemonProcess::start(BATON, dir.path(), "dropped", &wire.url(), &secret).await;
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
    // A cut may find no connection to break: those count that did.
    while wire.connection_count() <= drops {
        // At any moment: in the middle of output, of a heartbeat, of a handshake, or before the next connection.
        let gap = Duration::from_millis(rand::random_range(0..400));
        clock.sleep_until(clock.now().after(gap)).await;
        wire.cut_connections();
        cuts += 1;
    }
    std::fs::write(&go_on, "").unwrap();
    for task in &tasks {
        client.wait_for_state(task, TaskState::Completed).await;
        let record = client.get(task).await;
        assert_eq!(record.attempts.len(), 1, "nothing was run again");
        assert_counted_lines(&client.read_output_to_end(task).await, drops / 2);
        assert_phases_once(client, task).await;
    }
    println!(
        "{drops} connections broken by {cuts} cuts: {} attempts went on, their output whole and once",
        tasks.len()
    );
}

/// Each phase that happens once was heard once.
async fn assert_phases_once(client: &TestClient, task_id: &str) {
    let events = client.watch(task_id).await.collect_to_end().await;
    for phase in [
        LifecyclePhase::Started,
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstVisibleEventSeen,
        LifecyclePhase::CleanupFinished,
    ] {
        let told = events
            .iter()
            .filter(|event| event.kind() == TaskEventKind::Phase && event.phase() == phase)
            .count();
        assert_eq!(told, 1, "{phase:?} in {events:#?}");
    }
}

/// Shorter than a minute, so that the test is, too: longer than what the relay and the daemons ship with.
const IDLE_STREAM_LIMIT: Duration = Duration::from_secs(8);
const IDLE_CLIENT_LIMIT: Duration = Duration::from_secs(20);

fn configured_idle(short: Duration) -> Duration {
    std::env::var("BATON_IDLE").map_or(short, |seconds| {
        Duration::from_secs(seconds.parse().expect("BATON_IDLE is a number"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_ends_idle_streams_is_never_noticed() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    // One ends connections, the other streams: pings keep only the first one quiet.
    let wire =
        TcpProxy::start_with_idle_limit(client.url(), configured_idle(IDLE_STREAM_LIMIT)).await;
    let gateway = IdleGateway::start(&wire.url(), configured_idle(IDLE_STREAM_LIMIT)).await;
    let dir = tempfile::tempdir().unwrap();
    let _daemon = DaemonProcess::start(BATON, dir.path(), "quiet", &gateway.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let task = client.submit(quiet_task(&go_on, "quiet")).await.task_id;
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
    let (mut quiet, since) = (0, boottime());
    // Nothing but signs of life, until an idle stream would have been ended.
    while quiet < 2 || boottime() - since <= configured_idle(IDLE_CLIENT_LIMIT) {
        let message = wait_within("the watch to go on", watching.message()).await;
        let message = message.expect("nobody ends it").expect("nobody ends it");
        quiet += usize::from(message.item.is_none());
    }
    std::fs::write(&go_on, "").unwrap();
    loop {
        let message = wait_within("the end of the task", watching.message()).await;
        match message.expect("nobody ends it").and_then(|m| m.item) {
            Some(Item::Event(event)) if event.task_state() == TaskState::Completed => break,
            Some(_) | None => {}
        }
    }
    let output = wait_within("the output", &mut reading).await;
    assert_eq!(output.expect("reading goes on"), b"begun\nfinished\n");
    assert_eq!(
        (gateway.ended_streams(), for_clients.ended_streams()),
        (0, 0)
    );
    println!(
        "proxies that end what is idle for {:?} (clients: {:?}) ended nothing in {:?} without an event",
        configured_idle(IDLE_STREAM_LIMIT),
        configured_idle(IDLE_CLIENT_LIMIT),
        boottime() - since
    );
    assert_eq!(client.get(&task).await.attempts.len(), 1);
}

async fn run_health(daemon: &DaemonProcess) -> (Option<i32>, String) {
    let said = BATON.run(&daemon.data, &["health"]).await;
    (said.code, said.stdout + &said.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deaf_daemon_fails_its_own_health_check_and_gets_no_work() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let wire = TcpProxy::start_to(client.url()).await;
    let dir = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::start(BATON, dir.path(), "deaf", &wire.url(), &secret).await;
    let first = client.submit(command_task("true", &[], "deaf")).await;
    client
        .wait_for_state(&first.task_id, TaskState::Completed)
        .await;
    assert_eq!(run_health(&daemon).await.0, Some(0));

    // It can still send, and the relay hears it; but nothing reaches it.
    wire.set_passed_traffic(PassedTraffic::ToRelayOnly);
    let since = boottime();
    let (_, why) = wait_within("the daemon to know", async {
        loop {
            let (code, said) = run_health(&daemon).await;
            if code == Some(1) {
                return (code, said);
            }
        }
    })
    .await;
    assert!(why.contains("unhealthy: "), "{why}");
    let knew = boottime() - since;
    let daemon_id = std::fs::read_to_string(daemon.data.join("daemon-id")).unwrap();
    client.wait_until_offline(daemon_id.trim()).await;
    println!(
        "a deaf daemon was unhealthy after {knew:?} and offered no work after {:?}",
        boottime() - since
    );
    let waiting = client.submit(command_task("true", &[], "deaf")).await;
    let queued = client.get(&waiting.task_id).await;
    assert_eq!(queued.state(), TaskState::Queued, "{queued:?}");

    wire.set_passed_traffic(PassedTraffic::Both);
    client
        .wait_for_state(&waiting.task_id, TaskState::Completed)
        .await;
    let (code, said) = run_health(&daemon).await;
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_is_replaced_in_place_costs_nothing() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (old, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::start(BATON, dir.path(), "rotated", client.url(), &secret).await;
    let go_on = dir.path().join("go-on");
    let task = client.submit(quiet_task(&go_on, "rotated")).await.task_id;
    client.wait_for_state(&task, TaskState::Running).await;
    revoke_token(client, old.token_id).await;
    let why = wait_within("the daemon to know", async {
        loop {
            let (code, said) = run_health(&daemon).await;
            if code == Some(1) && !said.contains("the stream broke") {
                return said;
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
async fn a_credential_that_is_replaced_before_the_old_one_is_revoked_costs_nothing() {
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
    // The file does not change any more, and needs not.
    poll_until("the daemon to come back", || {
        (count_hellos_and_goodbyes(&tap).0 > 1).then_some(())
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

/// How often the daemon said Hello, and was told that somebody else took its place.
fn count_hellos_and_goodbyes(tap: &FrameTap) -> (usize, usize) {
    let (mut hellos, mut goodbyes) = (0, 0);
    for frame in tap.frames() {
        match frame {
            TappedFrame::FromDaemon(up) => {
                let DaemonFrame { frame } = *up;
                hellos += usize::from(matches!(frame, Some(daemon_frame::Frame::Hello(_))));
            }
            TappedFrame::FromRelay(down) => {
                let RelayFrame { frame, .. } = *down;
                let superseded = |goodbye: &relay_frame::Frame| {
                    matches!(goodbye, relay_frame::Frame::Goodbye(bye)
                        if bye.code() == GoodbyeCode::Superseded)
                };
                goodbyes += usize::from(frame.as_ref().is_some_and(superseded));
            }
        }
    }
    (hellos, goodbyes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_superseded_daemon_gets_one_goodbye_and_stays_away_for_a_minute() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let (tap, bent) = (FrameTap::start(client.url()).await, TestClock::new());
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &'static str, url: String, baton| {
        let (dir, secret) = (dir.path(), &secret);
        async move { DaemonProcess::start(baton, dir, name, &url, secret).await }
    };
    let first = start("first", tap.url(), bent.apply_to(BATON)).await;
    let identity = first.data.join("daemon-id");
    poll_until("the daemon to be known", || identity.exists().then_some(())).await;
    // Somebody copied the machine.
    std::fs::create_dir(dir.path().join("twin")).unwrap();
    std::fs::copy(&identity, dir.path().join("twin/daemon-id")).unwrap();
    let twin = start("twin", client.url().to_owned(), BATON).await;
    poll_until("the first one to be told", || {
        (count_hellos_and_goodbyes(&tap) == (1, 1)).then_some(())
    })
    .await;
    let told = Clock::boot().now();
    // The tap sees the word before the daemon does.
    let why = wait_within("the first one to be unwell", async {
        loop {
            let (code, why) = run_health(&first).await;
            if code == Some(1) {
                return why;
            }
        }
    });
    let why = why.await;
    assert!(why.contains("another instance"), "{why}");
    assert_eq!(run_health(&twin).await.0, Some(0), "it is left in peace");

    let mut slept = Duration::ZERO;
    poll_until("the first one to come back", || {
        let back = count_hellos_and_goodbyes(&tap).0 > 1;
        if !back {
            bent.advance_suspended(Duration::from_millis(200));
            slept += Duration::from_millis(200);
        }
        back.then_some(())
    })
    .await;
    let away = slept + told.until(Clock::boot().now());
    println!("a superseded daemon was told once and stayed away for {away:?}");
    assert!(
        away >= Duration::from_secs(60),
        "it came back after {away:?}"
    );
    assert_eq!(count_hellos_and_goodbyes(&tap).1, 1);
}
