//! Daemons that all return at once: those with attempts come first, the others in turn, and nobody is forgotten.
//!
//! `BATON_STORM=5000 cargo test -p baton-tests --test e2e storm -- --nocapture` runs it with more of them and the rates that a
//! relay has by default, and prints how long it took.

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

/// A daemon that got in, and what it took.
struct JoinedDaemon {
    /// Dropping it ends the stream.
    _outgoing: mpsc::Sender<DaemonFrame>,
    _incoming: Streaming<RelayFrame>,
    took: Duration,
    busy_replies: u32,
}

/// Dials until it is welcome, and stays away as long as it is told to.
async fn join_until_welcome(client: TestClient, hello: Hello, from: BootTime) -> JoinedDaemon {
    let mut sent_away = 0;
    loop {
        let (outgoing, queue) = mpsc::channel(8);
        let first = DaemonFrame {
            frame: Some(daemon_frame::Frame::Hello(hello.clone())),
        };
        outgoing.send(first).await.expect("the queue is new");
        let opened = wait_within("the link to open", async {
            client.daemon_link().link(ReceiverStream::new(queue)).await
        });
        let mut incoming = opened.await.expect("the link opens").into_inner();
        let frame = wait_within("an answer to Hello", incoming.message()).await;
        let frame = frame
            .expect("the stream stands")
            .and_then(|frame| frame.frame);
        match frame {
            Some(relay_frame::Frame::Welcome(_)) => {
                return JoinedDaemon {
                    _outgoing: outgoing,
                    _incoming: incoming,
                    took: from.until(Clock::boot().now()),
                    busy_replies: sent_away,
                };
            }
            Some(relay_frame::Frame::Goodbye(bye)) if bye.code() == GoodbyeCode::Busy => {
                sent_away += 1;
                let wait = bye.retry_after_ms.expect("it is told when to come back");
                // What a daemon does, and not how this test waits.
                let clock = Clock::boot();
                let back = clock.now().after(Duration::from_millis(wait));
                clock.sleep_until(back).await;
            }
            other => panic!("neither welcome nor busy: {other:?}"),
        }
    }
}

/// The longest that a heartbeat of a daemon that stayed had to wait for its answer.
async fn measure_longest_answer(client: &TestClient, mut over: mpsc::Receiver<()>) -> Duration {
    let (outgoing, queue) = mpsc::channel(8);
    let say = |frame| outgoing.send(DaemonFrame { frame: Some(frame) });
    let first = say(daemon_frame::Frame::Hello(hello(&["bystander"])));
    first.await.expect("the queue is new");
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
        say(daemon_frame::Frame::Heartbeat(beat))
            .await
            .expect("the stream stands");
        wait_within("an answer to a heartbeat", incoming.message())
            .await
            .expect("the stream stands");
        longest = longest.max(sent.until(clock.now()));
        let pause = tokio::time::timeout(Duration::from_millis(50), over.recv());
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
        // Slow enough that a few hundred are a storm.
        Err(_) => StormSettings {
            idle_daemons: 300,
            rates: HelloRates {
                holders_per_second: 100,
                idle_per_second: 50,
            },
        },
    }
}

/// Their streams are gone; what they say when they return lists their attempts.
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
    let (calm, over) = mpsc::channel(1);
    let bystander = tokio::spawn({
        let client = client.clone();
        async move { measure_longest_answer(&client, over).await }
    });
    let from = Clock::boot().now();
    let mut crowd = JoinSet::new();
    let mut of_connection = client.clone();
    for number in 0..idle_daemons {
        if number % PER_CONNECTION == 0 {
            of_connection = TestClient::new(client.url(), client.token_secret());
        }
        crowd.spawn(join_until_welcome(
            of_connection.clone(),
            hello(&["idle"]),
            from,
        ));
    }
    // The idle ones are ahead of them.
    poll_until("the storm to begin", || {
        (crowd.try_join_next().is_some()).then_some(())
    })
    .await;
    let mut holding = JoinSet::new();
    for hello in returning {
        holding.spawn(join_until_welcome(
            TestClient::new(client.url(), client.token_secret()),
            hello,
            from,
        ));
    }
    let held = holding.join_all().await;
    let waiting = crowd.len();
    let idle_in = crowd.join_all().await;
    drop(calm);
    let longest = bystander.await.expect("the bystander stayed");

    let last =
        |joined: &[JoinedDaemon]| joined.iter().map(|one| one.took).max().unwrap_or_default();
    let away = idle_in.iter().filter(|one| one.busy_replies > 0).count();
    println!(
        "{} holders back after {:?}, {idle_daemons} idle daemons after {:?} ({away} were sent away first); \
         the longest answer to a heartbeat took {longest:?}",
        held.len(),
        last(&held),
        last(&idle_in)
    );
    assert!(
        held.iter().all(|one| one.busy_replies == 0),
        "holders wait, at most"
    );
    assert!(
        waiting > idle_daemons / 4,
        "holders came before {waiting} of {idle_daemons} idle daemons"
    );
    assert!(away > 0, "some were told to come back");
    assert!(
        idle_in.iter().all(|one| one.busy_replies <= 2),
        "and then there was room"
    );
    for task in tasks {
        let task = relay.admin().get(&task).await;
        assert_eq!(task.state(), TaskState::Running, "no lease was lost");
        assert_eq!(task.attempts.len(), 1);
    }
}
