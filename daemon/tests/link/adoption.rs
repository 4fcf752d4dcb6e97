//! Daemons that are killed and restarted, and machines that are rebooted.

use std::path::Path;
use std::time::Duration;

use baton_daemon::Clock;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    ActiveAttempt, ActiveState, Adopt, AttemptRef, Hello, Keep, LossCause, RejectCode, Settlement,
    TerminationReceipt,
};
use rustix::process::Signal;

use crate::fake_relay::{FakeRelay, FakeRelaySession, attempt, shell};
use crate::test_daemon::{
    DaemonHome, LinkTestDaemon, is_alive, pids_of_attempt, shim_of, signal, wait_until_gone,
};

/// Time for a scan of the process table on a busy machine.
pub(crate) const PROCESS_SCAN_MARGIN: Duration = Duration::from_secs(1);

/// A child's command that waits for a file and prints its contents.
pub(crate) fn wait_for_file_script(file: &Path) -> String {
    format!(
        "until [ -e {0} ]; do sleep 0.02; done; cat {0}",
        file.display()
    )
}

/// Writes the file that such a child waits for, atomically.
pub(crate) fn write_text(file: &Path, text: &str) {
    let draft = file.with_extension("draft");
    std::fs::write(&draft, text).expect("a file can be written");
    std::fs::rename(draft, file).expect("a file can be renamed");
}

pub(crate) fn active_attempt<'a>(hello: &'a Hello, attempt: &AttemptRef) -> &'a ActiveAttempt {
    let mut active = hello.active.iter();
    let found = active.find(|active| active.r#ref.as_ref() == Some(attempt));
    found.unwrap_or_else(|| panic!("not listed: {hello:?}"))
}

pub(crate) fn keep_settlement(
    attempt: &AttemptRef,
    acked: u64,
    offset: u64,
    granted: Option<Duration>,
) -> Settlement {
    let granted_ms = granted.map(|granted| granted.as_millis() as u64);
    Settlement {
        attempt_id: attempt.attempt_id.clone(),
        decision: Some(Decision::Keep(Keep {
            acked_control_seq: acked,
            acked_offset: offset,
            granted_ms,
        })),
    }
}

pub(crate) fn adopt_settlement(attempt: &AttemptRef, acked: u64, offset: u64) -> Settlement {
    Settlement {
        attempt_id: attempt.attempt_id.clone(),
        decision: Some(Decision::Adopt(Adopt {
            acked_control_seq: acked,
            acked_offset: offset,
        })),
    }
}

pub(crate) async fn until_receipt(session: &mut FakeRelaySession) -> TerminationReceipt {
    let frame = session
        .until_frame(|body| matches!(body, Body::Receipt(_)))
        .await;
    match frame.body {
        Some(Body::Receipt(receipt)) => receipt,
        other => panic!("{other:?}"),
    }
}

/// Checks that the control frames are numbered without a gap from `first` on.
fn assert_unbroken(session: &FakeRelaySession, first: u64) {
    let numbers: Vec<u64> = session
        .control_after(0)
        .iter()
        .map(|(seq, _)| *seq)
        .collect();
    let wanted: Vec<u64> = (first..first + numbers.len() as u64).collect();
    assert_eq!(numbers, wanted);
}

#[tokio::test]
async fn the_next_daemon_goes_on_where_a_killed_one_stopped() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let (second, third) = (home.path().join("second"), home.path().join("third"));
    let script = format!(
        "echo one; echo first >&2; {}; {}; echo last >&2; exit 3",
        wait_for_file_script(&second),
        wait_for_file_script(&third)
    );
    session.run(&attempt, shell(&script)).await;
    while session.output_bytes() < 10 {
        session.until_output().await;
    }
    let pid = session.pid();
    let last_seen = session.control_after(0).last().expect("it has begun").0;
    session.ack(&attempt, last_seen, 0).await;
    first.kill().await;
    drop(session);
    // Printed while no daemon runs.
    write_text(&second, "two\n");

    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.daemon_id, relay.daemon_id);
    let active = active_attempt(&hello, &attempt);
    assert_eq!(active.state(), ActiveState::Running);
    let token = active.token.as_ref().expect("the shim has kept the token");
    assert_eq!(token.value[..], [7; 32]);
    assert!(is_alive(pid) && active.last_control_seq >= last_seen);
    let granted = Some(Duration::from_secs(30));
    session
        .welcome(vec![keep_settlement(&attempt, last_seen, 0, granted)])
        .await;
    while session.output_bytes() < 14 {
        session.until_output().await;
    }
    write_text(&third, "three\n");
    let last = session.until_terminal().await;
    let Some(Body::Error(error)) = &last.body else {
        panic!("{last:?}")
    };
    assert_eq!(error.receipt.as_ref().unwrap().exit_code, Some(3));
    assert_eq!(error.stderr_tail, "first\nlast\n");
    assert!(last.within_lease);
    let output = String::from_utf8(session.output()).unwrap();
    let (mut seen, mut wanted): (Vec<_>, Vec<_>) = (output.lines().collect(), Vec::new());
    wanted.extend(["one", "first", "two", "three", "last"]);
    seen.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(seen, wanted, "a gap or a duplicate");
    assert_eq!(error.final_offset, output.len() as u64);
    assert_unbroken(&session, last_seen + 1);
    session
        .ack(&attempt, last.control_seq, error.final_offset)
        .await;
    wait_until_gone(&attempt).await;
}

#[tokio::test]
async fn an_end_without_a_daemon_is_reported_with_its_own_time() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let go_on = home.path().join("go-on");
    let mut dispatch = shell(&format!("echo one; {}", wait_for_file_script(&go_on)));
    dispatch.granted_ms = 1_500;
    session.renewal = Some(Duration::from_millis(1_500));
    session.run(&attempt, dispatch).await;
    session.until_output().await;
    let clock = Clock::boot();
    first.kill().await;
    let killed = clock.now();
    drop(session);
    write_text(&go_on, "two\n");
    wait_until_gone(&attempt).await;
    // The lease has ended when the next daemon starts.
    clock
        .sleep_until(killed.after(Duration::from_millis(1_600)))
        .await;
    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    let active = active_attempt(&hello, &attempt);
    assert_eq!(active.state(), ActiveState::Finished, "its end is known");
    assert!(active.token.is_none(), "the token died with its shim");
    session
        .welcome(vec![adopt_settlement(&attempt, 0, 0)])
        .await;
    let last = session.until_terminal().await;
    let Some(Body::Complete(complete)) = &last.body else {
        panic!("{last:?}")
    };
    assert!(last.within_lease, "it ended in time");
    assert!(
        session
            .attempt_frames
            .iter()
            .all(|frame| frame.token.is_none())
    );
    assert_eq!(session.output(), b"one\ntwo\n");
    assert_eq!(complete.final_offset, 8);
    assert_unbroken(&session, 1);
}

#[tokio::test]
async fn a_lease_that_ends_without_a_daemon_is_reported_by_the_next_one() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let script = "(setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" &); \
                  trap '' TERM; echo up; while :; do sleep 1; done";
    let mut dispatch = shell(script);
    dispatch.granted_ms = 2_000;
    session.renewal = Some(Duration::from_secs(2));
    session.run(&attempt, dispatch).await;
    session.until_output().await;
    let clock = Clock::boot();
    first.kill().await;
    let killed = clock.now();
    assert!(pids_of_attempt(&attempt).len() >= 3);
    wait_until_gone(&attempt).await;
    let took = killed.until(clock.now());
    assert!(
        took < Duration::from_secs(2) + PROCESS_SCAN_MARGIN,
        "{took:?}"
    );
    drop(session);
    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(
        active_attempt(&hello, &attempt).state(),
        ActiveState::Finished
    );
    session
        .welcome(vec![adopt_settlement(&attempt, 0, 0)])
        .await;
    let receipt = until_receipt(&mut session).await;
    assert!(receipt.group_empty && receipt.killed && receipt.process_started);
    assert_eq!(receipt.loss(), LossCause::LeaseEnded);
    assert_eq!(session.terminal_count(), 0, "a result was invented");
}

#[tokio::test]
async fn an_unconfirmed_attempt_is_returned_after_a_restart() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let proof = home.path().join("ran");
    let script = format!("touch {}", proof.display());
    session.dispatch(&attempt, shell(&script)).await;
    session
        .until_frame(|body| matches!(body, Body::Accepted(_)))
        .await;
    first.kill().await;
    drop(session);
    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(
        active_attempt(&hello, &attempt).state(),
        ActiveState::Finished
    );
    session
        .welcome(vec![adopt_settlement(&attempt, 1, 0)])
        .await;
    let frame = session.next_attempt_frame().await;
    let Some(Body::Rejected(rejected)) = &frame.body else {
        panic!("{frame:?}")
    };
    assert_eq!(rejected.code(), RejectCode::NotConfirmed);
    assert_eq!(frame.control_seq, 2);
    session.ack(&attempt, frame.control_seq, 0).await;
    assert!(!proof.exists());
}

#[tokio::test]
async fn after_a_reboot_attempts_end_without_waiting() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session
        .run(&attempt, shell("echo up; exec sleep 600"))
        .await;
    session.until_output().await;
    let child = session.pid();
    let shim = shim_of(child);
    first.kill().await;
    drop(session);
    // What a reboot does: all processes are gone, and there is no report.
    signal(shim, Signal::KILL);
    wait_until_gone(&attempt).await;
    home.set_boot_id("the second boot");
    let _second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.boot_id, "the second boot");
    assert_eq!(
        active_attempt(&hello, &attempt).state(),
        ActiveState::Finished
    );
    session
        .welcome(vec![adopt_settlement(&attempt, 0, 0)])
        .await;
    let receipt = until_receipt(&mut session).await;
    // Only the relay can decide whether that was a reboot or a copy of the directory: it has
    // the boot ids.
    assert!(!receipt.group_empty && receipt.process_started && !receipt.killed);
    assert_eq!(
        session.output(),
        b"up\n",
        "output before the reboot is lost"
    );
}

#[tokio::test]
async fn a_daemon_with_attempts_waits_for_a_valid_token() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let first = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session
        .run(&attempt, shell("echo up; exec sleep 600"))
        .await;
    session.until_output().await;
    first.kill().await;
    drop(session);
    let token = home.path().join("token");
    std::fs::write(&token, "btn_other\n").unwrap();
    let mut second = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    second
        .wait_for_status(|status| {
            status
                .disconnect_reason
                .contains("no longer accepts this token")
        })
        .await;
    assert_eq!(
        pids_of_attempt(&attempt).len(),
        2,
        "shim and child are alive"
    );
    std::fs::write(&token, "btn_test\n").unwrap();
    let (_session, hello) = relay.accept().await;
    assert_eq!(
        active_attempt(&hello, &attempt).state(),
        ActiveState::Running
    );
}

#[tokio::test]
async fn a_bad_entry_in_the_data_directory_does_not_stop_the_daemon() {
    let home = DaemonHome::new();
    let mut relay = FakeRelay::start().await;
    let attempts = home.path().join("data/attempts");
    std::fs::create_dir_all(&attempts).unwrap();
    std::fs::write(attempts.join(uuid::Uuid::now_v7().to_string()), "a file").unwrap();
    let _daemon = LinkTestDaemon::start_at(&home, &relay.url, |_| {});
    let (_session, hello) = relay.accept().await;
    assert!(hello.active.is_empty());
}

#[tokio::test]
async fn a_shim_inherits_nothing_of_the_daemons_environment() {
    let mut relay = FakeRelay::start().await;
    let _daemon = LinkTestDaemon::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session
        .run(&attempt, shell("echo up; exec sleep 600"))
        .await;
    session.until_output().await;
    let shim = shim_of(session.pid());
    let environment = std::fs::read(format!("/proc/{shim}/environ")).unwrap();
    let names: Vec<_> = environment
        .split(|byte| *byte == 0)
        .filter(|entry| !entry.is_empty())
        .map(|entry| String::from_utf8_lossy(entry).into_owned())
        .filter(|entry| !entry.starts_with("BATON_") && !entry.starts_with("MIMALLOC_"))
        .collect();
    assert!(names.is_empty(), "{names:?}");
}
