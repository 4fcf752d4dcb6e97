//! Tests of forgetting daemons: only a disconnected daemon without attempts can be forgotten,
//! and it is audited.

use crate::commands::ForgetDaemon;
use crate::ids::TenantScope;
use crate::io::rejection::Rejection;
use crate::samples;
use crate::tests::harness::{CoreHarness, GRACE, TTL, TestDaemon, actor, completed, spec};

impl CoreHarness {
    pub(crate) fn forget(
        &mut self,
        machine: &TestDaemon,
        scope: TenantScope,
    ) -> Result<(), Rejection> {
        let (daemon, by) = (machine.daemon, actor());
        let reason = "scrapped".into();
        let view = self.send(ForgetDaemon {
            scope,
            daemon,
            by,
            reason,
        })?;
        assert_eq!(view.record.daemon, daemon);
        Ok(())
    }
}

#[test]
fn an_operator_can_forget_a_disconnected_daemon_without_attempts() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.submit(spec());
    world.take_started();
    let all = || TenantScope::All;
    let refused = |world: &mut CoreHarness, code| {
        assert_eq!(world.forget(&machine, all()), Err(code));
        assert!(world.store.forgotten.daemons.is_empty());
    };
    refused(&mut world, Rejection::DaemonConnected);
    world.disconnect(&machine);
    refused(&mut world, Rejection::DaemonHolds);
    world.pass(TTL + GRACE);
    let own = TenantScope::One(samples::tenant("acme"));
    assert_eq!(
        world.forget(&machine, own),
        Err(Rejection::UnknownDaemon),
        "a tenant may not forget a shared daemon"
    );
    assert_eq!(world.forget(&machine, all()), Ok(()));
    for _ in 0..2 {
        let audit = &world.store.forgotten.daemons;
        assert_eq!((audit.len(), audit[0].daemon), (1, machine.daemon));
        assert_eq!(
            (&*audit[0].by, &*audit[0].reason),
            (&*actor().name, "scrapped")
        );
        assert_eq!(
            world.forget(&machine, all()),
            Err(Rejection::UnknownDaemon),
            "the daemon is unknown"
        );
        world.restart();
    }
    let other = world.connect_daemon(2);
    world.disconnect(&other);
    assert_eq!(world.forget(&other, all()), Ok(()));
    assert_eq!(
        world.store.forgotten.daemons.len(),
        2,
        "the audit survives a restart"
    );
}

#[test]
fn a_forgotten_daemon_that_reconnects_is_a_new_daemon() {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    world.disconnect(&machine);
    world.forget(&machine, TenantScope::All).unwrap();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, completed());
    assert!(world.state(task).is_terminal());
}

#[test]
fn only_the_newest_forgotten_daemons_are_kept() {
    let mut world = CoreHarness::new();
    for number in 1..=130 {
        let machine = world.connect_daemon(number);
        world.disconnect(&machine);
        world.forget(&machine, TenantScope::All).unwrap();
    }
    let audit = world.store.forgotten.daemons.iter();
    let kept: Vec<u128> = audit.map(|one| one.daemon.0.as_u128()).collect();
    assert!(kept.iter().copied().eq(3..=130), "{kept:?}");
}
