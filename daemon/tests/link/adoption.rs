//! Daemons that are killed and come back, shims that are killed or stuck, machines that are started again.

use std::path::Path;
use std::time::Duration;

use baton_daemon::Clock;
use baton_daemon::shim::{REPORT, read_report};
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    ActiveAttempt, ActiveState, Adopt, AttemptRef, Hello, Keep, RejectCode, Settlement,
    TerminationReceipt,
};
use rustix::process::Signal;

use crate::daemon::{Home, Running, is_alive, of_attempt, shim_of, signal, until_gone};
use crate::relay::{PATIENCE, Relay, Session, attempt, shell};
use crate::traced::{let_go, trace};

/// Of a look at the process table, and of a busy machine.
const LOOK: Duration = Duration::from_secs(1);

/// A child's command that waits for a file and says what is in it.
fn awaiting(file: &Path) -> String {
    format!(
        "until [ -e {0} ]; do sleep 0.02; done; cat {0}",
        file.display()
    )
}

/// What such a child waits for, whole at once.
fn tell(file: &Path, text: &str) {
    let draft = file.with_extension("draft");
    std::fs::write(&draft, text).expect("a file can be written");
    std::fs::rename(draft, file).expect("a file can be renamed");
}

fn of<'a>(hello: &'a Hello, attempt: &AttemptRef) -> &'a ActiveAttempt {
    let mut active = hello.active.iter();
    let found = active.find(|active| active.r#ref.as_ref() == Some(attempt));
    found.unwrap_or_else(|| panic!("not listed: {hello:?}"))
}

fn keep(attempt: &AttemptRef, acked: u64, offset: u64, granted: Option<Duration>) -> Settlement {
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

fn adopt(attempt: &AttemptRef, acked: u64, offset: u64) -> Settlement {
    Settlement {
        attempt_id: attempt.attempt_id.clone(),
        decision: Some(Decision::Adopt(Adopt {
            acked_control_seq: acked,
            acked_offset: offset,
        })),
    }
}

async fn until_receipt(session: &mut Session) -> TerminationReceipt {
    let frame = session.until(|body| matches!(body, Body::Receipt(_))).await;
    match frame.body {
        Some(Body::Receipt(receipt)) => receipt,
        other => panic!("{other:?}"),
    }
}

/// The numbers of all control frames that came, which must follow each other from `first` on.
fn assert_unbroken(session: &Session, first: u64) {
    let numbers: Vec<u64> = session
        .control_after(0)
        .iter()
        .map(|(seq, _)| *seq)
        .collect();
    let wanted: Vec<u64> = (first..first + numbers.len() as u64).collect();
    assert_eq!(numbers, wanted);
}

#[tokio::test]
async fn a_killed_daemon_is_followed_by_one_that_goes_on_where_it_stopped() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let (second, third) = (home.path().join("second"), home.path().join("third"));
    let script = format!(
        "echo one; echo first >&2; {}; {}; echo last >&2; exit 3",
        awaiting(&second),
        awaiting(&third)
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
    // Said while no daemon is there.
    tell(&second, "two\n");

    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.daemon_id, relay.daemon_id);
    let active = of(&hello, &attempt);
    assert_eq!(active.state(), ActiveState::Running);
    let token = active.token.as_ref().expect("the shim has kept the token");
    assert_eq!(token.value[..], [7; 32]);
    assert!(is_alive(pid) && active.last_control_seq >= last_seen);
    let granted = Some(Duration::from_secs(30));
    session
        .welcome(vec![keep(&attempt, last_seen, 0, granted)])
        .await;
    while session.output_bytes() < 14 {
        session.until_output().await;
    }
    tell(&third, "three\n");
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
    assert_eq!(seen, wanted, "no gap and no duplicate");
    assert_eq!(error.final_offset, output.len() as u64);
    assert_unbroken(&session, last_seen + 1);
    session
        .ack(&attempt, last.control_seq, error.final_offset)
        .await;
    until_gone(&attempt).await;
}

#[tokio::test]
async fn what_ended_while_no_daemon_was_there_is_told_and_judged_by_when_it_ended() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let go_on = home.path().join("go-on");
    let mut dispatch = shell(&format!("echo one; {}", awaiting(&go_on)));
    dispatch.granted_ms = 1_500;
    session.renewal = Some(Duration::from_millis(1_500));
    session.run(&attempt, dispatch).await;
    session.until_output().await;
    let clock = Clock::boot();
    first.kill().await;
    let killed = clock.now();
    drop(session);
    tell(&go_on, "two\n");
    until_gone(&attempt).await;
    // The lease is over when the next daemon comes.
    clock
        .sleep_until(killed.after(Duration::from_millis(1_600)))
        .await;
    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    let active = of(&hello, &attempt);
    assert_eq!(active.state(), ActiveState::Finished, "its end is known");
    assert!(active.token.is_none(), "the token died with its shim");
    session.welcome(vec![adopt(&attempt, 0, 0)]).await;
    let last = session.until_terminal().await;
    let Some(Body::Complete(complete)) = &last.body else {
        panic!("{last:?}")
    };
    assert!(last.within_lease, "it ended in time");
    assert!(session.tap.iter().all(|frame| frame.token.is_none()));
    assert_eq!(session.output(), b"one\ntwo\n");
    assert_eq!(complete.final_offset, 8);
    assert_unbroken(&session, 1);
}

#[tokio::test]
async fn without_a_daemon_the_lease_ends_everything_and_the_next_daemon_brings_the_receipt() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
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
    assert!(of_attempt(&attempt).len() >= 3);
    until_gone(&attempt).await;
    let took = killed.until(clock.now());
    assert!(took < Duration::from_secs(2) + LOOK, "{took:?}");
    drop(session);
    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(of(&hello, &attempt).state(), ActiveState::Finished);
    session.welcome(vec![adopt(&attempt, 0, 0)]).await;
    let receipt = until_receipt(&mut session).await;
    assert!(receipt.group_empty && receipt.killed && receipt.process_started);
    assert_eq!(session.terminals(), 0, "no result was made up");
}

#[tokio::test]
async fn an_attempt_that_was_never_confirmed_ends_as_not_confirmed_after_a_restart() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let proof = home.path().join("ran");
    let script = format!("touch {}", proof.display());
    session.dispatch(&attempt, shell(&script)).await;
    session
        .until(|body| matches!(body, Body::Accepted(_)))
        .await;
    first.kill().await;
    drop(session);
    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(of(&hello, &attempt).state(), ActiveState::Finished);
    session.welcome(vec![adopt(&attempt, 1, 0)]).await;
    let frame = session.attempt_frame().await;
    let Some(Body::Rejected(rejected)) = &frame.body else {
        panic!("{frame:?}")
    };
    assert_eq!(rejected.code(), RejectCode::NotConfirmed);
    assert_eq!(frame.control_seq, 2);
    session.ack(&attempt, frame.control_seq, 0).await;
    assert!(!proof.exists());
}

#[tokio::test]
async fn a_killed_shim_leaves_no_process_and_only_a_receipt_is_said() {
    let mut relay = Relay::start().await;
    let mut daemon = Running::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let script = "(setsid sleep 600 &); trap '' TERM; echo up; while :; do sleep 1; done";
    session.run(&attempt, shell(script)).await;
    session.until_output().await;
    signal(shim_of(session.pid()), Signal::KILL);
    let receipt = until_receipt(&mut session).await;
    assert!(of_attempt(&attempt).is_empty());
    assert!(receipt.group_empty && receipt.process_started);
    assert_eq!((receipt.exit_code, receipt.signal), (None, None));
    assert_eq!(session.terminals(), 0);
    daemon.until(|status| status.running == 0).await;
}

/// A process that no look at environments finds, and its number as the attempt's output.
const HIDDEN: &str =
    "(env -i setsid sh -c 'echo $$; exec sleep 600' &); while :; do sleep 600; done";

async fn hidden(session: &mut Session) -> u32 {
    session.until_output().await;
    let text = String::from_utf8(session.output()).expect("a number");
    text.trim().parse().expect("a number")
}

#[tokio::test]
async fn nobody_hides_from_the_daemon_when_its_shim_is_killed() {
    let mut relay = Relay::start().await;
    let _daemon = Running::start(&relay.url);
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell(HIDDEN)).await;
    let hidden = hidden(&mut session).await;
    assert!(!of_attempt(&attempt).contains(&hidden) && is_alive(hidden));
    signal(shim_of(session.pid()), Signal::KILL);
    let receipt = until_receipt(&mut session).await;
    assert!(receipt.group_empty && receipt.killed, "{receipt:?}");
    assert!(!is_alive(hidden));
}

#[tokio::test]
async fn of_a_shim_that_an_earlier_daemon_started_nothing_is_proved() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    session.run(&attempt, shell(HIDDEN)).await;
    let hidden = hidden(&mut session).await;
    let shim = shim_of(session.pid());
    first.kill().await;
    drop(session);
    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, _) = relay.accept().await;
    let granted = Some(Duration::from_secs(30));
    session.welcome(vec![keep(&attempt, 0, 0, granted)]).await;
    signal(shim, Signal::KILL);
    let receipt = until_receipt(&mut session).await;
    assert!(
        receipt.process_started && !receipt.group_empty,
        "{receipt:?}"
    );
    assert!(of_attempt(&attempt).is_empty(), "what can be seen is dead");
    if is_alive(hidden) {
        signal(hidden, Signal::KILL);
    }
}

#[tokio::test]
async fn a_stuck_shim_is_listed_as_unreachable_and_goes_on_when_it_answers() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let (stuck, well) = (attempt(), attempt());
    let go_on = home.path().join("go-on");
    let script = format!("echo one; {}", awaiting(&go_on));
    session.run(&stuck, shell(&script)).await;
    session.until_output().await;
    let shim = shim_of(session.pid());
    session.run(&well, shell("echo up; sleep 600")).await;
    session.until_output().await;
    signal(shim, Signal::STOP);
    first.kill().await;
    drop(session);
    let clock = Clock::boot();
    let from = clock.now();
    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    let took = from.until(clock.now());
    assert!(took < Duration::from_secs(2) + LOOK, "{took:?}");
    let (missing, found) = (of(&hello, &stuck), of(&hello, &well));
    assert_eq!(missing.state(), ActiveState::Unreachable);
    assert!(missing.token.is_none());
    assert_eq!(found.state(), ActiveState::Running);
    let granted = Some(Duration::from_secs(30));
    session
        .welcome(vec![keep(&stuck, 0, 0, None), keep(&well, 0, 0, granted)])
        .await;
    let names = |session: &Session, attempt: &AttemptRef| {
        let newest = session.heartbeats.last();
        newest.is_some_and(|beat| {
            beat.renew
                .iter()
                .any(|entry| entry.attempt_id == attempt.attempt_id)
        })
    };
    while session.heartbeats.is_empty() {
        session.frame().await.expect("the stream stands");
    }
    assert!(names(&session, &well) && !names(&session, &stuck));
    signal(shim, Signal::CONT);
    while !names(&session, &stuck) {
        session.frame().await.expect("the stream stands");
    }
    tell(&go_on, "two\n");
    let last = session.until_terminal().await;
    assert_eq!(last.r#ref.as_ref(), Some(&stuck));
    assert!(matches!(last.body, Some(Body::Complete(_))), "{last:?}");
}

#[tokio::test]
async fn a_shim_that_stays_stuck_is_killed_with_all_it_started_before_its_lease_ends() {
    for restarts in [false, true] {
        let home = Home::new();
        let mut relay = Relay::start().await;
        let mut daemon = Running::start_at(&home, &relay.url, |_| {});
        let mut session = relay.welcome().await;
        let attempt = attempt();
        let script = "(setsid sleep 600 &); trap '' TERM; echo up; while :; do sleep 1; done";
        let mut dispatch = shell(script);
        dispatch.granted_ms = 3_000;
        session.renewal = Some(Duration::from_secs(3));
        session.run(&attempt, dispatch).await;
        session.until_output().await;
        let child = session.pid();
        signal(shim_of(child), Signal::STOP);
        // No renewal is answered from now on.
        session.renewal = None;
        let clock = Clock::boot();
        let from = clock.now();
        if restarts {
            daemon.kill().await;
            drop(session);
            daemon = Running::start_at(&home, &relay.url, |_| {});
            let (mut next, hello) = relay.accept().await;
            assert_eq!(of(&hello, &attempt).state(), ActiveState::Unreachable);
            next.welcome(vec![keep(&attempt, 0, 0, None)]).await;
            session = next;
        }
        let dead = async {
            while is_alive(child) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, dead)
            .await
            .expect("the child outlives its lease");
        let took = from.until(clock.now());
        assert!(
            took < Duration::from_secs(3) + LOOK,
            "restarts {restarts}: {took:?}"
        );
        until_gone(&attempt).await;
        let receipt = receipt_over_streams(&mut relay, session, &attempt).await;
        // Of a shim that is not its own child a daemon can prove nothing.
        assert!(
            receipt.group_empty != restarts && receipt.killed,
            "restarts {restarts}: {receipt:?}"
        );
        drop(daemon);
    }
}

#[tokio::test]
async fn a_shim_that_has_reported_and_still_pursues_somebody_is_not_taken_for_running() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
    let mut session = relay.welcome().await;
    let attempt = attempt();
    let mut dispatch = shell("setsid sleep 600 & echo $!; wait");
    dispatch.granted_ms = 2_000;
    session.renewal = Some(Duration::from_secs(2));
    session.run(&attempt, dispatch).await;
    let survivor = hidden(&mut session).await.cast_signed();
    trace(survivor);
    let shim = shim_of(session.pid());
    first.kill().await;
    drop(session);
    let place = home.path().join("data/attempts").join(&attempt.attempt_id);
    let reported = async {
        while read_report(&place.join(REPORT)).expect("a file").is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, reported)
        .await
        .expect("no report");
    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(of(&hello, &attempt).state(), ActiveState::Finished);
    session.welcome(vec![adopt(&attempt, 0, 0)]).await;
    let receipt = until_receipt(&mut session).await;
    assert!(receipt.killed && !receipt.group_empty, "{receipt:?}");
    assert!(is_alive(shim), "it has somebody to look after");
    let_go(survivor);
    until_gone(&attempt).await;
}

/// Heartbeats that nobody answers end streams, so the receipt may come on a later one.
async fn receipt_over_streams(
    relay: &mut Relay,
    mut session: Session,
    attempt: &AttemptRef,
) -> TerminationReceipt {
    loop {
        while let Some(frame) = session.frame().await {
            if let baton_proto::v1::daemon_frame::Frame::Attempt(frame) = frame
                && let Some(Body::Receipt(receipt)) = frame.body
            {
                return receipt;
            }
        }
        let (next, hello) = relay.accept().await;
        session = next;
        let decision = match of(&hello, attempt).state() {
            ActiveState::Finished => adopt(attempt, 0, 0),
            _ => keep(attempt, 0, 0, None),
        };
        session.welcome(vec![decision]).await;
    }
}

#[tokio::test]
async fn after_a_reboot_nothing_is_alive_and_nothing_is_waited_for() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
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
    // What a reboot does: all processes are gone, and nobody has written a report.
    signal(shim, Signal::KILL);
    until_gone(&attempt).await;
    home.boot("the second boot");
    let _second = Running::start_at(&home, &relay.url, |_| {});
    let (mut session, hello) = relay.accept().await;
    assert_eq!(hello.boot_id, "the second boot");
    assert_eq!(of(&hello, &attempt).state(), ActiveState::Finished);
    session.welcome(vec![adopt(&attempt, 0, 0)]).await;
    let receipt = until_receipt(&mut session).await;
    // Whether that was a reboot or a copy of the directory is for the relay to say: it knows the boot ids.
    assert!(!receipt.group_empty && receipt.process_started && !receipt.killed);
    assert_eq!(
        session.output(),
        b"up\n",
        "what was said before is not lost"
    );
}

#[tokio::test]
async fn a_daemon_with_attempts_waits_for_a_credential_that_is_taken() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let first = Running::start_at(&home, &relay.url, |_| {});
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
    let mut second = Running::start_at(&home, &relay.url, |_| {});
    second
        .until(|status| status.trouble.contains("no longer takes this token"))
        .await;
    assert_eq!(of_attempt(&attempt).len(), 2, "shim and child live on");
    std::fs::write(&token, "btn_test\n").unwrap();
    let (_session, hello) = relay.accept().await;
    assert_eq!(of(&hello, &attempt).state(), ActiveState::Running);
}

#[tokio::test]
async fn one_bad_entry_in_the_data_directory_stops_no_daemon() {
    let home = Home::new();
    let mut relay = Relay::start().await;
    let attempts = home.path().join("data/attempts");
    std::fs::create_dir_all(&attempts).unwrap();
    std::fs::write(attempts.join(uuid::Uuid::now_v7().to_string()), "a file").unwrap();
    let _daemon = Running::start_at(&home, &relay.url, |_| {});
    let (_session, hello) = relay.accept().await;
    assert!(hello.active.is_empty());
}

#[tokio::test]
async fn a_shim_has_nothing_of_its_daemons_environment() {
    let mut relay = Relay::start().await;
    let _daemon = Running::start(&relay.url);
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
