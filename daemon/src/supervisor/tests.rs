//! The supervisor without a relay: a task of an attempt dies in the middle of its work.

use std::path::Path;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptRef, Dispatch, LeaseToken, TaskError};
use bytes::Bytes;

use super::*;
use crate::attempt::AttemptPlan;
use crate::held::Offer;
use crate::outbox::Record;
use crate::process::{ATTEMPT_MARKER, ChildSpec};
use crate::timers::Deadlines;

const PATIENCE: Duration = Duration::from_secs(20);

fn supervisor(dir: &Path) -> Supervisor {
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
        work_dir: dir.to_owned(),
        drain: Duration::from_secs(15),
        health: None,
        adopt_orphans: false,
        clock: Clock::boot(),
    };
    Supervisor::new(
        &config,
        Identity::open(dir).unwrap(),
        Storage::open(dir).unwrap(),
        Spawner::start().unwrap(),
        watch::Sender::new(None),
        watch::Sender::new(DaemonStatus::new("", 1, Moment::from_millis(0))),
    )
    .unwrap()
}

/// Each attempt has an id of its own: the sweep finds processes by it, also those of other tests.
fn plan(script: &str) -> AttemptPlan {
    let attempt_id = uuid::Uuid::now_v7().to_string();
    let environment = BTreeMap::from([
        ("PATH".into(), std::env::var_os("PATH").unwrap_or_default()),
        (ATTEMPT_MARKER.into(), attempt_id.clone().into()),
    ]);
    AttemptPlan {
        attempt_id,
        child: ChildSpec {
            program: "sh".into(),
            args: vec!["-c".into(), script.into()],
            cwd: "/".into(),
            environment,
        },
        prompt: Bytes::new(),
        deadlines: Deadlines::default(),
        cleanup_term: Duration::from_secs(2),
    }
}

/// Takes the attempt and starts it, as Dispatch and LeaseConfirmed would.
async fn begin(supervisor: &mut Supervisor, plan: AttemptPlan) -> String {
    let id = plan.attempt_id.clone();
    let attempt = AttemptRef {
        attempt_id: id.clone(),
        ..AttemptRef::default()
    };
    let offer = Offer {
        place: supervisor.place(&attempt, &Dispatch::default(), &plan),
        attempt,
        token: LeaseToken::default(),
        plan,
        accept: Duration::from_secs(10),
    };
    let held = Held::accept(offer, &supervisor.clock);
    supervisor.held.insert(id.clone(), held);
    let granted = Duration::from_secs(600);
    let early = supervisor.held.get_mut(&id).unwrap();
    let start = early.confirm(None, granted, &supervisor.clock);
    assert!(start.is_none(), "the disk does not have it");
    while !supervisor.held[&id].outbox.log().is_begun() {
        disk_turn(supervisor).await;
    }
    let held = supervisor.held.get_mut(&id).unwrap();
    let start = held.confirm(None, granted, &supervisor.clock);
    supervisor.start(start.expect("it was not started before"));
    id
}

async fn next_event(supervisor: &mut Supervisor) -> bool {
    let event = tokio::time::timeout(PATIENCE, supervisor.incoming.recv());
    let (id, event) = event.await.expect("nothing happens").unwrap();
    let is_output = matches!(event, AttemptEvent::Output(_));
    supervisor.on_attempt(&id, event);
    is_output
}

async fn kill_task(supervisor: &mut Supervisor) {
    supervisor.tasks.abort_all();
    let over = tokio::time::timeout(PATIENCE, supervisor.tasks.join_next_with_id());
    let over = over.await.expect("the task lives on").unwrap();
    assert!(over.is_err());
    supervisor.on_task_over(over);
}

/// Saves what waits and takes the disk's next answer.
async fn disk_turn(supervisor: &mut Supervisor) {
    supervisor.save();
    let report = tokio::time::timeout(PATIENCE, supervisor.writer.reports.recv());
    let report = report.await.expect("the disk says nothing").unwrap();
    supervisor.on_report(report);
}

async fn last_word(supervisor: &mut Supervisor, id: &str) -> TaskError {
    loop {
        let held = supervisor.held.get_mut(id).unwrap();
        assert!(!held.holds_slot());
        while let Some(record) = held.outbox.next_unsent().cloned() {
            held.outbox.mark_sent();
            if let Record::Control { body, .. } = record
                && let Some(Body::Error(error)) = body.body
            {
                return error;
            }
        }
        disk_turn(supervisor).await;
    }
}

#[tokio::test]
async fn an_attempt_whose_task_died_is_swept_and_ends_as_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(dir.path());
    // The escapee left the group, so only its marker leads to it.
    let escapee = "setsid sh -c 'echo up; sleep 600; true' & wait";
    let id = begin(&mut supervisor, plan(escapee)).await;
    while !next_event(&mut supervisor).await {}
    kill_task(&mut supervisor).await;
    assert_eq!(supervisor.free_slots(), 0, "nothing is known to be dead");
    while supervisor.held[&id].holds_slot() {
        next_event(&mut supervisor).await;
    }
    assert_eq!(supervisor.free_slots(), 1);
    let error = last_word(&mut supervisor, &id).await;
    assert_eq!(error.failure_code, "spawn_failed");
    let receipt = error.receipt.unwrap();
    assert!(receipt.group_empty && receipt.killed && receipt.process_started);
    assert!(receipt.swept_processes >= 1);
}

#[tokio::test]
async fn when_the_sweep_dies_too_the_slot_is_free_and_nothing_is_proved() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(dir.path());
    let id = begin(&mut supervisor, plan("sleep 600")).await;
    kill_task(&mut supervisor).await;
    kill_task(&mut supervisor).await;
    assert_eq!(supervisor.free_slots(), 1);
    let receipt = last_word(&mut supervisor, &id).await.receipt.unwrap();
    assert!(!receipt.group_empty);
    assert_eq!(receipt.prompt_written, Some(true));
}
