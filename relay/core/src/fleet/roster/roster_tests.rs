//! Tests of sessions, slots, silence, sickness and exclusions, each with a case that must
//! change nothing.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::*;
use crate::ids::{InstanceId, TenantScope, TokenId};
use crate::samples::config;

pub(crate) fn daemon_id(n: u128) -> DaemonId {
    DaemonId(Uuid::from_u128(n))
}

pub(crate) fn attempt(n: u128) -> AttemptId {
    AttemptId(Uuid::from_u128(n))
}

pub(crate) fn session(n: u128) -> SessionId {
    SessionId(Uuid::from_u128(n))
}

/// Daemon `n` for all tenants, with one agent and two slots.
pub(crate) fn hello(n: u128) -> DaemonHello {
    DaemonHello {
        daemon: daemon_id(n),
        scope: TenantScope::All,
        token: TokenId(Uuid::from_u128(n)),
        instance: InstanceId(Uuid::from_u128(n)),
        boot_id: "boot".into(),
        name: format!("d{n}").into(),
        version: "1".into(),
        platform: crate::record::DaemonPlatform::default(),
        slots: 2,
        labels: BTreeMap::new(),
        capabilities: Vec::new(),
        agents: vec!["claude".into()],
        workspaces: Vec::new(),
        draining: false,
        active: Vec::new(),
    }
}

const HEARTBEAT_MS: u64 = 5_000;

/// Connects a daemon: Hello, then the first heartbeat, which proves that it received Welcome.
pub(crate) fn join(
    roster: &mut DaemonRoster,
    session: SessionId,
    hello: &DaemonHello,
    heartbeat_ms: u64,
    now: MonotonicTime,
) -> HelloOutcome {
    let outcome = roster.apply_hello(session, hello, heartbeat_ms, now);
    roster.heartbeat(session, hello.draining, heartbeat_ms, now);
    outcome
}

fn roster(n: u128) -> DaemonRoster {
    let mut roster = DaemonRoster::new(&config());
    for n in 1..=n {
        join(
            &mut roster,
            session(n),
            &hello(n),
            HEARTBEAT_MS,
            MonotonicTime(0),
        );
    }
    roster
}

fn available_ids(roster: &DaemonRoster) -> Vec<DaemonId> {
    roster.available().map(|d| d.id).collect()
}

#[test]
fn a_new_stream_replaces_the_same_process_and_supersedes_another() {
    let mut roster = roster(1);
    let outcome = join(
        &mut roster,
        session(2),
        &hello(1),
        HEARTBEAT_MS,
        MonotonicTime(1),
    );
    assert_eq!(outcome.succession, SessionSuccession::Replaced(session(1)));
    let other = DaemonHello {
        instance: InstanceId(Uuid::from_u128(99)),
        ..hello(1)
    };
    let outcome = join(
        &mut roster,
        session(3),
        &other,
        HEARTBEAT_MS,
        MonotonicTime(2),
    );
    assert_eq!(
        outcome.succession,
        SessionSuccession::Superseded(session(2))
    );
    assert_eq!(roster.daemon_of(session(2)), None);
    assert_eq!(roster.session_of(daemon_id(1)), Some(session(3)));
    // The end of an old stream and a heartbeat on it have no effect.
    assert_eq!(roster.close_session(session(2), MonotonicTime(3)), None);
    assert_eq!(
        roster.heartbeat(session(1), true, HEARTBEAT_MS, MonotonicTime(3)),
        None
    );
    assert_eq!(available_ids(&roster), [daemon_id(1)]);
    assert_eq!(
        roster.close_session(session(3), MonotonicTime(4)),
        Some(daemon_id(1))
    );
    assert!(available_ids(&roster).is_empty());
    let back = join(
        &mut roster,
        session(4),
        &hello(1),
        HEARTBEAT_MS,
        MonotonicTime(5),
    );
    assert_eq!(back.succession, SessionSuccession::First);
}

#[test]
fn a_changed_boot_id_is_detected_even_after_a_relay_restart() {
    let mut roster = roster(1);
    assert!(
        !join(
            &mut roster,
            session(2),
            &hello(1),
            HEARTBEAT_MS,
            MonotonicTime(1)
        )
        .rebooted
    );
    let booted = DaemonHello {
        boot_id: "later".into(),
        ..hello(1)
    };
    assert!(
        join(
            &mut roster,
            session(3),
            &booted,
            HEARTBEAT_MS,
            MonotonicTime(2)
        )
        .rebooted
    );
    let record = DaemonRecord {
        daemon: daemon_id(5),
        scope: TenantScope::All,
        token: TokenId(Uuid::from_u128(5)),
        name: "d5".into(),
        version: "1".into(),
        platform: crate::record::DaemonPlatform::default(),
        boot_id: "old".into(),
        slots: 1,
        labels: BTreeMap::new(),
        capabilities: Vec::new(),
        agents: Vec::new(),
        workspaces: Vec::new(),
        drained: None,
        first_seen: crate::time::WallTime(0),
        last_seen: crate::time::WallTime(0),
    };
    roster.insert_record(&record);
    assert!(
        !available_ids(&roster).contains(&daemon_id(5)),
        "not connected yet"
    );
    assert!(
        join(
            &mut roster,
            session(5),
            &hello(5),
            HEARTBEAT_MS,
            MonotonicTime(3)
        )
        .rebooted
    );
}

#[test]
fn held_attempts_use_slots_while_disconnected_and_load_sets_the_order() {
    let mut roster = roster(2);
    roster.assign_attempt(daemon_id(1), attempt(1), MonotonicTime(0));
    roster.assign_attempt(daemon_id(1), attempt(1), MonotonicTime(0));
    assert_eq!(available_ids(&roster), [daemon_id(2), daemon_id(1)]);
    roster.assign_attempt(daemon_id(1), attempt(2), MonotonicTime(0));
    assert_eq!(available_ids(&roster), [daemon_id(2)], "full");
    roster.close_session(session(1), MonotonicTime(1));
    join(
        &mut roster,
        session(9),
        &hello(1),
        HEARTBEAT_MS,
        MonotonicTime(2),
    );
    assert_eq!(roster.get(daemon_id(1)).unwrap().free_slots(), 0);
    assert_eq!(roster.holder_of(attempt(2)), Some(daemon_id(1)));
    roster.release_attempt(attempt(2), MonotonicTime(3));
    roster.release_attempt(attempt(2), MonotonicTime(3));
    assert_eq!(available_ids(&roster), [daemon_id(2), daemon_id(1)]);
    assert_eq!(roster.get(daemon_id(1)).unwrap().free_slots(), 1);
}

#[test]
fn a_draining_or_drained_daemon_gets_no_work() {
    let mut roster = roster(1);
    roster.heartbeat(session(1), true, HEARTBEAT_MS, MonotonicTime(1));
    assert!(available_ids(&roster).is_empty());
    roster.heartbeat(session(1), false, HEARTBEAT_MS, MonotonicTime(2));
    assert_eq!(available_ids(&roster).len(), 1);
    roster.set_drained(daemon_id(1), true, MonotonicTime(3));
    join(
        &mut roster,
        session(2),
        &hello(1),
        HEARTBEAT_MS,
        MonotonicTime(4),
    );
    assert!(
        available_ids(&roster).is_empty(),
        "a new stream does not end the drain"
    );
    roster.set_drained(daemon_id(1), false, MonotonicTime(5));
    assert_eq!(available_ids(&roster).len(), 1);
}

#[test]
fn a_stream_is_offered_work_only_after_its_first_heartbeat() {
    let mut roster = DaemonRoster::new(&config());
    roster.apply_hello(session(1), &hello(1), HEARTBEAT_MS, MonotonicTime(0));
    assert!(
        available_ids(&roster).is_empty(),
        "no heartbeat has proved yet that it receives"
    );
    roster.heartbeat(session(1), false, HEARTBEAT_MS, MonotonicTime(1));
    assert_eq!(available_ids(&roster), [daemon_id(1)]);
    roster.apply_hello(session(2), &hello(1), HEARTBEAT_MS, MonotonicTime(2));
    assert!(
        available_ids(&roster).is_empty(),
        "each stream needs its own first heartbeat"
    );
    roster.heartbeat(session(1), false, HEARTBEAT_MS, MonotonicTime(3));
    assert!(
        available_ids(&roster).is_empty(),
        "a heartbeat on the old stream does not count"
    );
}

#[test]
fn two_missed_heartbeats_report_silence_once_until_the_next_heartbeat() {
    let mut roster = roster(1);
    assert!(roster.tick(MonotonicTime(2 * HEARTBEAT_MS)).is_empty());
    roster.heartbeat(
        session(1),
        false,
        HEARTBEAT_MS,
        MonotonicTime(2 * HEARTBEAT_MS),
    );
    assert!(
        roster.tick(MonotonicTime(3 * HEARTBEAT_MS)).is_empty(),
        "a heartbeat arrived"
    );
    let silent = MonotonicTime(4 * HEARTBEAT_MS + 500);
    assert_eq!(roster.next_change_at(), Some(silent));
    assert_eq!(roster.tick(silent), [(daemon_id(1), session(1))]);
    assert!(available_ids(&roster).is_empty());
    assert!(roster.tick(silent + 1).is_empty(), "reported once");
    assert_eq!(roster.next_change_at(), None);
    roster.heartbeat(session(1), false, HEARTBEAT_MS, silent + 2);
    assert_eq!(available_ids(&roster), [daemon_id(1)]);
}

#[test]
fn five_failures_in_a_row_make_a_daemon_sick_for_a_minute() {
    let mut roster = roster(1);
    let sick =
        |roster: &DaemonRoster, at| roster.get(daemon_id(1)).unwrap().is_sick(MonotonicTime(at));
    for at in 0..4 {
        roster.note_failure(daemon_id(1), MonotonicTime(at));
    }
    roster.note_success(daemon_id(1), MonotonicTime(4));
    for at in 5..9 {
        roster.note_failure(daemon_id(1), MonotonicTime(at));
    }
    assert!(!sick(&roster, 9), "a success resets the count");
    roster.note_failure(daemon_id(1), MonotonicTime(9));
    assert!(sick(&roster, 10) && sick(&roster, 60_008) && !sick(&roster, 60_009));
    roster.tick(MonotonicTime(60_009));
    roster.note_failure(daemon_id(1), MonotonicTime(60_010));
    assert!(
        sick(&roster, 60_011),
        "one more failure is enough after the pause"
    );
    roster.note_success(daemon_id(1), MonotonicTime(60_012));
    assert!(!sick(&roster, 60_013));
}

#[test]
fn an_exclusion_covers_one_task_and_one_daemon_and_expires() {
    let mut roster = roster(2);
    let task = TaskId(Uuid::from_u128(1));
    let other = TaskId(Uuid::from_u128(2));
    roster.exclude(task, daemon_id(1), MonotonicTime(50));
    roster.exclude(task, daemon_id(1), MonotonicTime(100));
    let until = |roster: &DaemonRoster, task, n, at| {
        roster.excluded_until(task, daemon_id(n), MonotonicTime(at))
    };
    assert_eq!(until(&roster, task, 1, 99), Some(MonotonicTime(100)));
    assert_eq!(until(&roster, task, 1, 100), None);
    assert_eq!(until(&roster, task, 2, 0), None);
    assert_eq!(until(&roster, other, 1, 0), None);
    roster.tick(MonotonicTime(100));
    assert!(roster.exclusions.is_empty() && roster.exclusion_ends.is_empty());
    roster.exclude(task, daemon_id(1), MonotonicTime(900));
    roster.forget_task(task);
    assert!(roster.exclusions.is_empty() && roster.exclusion_ends.is_empty());
}
