//! Tests of retention: it removes finished tasks that can no longer change, and daemons from
//! which no frames can arrive.

use crate::commands::ForgetAbsentDaemons;
use crate::commands::ListDaemons;
use crate::commands::RemoveFinishedTasks;
use crate::ids::{DaemonId, SessionId, TaskId, TenantScope};
use crate::io::command::Command;
use crate::io::effects::{CloseReason, Delivery};
use crate::io::stored_lookup::{RemovableTask, StoredRecords};
use crate::record::{DaemonOperation, FailureCode, TaskState};
use crate::samples;
use crate::task::spec::UnsafeLossPolicy;
use crate::tests::harness::{
    CoreHarness, GRACE, TTL, TestDaemon, completed, daemon_operation, errored, spec,
};
use crate::time::IdSource;

const DAY: u64 = 24 * 3_600_000;

impl CoreHarness {
    /// Asks for the removal of these tasks, with their stored records, like the shell.
    fn remove(&mut self, tasks: &[TaskId]) -> Vec<TaskId> {
        let named = tasks.iter().map(|task| (samples::tenant("acme"), *task));
        let tasks = named.collect();
        self.send(RemoveFinishedTasks { tasks }).unwrap()
    }

    fn forget_daemons(&mut self, unseen_ms: u64) -> usize {
        self.send(ForgetAbsentDaemons { unseen_ms }).unwrap()
    }

    fn known_daemons(&mut self) -> Vec<DaemonId> {
        let scope = TenantScope::All;
        let views = self.send(ListDaemons { scope }).unwrap();
        views.iter().map(|view| view.record.daemon).collect()
    }
}

fn finish(world: &mut CoreHarness, task_spec: crate::task::spec::TaskSpec) -> TaskId {
    let task = world.submit(task_spec);
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert_eq!(world.state(task), TaskState::Completed);
    task
}

#[test]
fn a_finished_task_is_removed_with_its_key_and_a_live_one_stays() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let mut keyed = spec();
    keyed.idempotency_key = Some("nightly".into());
    let over = finish(&mut world, keyed.clone());
    let open = world.submit(spec());
    world.take_started();
    assert_eq!(world.try_submit(keyed.clone()), Ok((over, false)));
    assert_eq!(world.remove(&[over, open, over]), [over]);
    assert!(world.store.finished(over).is_none() && world.store.live.contains_key(&open));
    let again = world.try_submit(keyed).unwrap();
    assert!(
        again.1 && again.0 != over,
        "the key was removed with its task"
    );
    assert_eq!(
        world.remove(&[over]),
        [],
        "a removed task is not removed twice"
    );
}

#[test]
fn a_task_that_was_retried_meanwhile_is_not_removed() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let mut once = spec();
    once.retry.max_attempts = 1;
    let task = world.submit(once);
    let mut work = world.take_started();
    world.frame(&mut work, errored(FailureCode::AgentExit, 1));
    let stale = world.store.finished(task).unwrap();
    world.retry(task).unwrap();
    let command = RemoveFinishedTasks {
        tasks: vec![(samples::tenant("acme"), task)],
    };
    let stored = StoredRecords {
        removable: vec![RemovableTask {
            record: stale.record,
            idempotency_key: None,
            body: None,
        }],
        ..StoredRecords::default()
    };
    let (mut owners, mut turn) = world.core.begin_turn(world.now, &mut world.ids);
    let removed = command.run(&mut owners, stored, &mut turn);
    assert!(removed.unwrap().reply.is_empty());
}

#[test]
fn a_lost_task_stays_while_a_late_result_is_possible() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let mut lossy = spec();
    lossy.retry.when_unsafe = UnsafeLossPolicy::Fail;
    let task = world.submit(lossy);
    world.take_started();
    world.disconnect(&machine);
    world.pass(TTL + GRACE);
    assert_eq!(world.state(task), TaskState::Lost);
    assert_eq!(world.remove(&[task]), []);
    world.pass(DAY - 1_000);
    assert_eq!(
        world.remove(&[task]),
        [],
        "a late result is adopted for a day"
    );
    world.pass(2_000);
    assert_eq!(world.remove(&[task]), [task]);
}

#[test]
fn a_task_stays_while_its_processes_may_run() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    world.take_started();
    world.disconnect(&machine);
    world.cancel(task).unwrap();
    world.pass(TTL - 1_000);
    assert_eq!(
        world.remove(&[task]),
        [],
        "the end of its processes is not proved"
    );
    world.pass(DAY);
    assert_eq!(world.state(task), TaskState::Canceled);
    assert_eq!(world.remove(&[task]), [task]);
}

#[test]
fn a_daemon_is_forgotten_after_a_long_absence_without_attempts() {
    let mut world = CoreHarness::new();
    let (away, here, drained) = (
        world.connect_daemon(1),
        world.connect_daemon(2),
        world.connect_daemon(3),
    );
    let drain = daemon_operation(drained.daemon, DaemonOperation::Drain);
    assert!(world.send(drain.command()).is_ok());
    world.skip_time(20 * DAY);
    world.forget_daemons(7 * DAY);
    world.disconnect(&away);
    world.disconnect(&drained);
    assert_eq!(
        world.forget_daemons(7 * DAY),
        0,
        "the daemon was connected until now"
    );
    world.skip_time(7 * DAY);
    world.restart_here();
    let mut here = here;
    world.reconnect(&mut here, &[]);
    assert_eq!(world.forget_daemons(7 * DAY), 1);
    let known = world.known_daemons();
    assert!(!known.contains(&away.daemon));
    assert!(known.contains(&here.daemon), "a connected daemon stays");
    assert!(known.contains(&drained.daemon), "a drained daemon stays");
    world.restart_here();
    assert!(!world.known_daemons().contains(&away.daemon), "durably");
}

#[test]
fn the_last_seen_time_of_a_connected_daemon_is_stored_daily() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.skip_time(29 * DAY);
    let writes = world.writes;
    world.forget_daemons(30 * DAY);
    assert_eq!(world.writes, writes + 1);
    world.forget_daemons(30 * DAY);
    assert_eq!(world.writes, writes + 1, "once");
    world.restart_here();
    world.skip_time(2 * DAY);
    assert_eq!(world.forget_daemons(30 * DAY), 0);
    assert!(world.known_daemons().contains(&machine.daemon));
}

#[test]
fn daemons_per_credential_are_limited_and_the_longest_absent_is_removed() {
    let mut config = samples::config();
    config.max_daemons_per_token = 2;
    let mut world = CoreHarness::with(config);
    let first = world.connect_daemon(1);
    let mut second = world.connect_daemon(2);
    world.disconnect(&first);
    world.deliveries.clear();
    let third = TestDaemon {
        daemon: DaemonId(uuid::Uuid::from_u128(3)),
        session: SessionId(world.ids.new_id()),
        ..second.clone()
    };
    world.open(&third, Vec::new(), |_| {});
    let refused = world.deliveries.iter().find_map(|send| match send {
        Delivery::CloseSession { session, reason } => Some((*session, *reason)),
        Delivery::Reply(_) | Delivery::ToSession { .. } | Delivery::Published { .. } => None,
    });
    assert_eq!(
        refused,
        Some((third.session, CloseReason::TooManyDaemons)),
        "the first daemon was connected recently"
    );
    assert!(!world.known_daemons().contains(&third.daemon));
    world.skip_time(2 * DAY);
    let fourth = world.connect_daemon(4);
    let known = world.known_daemons();
    assert!(known.contains(&fourth.daemon) && !known.contains(&first.daemon));
    world.reconnect(&mut second, &[]);
    assert_eq!(
        world.known_daemons().len(),
        2,
        "a known daemon is never refused"
    );
}
