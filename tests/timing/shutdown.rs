//! Shutdown by a deadline: a relay and a daemon have exited one second after it, even with
//! peers that never read, and a second signal ends them at once. `BATON_ROUNDS=50` runs the
//! full version of the first.

use baton_daemon::Clock;
use baton_proto::v1::{
    ReadOutputRequest, ReadOutputResponse, Role, TaskSpec, TaskState, WatchTaskRequest,
    WatchTaskResponse,
};
use baton_tests::{
    DaemonProcess, PassedTraffic, RelayProcess, TcpProxy, TestClient, command_task,
    marked_processes, poll_until, send_signal, test_rounds, wait_until_marked_gone,
};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Streaming;

use crate::{BATON, STANDIN, assert_not_after, widened_limit_ms};

const SHORT_RUN: usize = 3;
const DRAIN_MS: u64 = 2_000;
/// With the tolerance of 250 ms it is a second.
const EXTRA_MS: u64 = 750;
const SECOND_SIGNAL_MS: u64 = 500;
/// More than all windows and queues on the way take.
const FLOOD_BYTES: &str = "33554432";

/// The duration of the future in milliseconds.
async fn measure_ms<T>(future: impl Future<Output = T>) -> (u64, T) {
    let clock = Clock::boot();
    let from = clock.now();
    let value = future.await;
    let took = from.until(clock.now()).as_millis();
    (u64::try_from(took).unwrap_or(u64::MAX), value)
}

fn task_with_short_lease(arguments: &[&str], mark: &str) -> TaskSpec {
    TaskSpec {
        lease_ttl_ms: Some(5_000),
        ..command_task(STANDIN, arguments, mark)
    }
}

async fn submit_and_wait_running(client: &TestClient, spec: TaskSpec, mark: &str) -> String {
    let task = client.submit(spec).await.task_id;
    client.wait_for_state(&task, TaskState::Running).await;
    poll_until(&format!("{mark} to run"), || {
        (!marked_processes(mark).is_empty()).then_some(())
    })
    .await;
    task
}

/// Peers of a relay that are connected and never read again.
struct UnreadingPeers {
    _bare_connection: TcpStream,
    _watch: Streaming<WatchTaskResponse>,
    _output: Streaming<ReadOutputResponse>,
    _daemon: DaemonProcess,
    proxy: TcpProxy,
    _dir: TempDir,
}

impl UnreadingPeers {
    async fn connect(client: &TestClient, mark: &str) -> Self {
        let address = client.url().trim_start_matches("http://").to_owned();
        let mut bare = TcpStream::connect(address).await.expect("the relay serves");
        // An HTTP/2 preface and an empty SETTINGS frame.
        let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        bare.write_all(greeting).await.expect("the relay reads");
        let proxy = TcpProxy::start_to(client.url()).await;
        let (_, secret) = client.create_token("", Role::Daemon).await;
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = DaemonProcess::start(BATON, dir.path(), mark, &proxy.url(), &secret).await;
        let arguments = ["flood", FLOOD_BYTES, "pause"];
        let task =
            submit_and_wait_running(client, task_with_short_lease(&arguments, mark), mark).await;
        let request = WatchTaskRequest {
            task_id: task.clone(),
            ..WatchTaskRequest::default()
        };
        let watch = client.tasks().watch(request).await;
        let request = ReadOutputRequest {
            task_id: task,
            follow: true,
            ..ReadOutputRequest::default()
        };
        let output = client.tasks().read_output(request).await;
        Self {
            _bare_connection: bare,
            _watch: watch.expect("a task can be watched").into_inner(),
            _output: output.expect("output can be read").into_inner(),
            _daemon: daemon,
            proxy,
            _dir: dir,
        }
    }
}

async fn stop_relay_with_unreading_peers(mark: String, drain: &str) -> u64 {
    let mut relay = RelayProcess::start_with(BATON, &["--drain", drain]).await;
    let mutes = UnreadingPeers::connect(relay.admin(), &mark).await;
    mutes.proxy.set_passed_traffic(PassedTraffic::Nothing);
    let (took, status) = measure_ms(relay.terminate()).await;
    assert_eq!(status.code(), Some(0));
    drop(mutes);
    wait_until_marked_gone(&mark).await;
    took
}

/// A daemon with a flooding child that ignores TERM, whose relay does not answer.
async fn stop_daemon_with_dead_stream(mark: String, hold: &str) -> u64 {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let proxy = TcpProxy::start_to(client.url()).await;
    let dir = tempfile::tempdir().expect("a directory");
    let stopping = ["--drain", "2s", "--hold", hold];
    let url = proxy.url();
    let link = (url.as_str(), secret.as_str());
    let mut daemon = DaemonProcess::start_with(BATON, dir.path(), &mark, link, &stopping).await;
    let arguments = ["flood", FLOOD_BYTES, "ignore-term", "pause"];
    submit_and_wait_running(client, task_with_short_lease(&arguments, &mark), &mark).await;
    proxy.set_passed_traffic(PassedTraffic::Nothing);
    let (took, status) = measure_ms(daemon.terminate()).await;
    assert_eq!(status.code(), Some(0));
    // Killed by the daemon, or by its shim when the lease expires.
    wait_until_marked_gone(&mark).await;
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_ends_by_its_deadline_with_peers_that_never_read() {
    let rounds = test_rounds(SHORT_RUN);
    let mut longest = [0; 3];
    for round in 0..rounds {
        let took: [u64; 3] = tokio::join!(
            stop_relay_with_unreading_peers(format!("mute-{round}"), "2s"),
            stop_daemon_with_dead_stream(format!("stop-kills-{round}"), "0s"),
            stop_daemon_with_dead_stream(format!("stop-hands-over-{round}"), "10m"),
        )
        .into();
        let who = [
            "a relay with peers that never read",
            "a daemon that kills",
            "a daemon that hands over",
        ];
        for (at, who) in who.into_iter().enumerate() {
            assert_not_after(
                &format!("round {round}: {who} ended"),
                took[at],
                DRAIN_MS,
                EXTRA_MS,
            );
            longest[at] = longest[at].max(took[at]);
        }
    }
    let [relay, kills, hands_over] = longest;
    println!(
        "{rounds} rounds, drain {DRAIN_MS} ms: at most {relay} ms for a relay, {kills} ms for a daemon that kills, \
         {hands_over} ms for one that hands over"
    );
}

/// A hanging client must not cost leases at a restart: peers without an open call get two
/// seconds.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_peers_do_not_delay_the_exit_of_an_idle_relay() {
    let took = stop_relay_with_unreading_peers("hangs".to_owned(), "30s").await;
    assert_not_after("a relay without open calls ended", took, 2_000, EXTRA_MS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_daemon_at_once() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a directory");
    let (link, stopping) = ((client.url(), secret.as_str()), ["--drain", "10m"]);
    let mut daemon =
        DaemonProcess::start_with(BATON, dir.path(), "impatient", link, &stopping).await;
    let spec = task_with_short_lease(&["pause"], "impatient");
    let task = submit_and_wait_running(client, spec, "impatient").await;
    send_signal(daemon.pid(), Signal::TERM);
    wait_until_draining(&daemon).await;
    let (took, status) = measure_ms(daemon.terminate()).await;
    assert_eq!(status.code(), Some(130));
    assert!(
        took <= widened_limit_ms(SECOND_SIGNAL_MS),
        "the exit took {took} ms"
    );
    assert!(
        !marked_processes("impatient").is_empty(),
        "the running attempt keeps its lease"
    );
    wait_until_marked_gone("impatient").await;
    client
        .wait_for_state(&task, TaskState::NeedsAttention)
        .await;
}

async fn wait_until_draining(daemon: &DaemonProcess) {
    loop {
        let health = BATON.run(&daemon.data, &["health", "--json"]).await;
        if health.stdout_json()["draining"] == true {
            return;
        }
    }
}
