//! How attempts end: by themselves, by an order, by their lease; and that no process is left.

use std::process::Stdio;
use std::time::Duration;

use baton_daemon::shim::SOCKET_FILE;
use baton_proto::worker::report::How;
use baton_proto::worker::{EndedBy, from_shim, to_shim};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use crate::shim_fixture::{ShimFixture, is_dead, lease, now, shell, wait_until_dead};
use crate::traced::{detach, trace};

/// A child that ignores TERM, a grandchild in its own session, an orphan of a double fork, and
/// a process that changed its group and cleared its environment. Prints their pids.
const PROCESS_TREE_SCRIPT: &str = r#"
trap '' TERM
setsid sh -c 'trap "" TERM; while :; do sleep 600; done' & one=$!
two=$( (setsid sh -c 'trap "" TERM; echo $$; exec >/dev/null; while :; do sleep 600; done' & ) | head -n 1)
three=$( (env -i setsid sh -c 'echo $$; exec >/dev/null; exec sleep 600' & ) | head -n 1)
echo $$ $one $two $three
while :; do sleep 600; done
"#;

#[test]
fn the_end_of_a_lease_kills_the_child_and_its_descendants() {
    let mut shim = ShimFixture::start();
    let mut launch = shell(PROCESS_TREE_SCRIPT);
    launch.lease = Some(lease(
        Duration::from_millis(1_000),
        Duration::from_millis(1_300),
    ));
    let kill_at = launch.lease.unwrap().kill_at_ms;
    shim.launch(launch);
    let pids = shim.transcript(0).pids(&mut shim.wire);
    assert_eq!(pids.len(), 4);
    let report = shim.report();
    assert_eq!(report.ended_by(), EndedBy::Lease);
    assert_eq!(report.how, Some(How::Signal(9)));
    assert!(
        report.empty && report.terminated && report.killed && report.swept >= 3,
        "{report:?}"
    );
    assert!(report.over_at_ms >= kill_at);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn a_lease_ends_without_a_daemon_too() {
    let mut shim = ShimFixture::start();
    let mut launch = shell(PROCESS_TREE_SCRIPT);
    launch.lease = Some(lease(
        Duration::from_millis(1_000),
        Duration::from_millis(1_000),
    ));
    shim.launch(launch);
    let pids = shim.transcript(0).pids(&mut shim.wire);
    shim.disconnect();
    assert!(shim.wait_for_exit().success());
    assert_eq!(shim.report_on_disk().unwrap().ended_by(), EndedBy::Lease);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn a_renewed_lease_lets_the_child_go_on() {
    let mut shim = ShimFixture::start();
    let mut launch = shell("sleep 600 & echo up; wait");
    launch.lease = Some(lease(
        Duration::from_millis(400),
        Duration::from_millis(500),
    ));
    let first_end = launch.lease.unwrap().kill_at_ms;
    shim.launch(launch);
    let longer = lease(Duration::from_millis(1_500), Duration::from_millis(1_600));
    shim.wire.lease(longer);
    // An older renewal does not shorten the lease.
    shim.wire.lease(lease(Duration::ZERO, Duration::ZERO));
    let report = shim.report();
    assert!(report.exited_at_ms >= longer.term_at_ms && report.exited_at_ms > first_end);
    assert_eq!(report.lease, Some(longer));
    assert_eq!(report.ended_by(), EndedBy::Lease);
}

#[test]
fn a_stop_order_sends_term_first_and_kill_at_its_time() {
    let mut shim = ShimFixture::run(PROCESS_TREE_SCRIPT);
    let pids = shim.transcript(0).pids(&mut shim.wire);
    let ordered = now();
    shim.wire.stop(Duration::from_secs(60));
    shim.wire.stop(Duration::from_millis(300));
    let report = shim.report();
    assert_eq!(report.ended_by(), EndedBy::Order);
    assert!(report.terminated && report.killed && report.empty);
    assert!(report.over_at_ms >= ordered.after(Duration::from_millis(300)).as_millis());
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

/// An order that came too late for its grace, and a lease with a grace that is too short.
#[test]
fn term_is_sent_before_kill_however_short_the_grace_is() {
    let mut ordered = ShimFixture::run(PROCESS_TREE_SCRIPT);
    ordered.transcript(0).pids(&mut ordered.wire);
    ordered.wire.stop(Duration::ZERO);
    let report = ordered.report();
    assert!(report.terminated && report.killed && report.empty);
    let mut leased = ShimFixture::start();
    let mut launch = shell(PROCESS_TREE_SCRIPT);
    let kill_in = Duration::from_millis(1_000);
    let mut lease = lease(kill_in + Duration::from_millis(50), kill_in);
    lease.limit_ms = lease.kill_at_ms + 2_000;
    launch.lease = Some(lease);
    leased.launch(launch);
    let report = leased.report();
    assert_eq!(report.ended_by(), EndedBy::Lease);
    assert!(report.terminated && report.killed && report.empty);
}

#[test]
fn a_child_that_obeys_term_is_not_killed() {
    // One process: a second one might be between fork and exec, where the signal would be lost.
    let script = "trap 'echo bye; exit 3' TERM; echo up; while :; do :; done";
    let mut shim = ShimFixture::run(script);
    let mut transcript = shim.transcript(0);
    assert_eq!(transcript.line(&mut shim.wire), "up");
    shim.wire.stop(Duration::from_secs(60));
    let report = shim.report();
    assert_eq!(report.how, Some(How::ExitCode(3)));
    assert!(report.terminated && !report.killed && report.empty);
    assert_eq!(shim.whole_text(), "up\nbye\n");
}

#[test]
fn processes_that_a_child_leaves_get_a_grace_and_are_killed() {
    let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 600; done' & echo $!; exit 0";
    let mut shim = ShimFixture::run(script);
    let pids = shim.transcript(0).pids(&mut shim.wire);
    let report = shim.report();
    assert_eq!(
        (report.how.clone(), report.ended_by()),
        (Some(How::ExitCode(0)), EndedBy::Child)
    );
    assert!(report.empty && report.terminated && report.killed && report.swept >= 1);
    assert!(report.over_at_ms >= report.exited_at_ms + 1_000);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn the_child_of_a_killed_shim_dies_without_a_report() {
    let mut shim = ShimFixture::run("echo $$; exec sleep 600");
    let pids = shim.transcript(0).pids(&mut shim.wire);
    shim.signal(Signal::KILL);
    assert!(!shim.wait_for_exit().success());
    wait_until_dead(pids[0]);
    assert_eq!(shim.report_on_disk(), None);
    assert_eq!(shim.wire.receive(), None);
}

#[test]
fn signals_to_the_shim_have_no_effect() {
    let mut shim = ShimFixture::run("echo up; read line; echo still here");
    let mut transcript = shim.transcript(0);
    assert_eq!(transcript.line(&mut shim.wire), "up");
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::TSTP,
    ] {
        shim.signal(signal);
    }
    shim.wire.stdin(1, "go\n", true);
    assert_eq!(transcript.line(&mut shim.wire), "still here");
    assert_eq!(shim.report().how, Some(How::ExitCode(0)));
}

#[test]
fn a_daemon_that_does_not_read_delays_no_end() {
    let mut shim = ShimFixture::start();
    let mut launch = shell("while :; do seq 1000; done");
    launch.lease = Some(lease(
        Duration::from_millis(700),
        Duration::from_millis(800),
    ));
    shim.wire.send(to_shim::Message::Launch(launch));
    // The test reads none of it.
    assert!(shim.wait_for_exit().success());
    let report = shim.report_on_disk().unwrap();
    assert_eq!(report.ended_by(), EndedBy::Lease);
    assert!(report.empty);
}

#[test]
fn a_lease_that_ended_during_a_suspend_ends_the_child_at_once() {
    let mut shim = ShimFixture::start_silent(|command| {
        command.env("BENT_CLOCK", "1");
    });
    shim.wire.greet();
    shim.launch(shell(PROCESS_TREE_SCRIPT));
    let pids = shim.transcript(0).pids(&mut shim.wire);
    shim.advance_clock("3600000");
    let report = shim.report();
    assert_eq!(report.ended_by(), EndedBy::Lease);
    assert!(report.empty && report.killed && report.exited_at_ms > report.lease.unwrap().limit_ms);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn a_shim_that_panics_kills_its_processes_without_a_report() {
    let mut shim = ShimFixture::start_silent(|command| {
        command.env("BENT_CLOCK", "1").stderr(Stdio::null());
    });
    shim.wire.greet();
    shim.launch(shell(PROCESS_TREE_SCRIPT));
    let pids = shim.transcript(0).pids(&mut shim.wire);
    shim.advance_clock("for how long?");
    assert!(!shim.wait_for_exit().success());
    assert!(pids.iter().all(|pid| is_dead(*pid)));
    assert_eq!(shim.report_on_disk(), None);
}

#[test]
fn the_last_renewal_of_a_dead_daemon_counts() {
    let mut shim = ShimFixture::run("while :; do echo x; done");
    shim.wire.grown();
    let longer = lease(Duration::from_secs(3_000), Duration::from_secs(3_001));
    // The shim may notice the closed connection when it writes, before it reads.
    shim.wire.lease(longer);
    shim.disconnect();
    shim.wire = shim.connect();
    assert_eq!(shim.wire.greet().lease, Some(longer));
    shim.wire.stop(Duration::ZERO);
    shim.report();
}

#[test]
fn a_shim_that_cannot_scan_processes_still_ends_its_child() {
    let mut shim = ShimFixture::run("trap '' TERM; echo $$; while :; do sleep 600; done");
    let pids = shim.transcript(0).pids(&mut shim.wire);
    // It has more files than that open already, so it can open none to read /proc. `poll` needs a
    // limit of at least the number of files that it waits for.
    let none = Rlimit {
        current: Some(8),
        maximum: Some(8),
    };
    prlimit(Pid::from_raw(shim.pid()), Resource::Nofile, none).unwrap();
    shim.wire.stop(Duration::ZERO);
    let report = shim.report();
    assert_eq!(report.how, Some(How::Signal(9)));
    assert!(report.empty && report.killed);
    assert!(is_dead(pids[0]));
}

#[test]
fn a_shim_reports_unkillable_processes_and_goes_on_killing() {
    let mut shim = ShimFixture::run("setsid sleep 600 & echo $!; wait");
    let pids = shim.transcript(0).pids(&mut shim.wire);
    trace(pids[0]);
    shim.wire.stop(Duration::ZERO);
    let received = shim.wire.receive_until(|message| match message {
        from_shim::Message::Report(report) => Some(report),
        _ => None,
    });
    assert!(!received.empty && received.killed, "{received:?}");
    assert_eq!(shim.report_on_disk(), Some(received));
    assert_eq!(shim.wire.receive(), None);
    assert!(
        !shim.path(SOCKET_FILE).exists(),
        "the report is in its place"
    );
    assert!(!is_dead(shim.pid()), "it still has processes to kill");
    detach(pids[0]);
    assert!(shim.wait_for_exit().success());
}
