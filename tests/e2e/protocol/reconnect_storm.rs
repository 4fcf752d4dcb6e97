//! Many daemons reconnect at once: daemons with attempts are welcomed first, the others at a
//! limited rate, and every daemon gets in.
//!
//! `BATON_STORM=5000 cargo test -p baton-tests --test e2e storm -- --nocapture` runs it with
//! that many daemons and the default rates of a relay, and prints the times.

use std::time::Duration;

use baton_daemon::{BootTime, Clock};
use baton_proto::v1::{
    DaemonFrame, GoodbyeCode, Heartbeat, Hello, RelayFrame, Role, TaskState, daemon_frame,
    relay_frame,
};
use baton_relay::config::HelloRates;
use baton_tests::{
    EmbeddedRelay, ScriptedDaemon, TestClient, active_attempt, agent_task, hello, poll_until,
    wait_within,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

const HOLDER_COUNT: usize = 20;
/// Streams that share a connection; the relay allows 256.
const PER_CONNECTION: usize = 200;

/// A welcomed daemon, with the time and the refusals until then.
struct JoinedDaemon {
    /// Dropping it ends the stream.
    _outgoing: mpsc::Sender<DaemonFrame>,
    _incoming: Streaming<RelayFrame>,
    took: Duration,
    busy_replies: u32,
}

/// Connects until Welcome. After a Busy goodbye it waits for the given time.
async fn join_until_welcome(client: TestClient, hello: Hello, from: BootTime) -> JoinedDaemon {
    let mut busy_replies = 0;
    loop {
        let (outgoing, queue) = mpsc::channel(8);
        let first = DaemonFrame {
            frame: Some(daemon_frame::Frame::Hello(hello.clone())),
        };
        outgoing.send(first).await.expect("the queue is open");
        let opened = wait_within("the link to open", async {
            client.daemon_link().link(ReceiverStream::new(queue)).await
        });
        let mut incoming = opened.await.expect("the link opens").into_inner();
        let frame = wait_within("an answer to Hello", incoming.message()).await;
        let frame = frame
            .expect("the stream is open")
            .and_then(|frame| frame.frame);
        match frame {
            Some(relay_frame::Frame::Welcome(_)) => {
                return JoinedDaemon {
                    _outgoing: outgoing,
                    _incoming: incoming,
                    took: from.until(Clock::boot().now()),
                    busy_replies,
                };
            }
            Some(relay_frame::Frame::Goodbye(bye)) if bye.code() == GoodbyeCode::Busy => {
                busy_replies += 1;
                let wait = bye.retry_after_ms.expect("a Busy goodbye has a retry time");
                // This imitates a daemon; the test itself does not wait by sleeping.
                let clock = Clock::boot();
                let back = clock.now().after(Duration::from_millis(wait));
                clock.sleep_until(back).await;
            }
            other => panic!("neither Welcome nor Busy: {other:?}"),
        }
    }
}

/// The longest time until the answer to a heartbeat of a daemon that stays connected.
async fn measure_longest_answer(client: &TestClient, mut finished: mpsc::Receiver<()>) -> Duration {
    let (outgoing, queue) = mpsc::channel(8);
    let send = |frame| outgoing.send(DaemonFrame { frame: Some(frame) });
    let first = send(daemon_frame::Frame::Hello(hello(&["bystander"])));
    first.await.expect("the queue is open");
    let opened = client.daemon_link().link(ReceiverStream::new(queue)).await;
    let mut incoming = opened.expect("the link opens").into_inner();
    incoming.message().await.expect("a Welcome");
    let clock = Clock::boot();
    let mut longest = Duration::ZERO;
    for seq in 1.. {
        let sent = clock.now();
        let beat = Heartbeat {
            seq,
            ..Heartbeat::default()
        };
        send(daemon_frame::Frame::Heartbeat(beat))
            .await
            .expect("the stream is open");
        wait_within("an answer to a heartbeat", incoming.message())
            .await
            .expect("the stream is open");
        longest = longest.max(sent.until(clock.now()));
        let pause = tokio::time::timeout(Duration::from_millis(50), finished.recv());
        if pause.await.is_ok() {
            break;
        }
    }
    longest
}

struct StormSettings {
    idle_daemons: usize,
    rates: HelloRates,
}

fn storm_settings() -> StormSettings {
    match std::env::var("BATON_STORM") {
        Ok(count) => StormSettings {
            idle_daemons: count.parse().expect("BATON_STORM is a number"),
            rates: HelloRates::default(),
        },
        // Low enough rates that a few hundred daemons exceed them.
        Err(_) => StormSettings {
            idle_daemons: 300,
            rates: HelloRates {
                holders_per_second: 100,
                idle_per_second: 50,
            },
        },
    }
}

/// Starts daemons with one attempt each and drops their streams. Returns the tasks and the
/// Hellos with which the daemons will reconnect.
async fn start_lost_holders(
    relay: &EmbeddedRelay,
    client: &TestClient,
) -> (Vec<String>, Vec<Hello>) {
    let (mut tasks, mut returning) = (Vec::new(), Vec::new());
    for number in 0..HOLDER_COUNT {
        let agent = format!("holder-{number}");
        let mut daemon = ScriptedDaemon::connect(client, hello(&[&agent])).await;
        let task = relay.admin().submit(agent_task(&agent)).await;
        let attempt = daemon.start_next_attempt().await;
        daemon.wait_until_acked(&attempt).await;
        returning.push(Hello {
            active: vec![active_attempt(&attempt)],
            ..daemon.hello.clone()
        });
        tasks.push(task.task_id);
    }
    (tasks, returning)
}

#[tokio::test(flavor = "multi_thread")]
async fn returning_daemons_are_paced_and_those_with_attempts_come_first() {
    let StormSettings {
        idle_daemons,
        rates,
    } = storm_settings();
    let relay = EmbeddedRelay::start_with(|config| config.hello_rates = rates).await;
    let client = relay.admin().client_of_tenant("", Role::Daemon).await;
    let (tasks, returning) = start_lost_holders(&relay, &client).await;
    let (finish, finished) = mpsc::channel(1);
    let bystander = tokio::spawn({
        let client = client.clone();
        async move { measure_longest_answer(&client, finished).await }
    });
    let from = Clock::boot().now();
    let mut idle = JoinSet::new();
    let mut shared_client = client.clone();
    for number in 0..idle_daemons {
        if number % PER_CONNECTION == 0 {
            shared_client = TestClient::new(client.url(), client.token_secret());
        }
        idle.spawn(join_until_welcome(
            shared_client.clone(),
            hello(&["idle"]),
            from,
        ));
    }
    // The idle daemons connect first.
    poll_until("the storm to begin", || {
        (idle.try_join_next().is_some()).then_some(())
    })
    .await;
    let mut holders = JoinSet::new();
    for hello in returning {
        holders.spawn(join_until_welcome(
            TestClient::new(client.url(), client.token_secret()),
            hello,
            from,
        ));
    }
    let holders_in = holders.join_all().await;
    let waiting = idle.len();
    let idle_in = idle.join_all().await;
    drop(finish);
    let longest = bystander.await.expect("the bystander stayed connected");

    let last =
        |joined: &[JoinedDaemon]| joined.iter().map(|one| one.took).max().unwrap_or_default();
    let refused_first = idle_in.iter().filter(|one| one.busy_replies > 0).count();
    println!(
        "{} holders back after {:?}, {idle_daemons} idle daemons after {:?} ({refused_first} of them after a Busy goodbye); \
         the longest answer to a heartbeat took {longest:?}",
        holders_in.len(),
        last(&holders_in),
        last(&idle_in)
    );
    assert!(
        holders_in.iter().all(|one| one.busy_replies == 0),
        "a daemon with attempts got a Busy goodbye"
    );
    assert!(
        waiting > idle_daemons / 4,
        "only {waiting} of {idle_daemons} idle daemons were welcomed after the daemons with attempts"
    );
    assert!(refused_first > 0, "some idle daemons got a Busy goodbye");
    assert!(
        idle_in.iter().all(|one| one.busy_replies <= 2),
        "an idle daemon got more than two Busy goodbyes"
    );
    for task in tasks {
        let task = relay.admin().get(&task).await;
        assert_eq!(task.state(), TaskState::Running, "no lease was lost");
        assert_eq!(task.attempts.len(), 1);
    }
}
