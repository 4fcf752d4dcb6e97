//! The supervisor without a relay: the task of an attempt dies during its work. A script that
//! never answers replaces the shim.

use std::path::Path;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptRef, Dispatch, LeaseToken, TaskError, daemon_frame};
use bytes::Bytes;
use tokio_stream::StreamExt;

use super::dispatch::new_outbox_location;
use super::*;
use crate::attempt::{AttemptPlan, ChildStdin};
use crate::config::KERNEL_BOOT_ID_FILE;
use crate::deadlines::DeadlineLimits;
use crate::link::link_session::LinkSession;
use crate::process::ChildSpec;
use crate::shim::client::ShimProgram;
use crate::supervised_attempt::{AcceptedDispatch, SupervisedAttempt};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(600);
const ONE_MILLISECOND: Duration = Duration::from_millis(1);

fn supervisor(dir: &Path, shim: &str) -> Supervisor {
    supervisor_on(Clock::boot(), dir, shim)
}

fn supervisor_on(clock: Clock, dir: &Path, shim: &str) -> Supervisor {
    let environment = AttemptEnvironment {
        shim: ShimProgram {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), shim.into()],
            environment: Vec::new(),
        },
        daemon_id: String::new(),
        instance_id: String::new(),
        boot_id: String::new(),
        daemon_name: String::new(),
        control_groups: None,
        clock: clock.clone(),
    };
    let config = DaemonConfig {
        relay: "http://127.0.0.1:1".into(),
        token_file: dir.join("token"),
        ca_file: None,
        data_dir: dir.to_owned(),
        name: "worker".into(),
        slots: 1,
        labels: BTreeMap::new(),
        capabilities: Vec::new(),
        agents: BTreeMap::new(),
        roots: BTreeMap::new(),
        work_dir: dir.to_owned(),
        limits: crate::config::ResourceLimits::default(),
        drain: Duration::from_secs(15),
        lease_extension: Duration::ZERO,
        health: None,
        shim: environment.shim.clone(),
        tools_program: "/bin/false".into(),
        boot_id_file: KERNEL_BOOT_ID_FILE.into(),
        adopt_orphans: false,
        clock,
    };
    Supervisor::new(
        &config,
        DaemonIdentity::open(dir, Path::new(KERNEL_BOOT_ID_FILE)).unwrap(),
        DaemonStorage::open(dir).unwrap(),
        environment,
        BTreeMap::new(),
        StatusChannels {
            reconnect_urgency: watch::Sender::new(ReconnectUrgency::default()),
            status: watch::Sender::new(DaemonStatus::new("", 1, BootTime::from_millis(0))),
        },
    )
    .unwrap()
}

/// Each attempt has its own id: the sweep finds processes by it, also those of other tests.
fn plan() -> AttemptPlan {
    AttemptPlan {
        attempt_id: uuid::Uuid::now_v7().to_string(),
        task_id: String::new(),
        workspace: crate::workspace::WorkspacePlan::in_directory(Path::new("/")),
        child: ChildSpec {
            program: "true".into(),
            args: Vec::new(),
            cwd: "/".into(),
            environment: BTreeMap::new(),
            control_group: None,
        },
        stdin: ChildStdin::Prompt(Bytes::new()),
        deadlines: DeadlineLimits::default(),
        cleanup_term: Duration::from_secs(2),
        tools: None,
        required_files: None,
        resume: None,
    }
}

/// Accepts the attempt and starts it, as Dispatch and LeaseConfirmed would.
async fn start_confirmed_attempt(supervisor: &mut Supervisor, plan: AttemptPlan) -> String {
    let id = plan.attempt_id.clone();
    let attempt = AttemptRef {
        attempt_id: id.clone(),
        ..AttemptRef::default()
    };
    let offer = AcceptedDispatch {
        outbox_location: new_outbox_location(
            &supervisor.identity,
            &attempt,
            &Dispatch::default(),
            &plan,
        ),
        attempt,
        token: LeaseToken::default(),
        plan,
        confirm_within: Duration::from_secs(10),
        conversation: None,
    };
    let attempt_entry = SupervisedAttempt::accept(offer, &supervisor.clock);
    supervisor.attempts.insert(&id, attempt_entry);
    let granted = LEASE;
    let early = supervisor.attempts.get_mut(&id).unwrap();
    let start = early.confirm_lease(None, granted, &supervisor.clock);
    assert!(start.is_none(), "it is not stored yet");
    while !supervisor.attempts.get(&id).unwrap().is_stored() {
        run_disk_round(supervisor).await;
    }
    let attempt_entry = supervisor.attempts.get_mut(&id).unwrap();
    let start = attempt_entry.confirm_lease(None, granted, &supervisor.clock);
    supervisor.start_attempt(start.expect("it was not started before"));
    id
}

async fn next_event(supervisor: &mut Supervisor) {
    let event = tokio::time::timeout(TEST_TIMEOUT, supervisor.attempt_events.recv());
    let (id, event) = event.await.expect("no event comes").unwrap();
    supervisor.on_attempt_event(&id, event);
}

async fn wait_for_file(path: &Path) {
    let there = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, there)
        .await
        .expect("the script was not started");
}

async fn abort_attempt_task(supervisor: &mut Supervisor) {
    supervisor.tasks.abort_all();
    let joined = tokio::time::timeout(TEST_TIMEOUT, supervisor.tasks.join_next());
    let joined = joined.await.expect("the task does not end").unwrap();
    assert!(joined.is_err());
    supervisor.on_task_ended(joined);
}

/// Submits waiting jobs and applies the writer's next report.
async fn run_disk_round(supervisor: &mut Supervisor) {
    supervisor.submit_jobs();
    let report = tokio::time::timeout(TEST_TIMEOUT, supervisor.disk.next_report());
    let report = report.await.expect("the writer does not report").unwrap();
    supervisor.on_writer_report(report);
}

async fn terminal_error(supervisor: &mut Supervisor, id: &str) -> TaskError {
    loop {
        let attempt_entry = supervisor.attempts.get_mut(id).unwrap();
        assert!(!attempt_entry.uses_slot());
        while let Some(frame) = attempt_entry.next_frame(supervisor.clock.now()) {
            attempt_entry.mark_sent();
            if let Some(daemon_frame::Frame::Attempt(frame)) = frame.frame
                && let Some(Body::Error(error)) = frame.body
            {
                return error;
            }
        }
        run_disk_round(supervisor).await;
    }
}

#[tokio::test]
async fn an_attempt_whose_task_panicked_is_swept_and_ends_as_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let started_file = dir.path().join("up");
    // Only its marker leads to the process that escaped.
    let script = format!(
        "setsid sh -c 'touch {}; sleep 600; true' & wait",
        started_file.display()
    );
    let mut supervisor = supervisor(dir.path(), &script);
    let id = start_confirmed_attempt(&mut supervisor, plan()).await;
    wait_for_file(&started_file).await;
    abort_attempt_task(&mut supervisor).await;
    assert_eq!(
        supervisor.attempts.free_slots(),
        0,
        "its processes may be alive"
    );
    let urgency = supervisor.attempts.reconnect_urgency();
    assert!(urgency.earliest_lease_limit.is_some() && urgency.max_result_delay.is_none());
    while supervisor.attempts.get(&id).unwrap().uses_slot() {
        next_event(&mut supervisor).await;
    }
    assert_eq!(supervisor.attempts.free_slots(), 1);
    let urgency = supervisor.attempts.reconnect_urgency();
    assert!(urgency.earliest_lease_limit.is_none() && urgency.max_result_delay.is_some());
    let error = terminal_error(&mut supervisor, &id).await;
    assert_eq!(error.failure_code, "spawn_failed");
    let receipt = error.receipt.unwrap();
    // It was found by its environment, which proves nothing about others.
    assert!(!receipt.group_empty && receipt.killed && receipt.process_started);
    assert!(receipt.swept_processes >= 1);
}

#[tokio::test]
async fn when_the_cleanup_task_dies_the_slot_is_free_without_proof() {
    let dir = tempfile::tempdir().unwrap();
    let started_file = dir.path().join("up");
    // The script ends by itself when the directory of the test is removed.
    let script = format!(
        "touch {}; while [ -e {0} ]; do sleep 1; done",
        started_file.display()
    );
    let mut supervisor = supervisor(dir.path(), &script);
    let id = start_confirmed_attempt(&mut supervisor, plan()).await;
    wait_for_file(&started_file).await;
    abort_attempt_task(&mut supervisor).await;
    abort_attempt_task(&mut supervisor).await;
    assert_eq!(supervisor.attempts.free_slots(), 1);
    let receipt = terminal_error(&mut supervisor, &id).await.receipt.unwrap();
    assert!(!receipt.group_empty);
    assert_eq!(receipt.prompt_written, Some(true));
}

#[tokio::test]
async fn a_running_attempt_may_send_until_its_lease_ends() {
    let dir = tempfile::tempdir().unwrap();
    let started_file = dir.path().join("up");
    // The script ends by itself when the directory of the test is removed.
    let script = format!(
        "touch {}; while [ -e {0} ]; do sleep 1; done",
        started_file.display()
    );
    let clock = Clock::manual(BootTime::from_millis(1_000));
    let mut supervisor = supervisor_on(clock.clone(), dir.path(), &script);
    let id = start_confirmed_attempt(&mut supervisor, plan()).await;
    wait_for_file(&started_file).await;
    while !supervisor.attempts.get(&id).unwrap().has_unsent() {
        run_disk_round(&mut supervisor).await;
    }
    let (session, mut outgoing) = LinkSession::new(1, CancellationToken::new());
    supervisor.relay.open(session, LEASE, false, clock.now());
    for (by, may_send) in [(LEASE - ONE_MILLISECOND, true), (ONE_MILLISECOND, false)] {
        clock.advance(by);
        let attempt = supervisor.attempts.get_mut(&id).unwrap();
        attempt.resend_unacked();
        supervisor.attempts.enqueue(&id);
        supervisor.send_frames();
        let frame = tokio::time::timeout(Duration::ZERO, outgoing.next()).await;
        assert_eq!(frame.is_ok(), may_send, "{frame:?}");
    }
}
