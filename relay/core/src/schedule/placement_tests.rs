//! Each rule of placement with the placement that it refuses.

use uuid::Uuid;

use super::*;
use crate::fleet::roster::roster_tests::{attempt, daemon_id, hello, join, session};
use crate::ids::{AttemptId, TenantScope};
use crate::io::session_input::DaemonHello;
use crate::record::PossibleRunner;
use crate::samples::{config, task_spec, tenant};
use crate::schedule::queue::EligibleHolders;
use crate::schedule::queue::QueuedTask;
use crate::task::spec::TaskSpec;

/// The pieces that placement reads, with a clock set by hand.
struct PlacementFixture {
    queue: TaskQueue,
    roster: DaemonRoster,
    fences: Fences,
    affinity: ConversationAffinity,
    now: u64,
}

impl PlacementFixture {
    fn new(hellos: impl IntoIterator<Item = DaemonHello>) -> Self {
        let mut roster = DaemonRoster::new(&config());
        for hello in hellos {
            let session = session(hello.daemon.0.as_u128());
            join(&mut roster, session, &hello, 5_000, MonotonicTime(0));
        }
        Self {
            queue: TaskQueue::default(),
            roster,
            fences: Fences::default(),
            affinity: ConversationAffinity::default(),
            now: 0,
        }
    }

    /// Daemons 1 to n, all alike.
    fn with(n: u128) -> Self {
        Self::new((1..=n).map(hello))
    }

    fn push(&mut self, n: u128, spec: &TaskSpec) {
        self.queue.push(QueuedTask {
            task: task(n),
            requirements: TaskRequirements::from_spec(spec),
            priority: spec.priority,
            conversation: ConversationKey::from_spec(spec),
            preferred_daemon: None,
            eligible_holders: EligibleHolders::from_spec(spec),
        });
    }

    fn next(&mut self) -> Option<(TaskId, DaemonId)> {
        let Self {
            queue,
            roster,
            fences,
            affinity,
            now,
        } = self;
        let placed = place_next(queue, roster, fences, affinity, MonotonicTime(*now));
        placed.map(|p| (p.task, p.daemon))
    }

    /// Places everything that can be, leasing attempt n to task n.
    fn all(&mut self) -> Vec<(TaskId, DaemonId)> {
        let mut placed = Vec::new();
        while let Some((task, daemon)) = self.next() {
            let attempt = AttemptId(task.0);
            self.roster
                .assign_attempt(daemon, attempt, MonotonicTime(self.now));
            placed.push((task, daemon));
        }
        placed
    }

    fn fence(&mut self, n: u128, conversation: Option<&str>, guard: FenceGuard) {
        let tenant = tenant("acme");
        let key = conversation.map(|name| ConversationKey {
            tenant,
            name: name.into(),
        });
        self.fences.insert_fence(Fence {
            attempt: attempt(n),
            task: task(n),
            conversation: key,
            runner: Some(PossibleRunner::Machine {
                daemon: daemon_id(1),
                boot_id: "boot".into(),
            }),
            guard,
        });
    }

    fn make_sick(&mut self, n: u128) {
        for _ in 0..5 {
            self.roster
                .note_failure(daemon_id(n), MonotonicTime(self.now));
        }
    }
}

fn task(n: u128) -> TaskId {
    TaskId(Uuid::from_u128(n))
}

fn went(n: u128, daemon: u128) -> (TaskId, DaemonId) {
    (task(n), daemon_id(daemon))
}

fn talking(name: &str) -> TaskSpec {
    TaskSpec {
        conversation_id: Some(name.into()),
        ..task_spec()
    }
}

/// A need, a daemon that has it, and its name in the explanation.
fn needs() -> Vec<(TaskSpec, DaemonHello, &'static str)> {
    let (mut label, mut capability, mut agent, mut target) =
        (task_spec(), task_spec(), task_spec(), task_spec());
    label.target.labels.insert("gpu".into(), "yes".into());
    capability.target.capabilities.push("docker".into());
    agent.agent = "codex".into();
    target.target.daemon = Some(daemon_id(2));
    let (mut labeled, mut capable, mut with_agent) = (hello(2), hello(2), hello(2));
    labeled.labels.insert("gpu".into(), "yes".into());
    capable.capabilities.push("docker".into());
    with_agent.agents.push("codex".into());
    vec![
        (label, labeled, "gpu=yes"),
        (capability, capable, "\"docker\""),
        (agent, with_agent, "\"codex\""),
        (target, hello(2), "is daemon"),
    ]
}

#[test]
fn a_need_is_met_or_the_task_waits_and_says_what_is_missing() {
    for (spec, able, named) in needs() {
        let mut bench = PlacementFixture::with(1);
        bench.push(1, &spec);
        assert_eq!(bench.next(), None, "{named}");
        let needs = TaskRequirements::from_spec(&spec);
        assert!(!could_any_take(&needs, &bench.roster));
        let why = placement_obstacle(&needs, None, &bench.roster, MonotonicTime(0)).unwrap();
        assert!(matches!(why, PlacementObstacle::UnmetNeed(_)));
        assert!(why.to_string().contains(named), "{why}");
        join(
            &mut bench.roster,
            session(2),
            &able,
            5_000,
            MonotonicTime(0),
        );
        assert_eq!(bench.next(), Some(went(1, 2)), "{named}");
        assert_eq!(
            placement_obstacle(&needs, None, &bench.roster, MonotonicTime(0)),
            None
        );
    }
}

#[test]
fn a_label_with_another_value_is_not_that_label() {
    let (spec, mut wrong, _) = needs().remove(0);
    wrong.labels.insert("gpu".into(), "no".into());
    let mut bench = PlacementFixture::new([wrong]);
    bench.push(1, &spec);
    assert_eq!(bench.next(), None);
}

#[test]
fn a_daemon_of_another_tenant_is_never_used() {
    let foreign = DaemonHello {
        scope: TenantScope::One(tenant("other")),
        ..hello(1)
    };
    let own = DaemonHello {
        scope: TenantScope::One(tenant("acme")),
        ..hello(2)
    };
    let mut bench = PlacementFixture::new([foreign]);
    bench.push(1, &task_spec());
    assert_eq!(bench.next(), None);
    join(&mut bench.roster, session(2), &own, 5_000, MonotonicTime(0));
    assert_eq!(bench.next(), Some(went(1, 2)));
}

#[test]
fn slots_are_never_overfilled_and_the_least_loaded_goes_first() {
    let mut bench = PlacementFixture::with(2);
    for n in 1..=6 {
        bench.push(n, &task_spec());
    }
    let placed = bench.all();
    assert_eq!(placed, [went(1, 1), went(2, 2), went(3, 1), went(4, 2)]);
    let needs = TaskRequirements::from_spec(&task_spec());
    let why = placement_obstacle(&needs, None, &bench.roster, MonotonicTime(0));
    assert_eq!(why, Some(PlacementObstacle::Daemon(DaemonObstacle::Busy)));
    bench.roster.release_attempt(attempt(2), MonotonicTime(0));
    assert_eq!(bench.all(), [went(5, 2)]);
}

#[test]
fn urgent_work_goes_first_even_if_it_came_last() {
    let mut bench = PlacementFixture::new([DaemonHello {
        slots: 1,
        ..hello(1)
    }]);
    bench.push(1, &task_spec());
    let urgent = TaskSpec {
        priority: 90,
        ..task_spec()
    };
    bench.push(2, &urgent);
    assert_eq!(bench.all(), [went(2, 1)]);
}

#[test]
fn draining_silent_and_away_daemons_get_nothing() {
    type RosterChange = fn(&mut DaemonRoster);
    let cases: [(RosterChange, DaemonObstacle); 4] = [
        (
            |r| r.set_drained(daemon_id(1), true, MonotonicTime(0)),
            DaemonObstacle::Draining,
        ),
        (
            |r| {
                r.heartbeat(session(1), true, 5_000, MonotonicTime(0));
            },
            DaemonObstacle::Draining,
        ),
        (
            |r| {
                r.tick(MonotonicTime(10_500));
            },
            DaemonObstacle::Silent,
        ),
        (
            |r| {
                r.close_session(session(1), MonotonicTime(0));
            },
            DaemonObstacle::Disconnected,
        ),
    ];
    for (change, lapse) in cases {
        let mut bench = PlacementFixture::with(1);
        change(&mut bench.roster);
        bench.push(1, &task_spec());
        assert_eq!(bench.next(), None, "{lapse:?}");
        let needs = TaskRequirements::from_spec(&task_spec());
        let why = placement_obstacle(&needs, None, &bench.roster, MonotonicTime(0));
        assert_eq!(why, Some(PlacementObstacle::Daemon(lapse)));
    }
}

#[test]
fn a_sick_daemon_is_passed_over_only_while_another_could_do_the_work() {
    let mut bench = PlacementFixture::with(2);
    bench.make_sick(1);
    for n in 1..=3 {
        bench.push(n, &task_spec());
    }
    assert_eq!(
        bench.all(),
        [went(1, 2), went(2, 2)],
        "task 3 waits for the healthy one"
    );
    let needs = TaskRequirements::from_spec(&task_spec());
    let why = placement_obstacle(&needs, None, &bench.roster, MonotonicTime(0));
    assert_eq!(why, Some(PlacementObstacle::Daemon(DaemonObstacle::Sick)));
    bench.roster.close_session(session(2), MonotonicTime(0));
    assert_eq!(bench.all(), [went(3, 1)], "better a sick one than none");
}

#[test]
fn a_sick_daemon_is_used_again_after_its_minute_and_when_all_are_sick() {
    let mut bench = PlacementFixture::with(2);
    bench.make_sick(1);
    for n in 1..=3 {
        bench.push(n, &task_spec());
    }
    bench.all();
    bench.make_sick(2);
    assert_eq!(bench.all(), [went(3, 1)]);
    let mut bench = PlacementFixture::with(2);
    bench.make_sick(1);
    for n in 1..=3 {
        bench.push(n, &task_spec());
    }
    bench.all();
    bench.now = 60_000;
    for n in 1..=2 {
        bench
            .roster
            .heartbeat(session(n), false, 60_000, MonotonicTime(1));
    }
    bench.roster.tick(MonotonicTime(bench.now));
    assert_eq!(bench.all(), [went(3, 1)]);
}

#[test]
fn a_daemon_that_rejected_a_task_is_not_asked_again_at_once() {
    let mut bench = PlacementFixture::with(1);
    bench
        .roster
        .exclude(task(1), daemon_id(1), MonotonicTime(5_000));
    bench.push(1, &task_spec());
    bench.push(2, &task_spec());
    assert_eq!(bench.all(), [went(2, 1)], "another task is welcome there");
    let needs = TaskRequirements::from_spec(&task_spec());
    let why = placement_obstacle(&needs, Some(task(1)), &bench.roster, MonotonicTime(0));
    assert_eq!(
        why,
        Some(PlacementObstacle::Daemon(DaemonObstacle::Rejected))
    );
    join(
        &mut bench.roster,
        session(2),
        &hello(2),
        5_000,
        MonotonicTime(0),
    );
    assert_eq!(bench.all(), [went(1, 2)], "a newcomer may take it");
    let mut bench = PlacementFixture::with(1);
    bench
        .roster
        .exclude(task(1), daemon_id(1), MonotonicTime(5_000));
    bench.push(1, &task_spec());
    assert_eq!(
        (bench.next(), bench.queue.next_requeue_at()),
        (None, Some(MonotonicTime(5_000)))
    );
    bench.now = 5_000;
    assert_eq!(bench.next(), Some(went(1, 1)));
}

#[test]
fn a_conversation_goes_back_to_its_daemon_unless_that_one_cannot_take_it() {
    let mut bench = PlacementFixture::with(2);
    let key = ConversationKey::from_spec(&talking("c")).unwrap();
    bench.affinity.remember(&key, daemon_id(2));
    bench.push(1, &talking("c"));
    bench.push(2, &task_spec());
    assert_eq!(bench.all(), [went(1, 2), went(2, 1)]);
    bench
        .roster
        .set_drained(daemon_id(2), true, MonotonicTime(0));
    bench.push(3, &talking("c"));
    assert_eq!(bench.all(), [went(3, 1)]);
}

#[test]
fn a_resumed_task_prefers_where_it_ran_before() {
    let mut bench = PlacementFixture::with(3);
    bench.queue.push(QueuedTask {
        task: task(1),
        requirements: TaskRequirements::from_spec(&task_spec()),
        priority: 50,
        conversation: None,
        preferred_daemon: Some(daemon_id(3)),
        eligible_holders: EligibleHolders::Daemons,
    });
    assert_eq!(bench.next(), Some(went(1, 3)));
}

#[test]
fn one_attempt_of_a_conversation_is_leased_at_a_time() {
    let mut bench = PlacementFixture::with(2);
    bench.fence(9, Some("c"), FenceGuard::Leased);
    bench.push(1, &talking("c"));
    bench.push(2, &talking("c"));
    bench.push(3, &talking("d"));
    assert_eq!(bench.all(), [went(3, 1)]);
    let fence = bench.fences.remove_fence(attempt(9)).unwrap();
    release_fenced(&mut bench.queue, &fence);
    assert_eq!(bench.next(), Some(went(1, 2)));
    bench.fence(1, Some("c"), FenceGuard::Leased);
    assert_eq!(bench.next(), None, "turn 2 waits for turn 1");
}

#[test]
fn a_fenced_task_waits_for_proof_or_time_and_holds_nobody_else_up() {
    let mut bench = PlacementFixture::with(1);
    bench.fence(1, None, FenceGuard::Until(MonotonicTime(35_000)));
    bench.push(1, &task_spec());
    bench.push(2, &task_spec());
    assert_eq!(bench.all(), [went(2, 1)]);
    bench.roster.release_attempt(attempt(2), MonotonicTime(0));
    assert_eq!(bench.next(), None, "a free slot is no proof");
    assert_eq!(bench.queue.next_requeue_at(), Some(MonotonicTime(35_000)));
    let fence = bench.fences.remove_fence(attempt(1)).unwrap();
    release_fenced(&mut bench.queue, &fence);
    assert_eq!(bench.next(), Some(went(1, 1)));

    let mut bench = PlacementFixture::with(1);
    bench.fence(9, Some("c"), FenceGuard::Until(MonotonicTime(35_000)));
    bench.push(1, &talking("c"));
    assert_eq!(bench.next(), None);
    bench.now = 34_999;
    assert_eq!(bench.next(), None);
    bench.now = 35_000;
    assert_eq!(bench.next(), Some(went(1, 1)));
}
