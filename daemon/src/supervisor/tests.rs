//! The supervisor without a relay: a task of an attempt dies in the middle of its work. In place of a shim runs what
//! never answers one.

use std::path::Path;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptRef, Dispatch, LeaseToken, TaskError};
use bytes::Bytes;
use tokio_stream::StreamExt;

use super::*;
use crate::attempt::{AttemptPlan, Words};
use crate::config::KERNEL_BOOT_ID;
use crate::held::Offer;
use crate::outbox::Record;
use crate::process::ChildSpec;
use crate::shim::client::ShimProgram;
use crate::timers::Deadlines;

const PATIENCE: Duration = Duration::from_secs(20);
const LEASE: Duration = Duration::from_secs(600);
const INSTANT: Duration = Duration::from_millis(1);

fn supervisor(dir: &Path, shim: &str) -> Supervisor {
    supervisor_on(Clock::boot(), dir, shim)
}

fn supervisor_on(clock: Clock, dir: &Path, shim: &str) -> Supervisor {
    let workshop = Workshop {
        shim: ShimProgram {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), shim.into()],
            environment: Vec::new(),
        },
        daemon_id: String::new(),
        instance_id: String::new(),
        boot_id: String::new(),
        name: String::new(),
        groups: None,
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
        limits: crate::config::Limits::default(),
        drain: Duration::from_secs(15),
        hold: Duration::ZERO,
        health: None,
        shim: workshop.shim.clone(),
        tools_program: "/bin/false".into(),
        boot_id_file: KERNEL_BOOT_ID.into(),
        adopt_orphans: false,
        clock,
    };
    Supervisor::new(
        &config,
        Identity::open(dir, Path::new(KERNEL_BOOT_ID)).unwrap(),
        Storage::open(dir).unwrap(),
        workshop,
        watch::Sender::new(Stake::default()),
        watch::Sender::new(DaemonStatus::new("", 1, Moment::from_millis(0))),
    )
    .unwrap()
}

/// Each attempt has an id of its own: the sweep finds processes by it, also those of other tests.
fn plan() -> AttemptPlan {
    AttemptPlan {
        attempt_id: uuid::Uuid::now_v7().to_string(),
        task_id: String::new(),
        workspace: crate::workspace::Plan::open(Path::new("/")),
        child: ChildSpec {
            program: "true".into(),
            args: Vec::new(),
            cwd: "/".into(),
            environment: BTreeMap::new(),
            group: None,
        },
        words: Words::Prompt(Bytes::new()),
        deadlines: Deadlines::default(),
        cleanup_term: Duration::from_secs(2),
        tools: None,
        files: None,
        resume: None,
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
        conversing: None,
    };
    let held = Held::accept(offer, &supervisor.clock);
    supervisor.held.insert(id.clone(), held);
    let granted = LEASE;
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

async fn next_event(supervisor: &mut Supervisor) {
    let event = tokio::time::timeout(PATIENCE, supervisor.incoming.recv());
    let (id, event) = event.await.expect("nothing happens").unwrap();
    supervisor.on_attempt(&id, event);
}

async fn until_there(path: &Path) {
    let there = async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, there)
        .await
        .expect("it was not started");
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
    let up = dir.path().join("up");
    // Only its marker leads to the escapee.
    let script = format!(
        "setsid sh -c 'touch {}; sleep 600; true' & wait",
        up.display()
    );
    let mut supervisor = supervisor(dir.path(), &script);
    let id = begin(&mut supervisor, plan()).await;
    until_there(&up).await;
    kill_task(&mut supervisor).await;
    assert_eq!(supervisor.free_slots(), 0, "nothing is known to be dead");
    let stake = Stake::of(supervisor.held.values().map(Held::at_stake));
    assert!(stake.lease.is_some() && stake.last_words.is_none());
    while supervisor.held[&id].holds_slot() {
        next_event(&mut supervisor).await;
    }
    assert_eq!(supervisor.free_slots(), 1);
    let stake = Stake::of(supervisor.held.values().map(Held::at_stake));
    assert!(stake.lease.is_none() && stake.last_words.is_some());
    let error = last_word(&mut supervisor, &id).await;
    assert_eq!(error.failure_code, "spawn_failed");
    let receipt = error.receipt.unwrap();
    // It was found by its environment, which proves nothing about others.
    assert!(!receipt.group_empty && receipt.killed && receipt.process_started);
    assert!(receipt.swept_processes >= 1);
}

#[tokio::test]
async fn when_the_sweep_dies_too_the_slot_is_free_and_nothing_is_proved() {
    let dir = tempfile::tempdir().unwrap();
    let up = dir.path().join("up");
    // Nobody ends it, so it ends by itself when the test is over.
    let script = format!("touch {}; while [ -e {0} ]; do sleep 1; done", up.display());
    let mut supervisor = supervisor(dir.path(), &script);
    let id = begin(&mut supervisor, plan()).await;
    until_there(&up).await;
    kill_task(&mut supervisor).await;
    kill_task(&mut supervisor).await;
    assert_eq!(supervisor.free_slots(), 1);
    let receipt = last_word(&mut supervisor, &id).await.receipt.unwrap();
    assert!(!receipt.group_empty);
    assert_eq!(receipt.prompt_written, Some(true));
}

#[tokio::test]
async fn an_attempt_that_runs_is_heard_until_its_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let up = dir.path().join("up");
    // Nobody ends it, so it ends by itself when the test is over.
    let script = format!("touch {}; while [ -e {0} ]; do sleep 1; done", up.display());
    let clock = Clock::manual(Moment::from_millis(1_000));
    let mut supervisor = supervisor_on(clock.clone(), dir.path(), &script);
    let id = begin(&mut supervisor, plan()).await;
    until_there(&up).await;
    while supervisor.held[&id].outbox.next_unsent().is_none() {
        disk_turn(&mut supervisor).await;
    }
    let (session, mut outgoing) = Session::new(1, CancellationToken::new());
    supervisor.live = Some(Live {
        session,
        heartbeats: Heartbeats::new(LEASE, clock.now()),
        heard_at: clock.now(),
        grants_holds: false,
    });
    for (by, heard) in [(LEASE - INSTANT, true), (INSTANT, false)] {
        clock.advance(by);
        supervisor.held.get_mut(&id).unwrap().outbox.rewind();
        supervisor.enqueue(&id);
        supervisor.pump();
        let said = tokio::time::timeout(Duration::ZERO, outgoing.next()).await;
        assert_eq!(said.is_ok(), heard, "{said:?}");
    }
}
