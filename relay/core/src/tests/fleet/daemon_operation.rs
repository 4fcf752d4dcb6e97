//! Tests of operators' commands on daemons: they need a reason and a visible daemon, are rate
//! limited, and are audited.

use crate::commands::{FindDaemon, ShowDaemon};
use crate::ids::{DaemonId, DaemonRef, TenantScope};
use crate::io::rejection::Rejection;
use crate::record::{DaemonChange, DaemonCondition, DaemonOperation};
use crate::samples::tenant;
use crate::tests::harness::{CoreHarness, TestDaemon, actor, daemon_operation};

const ACTIVE_STANDING: DaemonCondition = DaemonCondition {
    drained: false,
    connected: true,
};

impl CoreHarness {
    fn operate_daemon(
        &mut self,
        machine: &TestDaemon,
        operation: DaemonOperation,
        reason: &str,
    ) -> Result<(), Rejection> {
        let word = daemon_operation(machine.daemon, operation).with_reason(reason);
        let view = self.send(word.command())?;
        assert_eq!(view.record.daemon, machine.daemon);
        Ok(())
    }

    fn find(&mut self, named: &str, scope: &TenantScope) -> Result<DaemonId, Rejection> {
        let named = match named.parse() {
            Ok(id) => DaemonRef::Id(id),
            Err(_) => DaemonRef::Name(named.into()),
        };
        let shown = self.send(ShowDaemon {
            scope: scope.clone(),
            named: named.clone(),
        });
        let shown = shown.map(|view| view.record.daemon);
        let found = self.send(FindDaemon {
            scope: scope.clone(),
            named,
        });
        assert_eq!(shown, found);
        found
    }

    fn changes(&self) -> &[DaemonChange] {
        &self.store.daemon_changes.changes
    }
}

#[test]
fn daemon_operations_are_audited_with_actor_reason_and_states() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let drained = DaemonCondition {
        drained: true,
        ..ACTIVE_STANDING
    };
    world
        .operate_daemon(&machine, DaemonOperation::Drain, "a new disk")
        .unwrap();
    world
        .operate_daemon(&machine, DaemonOperation::Drain, "once more")
        .unwrap();
    world
        .operate_daemon(&machine, DaemonOperation::Undrain, "")
        .unwrap();
    world
        .operate_daemon(&machine, DaemonOperation::Disconnect, "it is odd")
        .unwrap();
    world
        .operate_daemon(&machine, DaemonOperation::Disconnect, "it is gone")
        .unwrap();
    world.restart();
    let seen: Vec<_> = world
        .changes()
        .iter()
        .map(|change| {
            (
                change.operation,
                &*change.reason,
                change.before,
                change.after,
            )
        })
        .collect();
    let away = DaemonCondition {
        connected: false,
        ..ACTIVE_STANDING
    };
    // An operation without a change is not recorded.
    assert_eq!(
        seen,
        [
            (
                DaemonOperation::Drain,
                "a new disk",
                ACTIVE_STANDING,
                drained
            ),
            (DaemonOperation::Undrain, "", drained, ACTIVE_STANDING),
            (
                DaemonOperation::Disconnect,
                "it is odd",
                ACTIVE_STANDING,
                away
            ),
        ]
    );
    let first = &world.changes()[0];
    assert_eq!((first.daemon, &first.by), (machine.daemon, &actor().name));
}

#[test]
fn a_blank_reason_is_checked_first_and_a_foreign_daemon_is_unknown() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let unknown = DaemonId(uuid::Uuid::from_u128(99));
    for operation in [DaemonOperation::Drain, DaemonOperation::Disconnect] {
        for daemon in [machine.daemon, unknown] {
            let word = daemon_operation(daemon, operation).with_reason(" \t");
            let refused = world.send(word.command());
            assert_eq!(refused.unwrap_err(), Rejection::ReasonMissing);
        }
        let word = daemon_operation(machine.daemon, operation).of(TenantScope::One(tenant("acme")));
        let refused = world.send(word.command());
        assert_eq!(refused.unwrap_err(), Rejection::UnknownDaemon);
    }
    assert!(world.changes().is_empty());
}

#[test]
fn the_eleventh_daemon_operation_in_a_minute_is_refused() {
    let mut world = CoreHarness::new();
    let (machine, other) = (world.connect_daemon(1), world.connect_daemon(2));
    for n in 0..10 {
        let operation = if n % 2 == 0 {
            DaemonOperation::Drain
        } else {
            DaemonOperation::Undrain
        };
        world
            .operate_daemon(&machine, operation, "a script")
            .unwrap();
    }
    let refused = world.operate_daemon(&machine, DaemonOperation::Drain, "a script");
    assert_eq!(refused, Err(Rejection::RateLimited));
    assert_eq!(world.changes().len(), 10);
    let another = world.operate_daemon(&other, DaemonOperation::Drain, "a script");
    assert_eq!(another, Ok(()));
    world.pass(60_000);
    let later = world.operate_daemon(&machine, DaemonOperation::Drain, "a script");
    assert_eq!(later, Ok(()));
}

#[test]
fn only_the_newest_daemon_changes_are_kept() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    for n in 0..130 {
        let operation = if n % 2 == 0 {
            DaemonOperation::Drain
        } else {
            DaemonOperation::Undrain
        };
        let why = n.to_string();
        world.operate_daemon(&machine, operation, &why).unwrap();
        world.pass(10_000);
    }
    let changes = world.changes();
    assert_eq!((changes.len(), &*changes[0].reason), (128, "2"));
}

#[test]
fn a_daemon_is_found_by_its_id_or_its_unique_name() {
    let mut world = CoreHarness::new();
    let (all, acme) = (TenantScope::All, TenantScope::One(tenant("acme")));
    let (first, second) = (world.connect_daemon(1), world.connect_daemon(2));
    let id = first.daemon.to_string();
    assert_eq!(world.find(&id, &all), Ok(first.daemon));
    assert_eq!(world.find("daemon-2", &acme), Ok(second.daemon));
    let unknown = DaemonId(uuid::Uuid::from_u128(99)).to_string();
    for missing in ["daemon", &unknown] {
        assert_eq!(world.find(missing, &all), Err(Rejection::UnknownDaemon));
    }

    world.disconnect(&second);
    let foreign = TenantScope::One(tenant("globex"));
    let second = TestDaemon {
        session: world.new_session(),
        ..second
    };
    let renamed = |hello: &mut crate::io::session_input::DaemonHello| {
        hello.name = "daemon-1".into();
        hello.scope = foreign.clone();
    };
    world.connect_with(&second, Vec::new(), renamed);
    for _ in 0..2 {
        let gone = world.find("daemon-2", &all);
        assert_eq!(
            gone,
            Err(Rejection::UnknownDaemon),
            "the earlier name is no longer used"
        );
        let twice = world.find("daemon-1", &all);
        assert_eq!(twice, Err(Rejection::AmbiguousDaemon));
        assert_eq!(
            world.find("daemon-1", &acme),
            Ok(first.daemon),
            "an invisible daemon does not make the name ambiguous"
        );
        let hidden = world.find(&second.daemon.to_string(), &acme);
        assert_eq!(hidden, Err(Rejection::UnknownDaemon));
        world.restart();
    }
    world.forget(&second, TenantScope::All).unwrap();
    assert_eq!(world.find("daemon-1", &all), Ok(first.daemon));
}
