//! Tests of each placement rule, with the placement that it must refuse.

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

/// The state that placement reads, with a manual clock.
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

    /// Daemons 1 to n with equal properties.
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

    /// Places every task that can be placed and leases attempt n for task n.
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

fn placed_on(n: u128, daemon: u128) -> (TaskId, DaemonId) {
    (task(n), daemon_id(daemon))
}

fn in_conversation(name: &str) -> TaskSpec {
    TaskSpec {
        conversation_id: Some(name.into()),
        ..task_spec()
    }
}

/// A need, a daemon that meets it, and its text in the explanation.
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
fn a_task_waits_for_an_unmet_need_and_the_obstacle_names_it() {
    for (spec, matching, named) in needs() {
        let mut fixture = PlacementFixture::with(1);
        fixture.push(1, &spec);
        assert_eq!(fixture.next(), None, "{named}");
        let needs = TaskRequirements::from_spec(&spec);
        assert!(!could_any_take(&needs, &fixture.roster));
        let why = placement_obstacle(&needs, None, &fixture.roster, MonotonicTime(0)).unwrap();
        assert!(matches!(why, PlacementObstacle::UnmetNeed(_)));
        assert!(why.to_string().contains(named), "{why}");
        join(
            &mut fixture.roster,
            session(2),
            &matching,
            5_000,
            MonotonicTime(0),
        );
        assert_eq!(fixture.next(), Some(placed_on(1, 2)), "{named}");
        assert_eq!(
            placement_obstacle(&needs, None, &fixture.roster, MonotonicTime(0)),
            None
        );
    }
}

#[test]
fn a_label_with_another_value_does_not_match() {
    let (spec, mut wrong, _) = needs().remove(0);
    wrong.labels.insert("gpu".into(), "no".into());
    let mut fixture = PlacementFixture::new([wrong]);
    fixture.push(1, &spec);
    assert_eq!(fixture.next(), None);
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
    let mut fixture = PlacementFixture::new([foreign]);
    fixture.push(1, &task_spec());
    assert_eq!(fixture.next(), None);
    join(
        &mut fixture.roster,
        session(2),
        &own,
        5_000,
        MonotonicTime(0),
    );
    assert_eq!(fixture.next(), Some(placed_on(1, 2)));
}

#[test]
fn slots_are_never_overfilled_and_the_least_loaded_goes_first() {
    let mut fixture = PlacementFixture::with(2);
    for n in 1..=6 {
        fixture.push(n, &task_spec());
    }
    let placed = fixture.all();
    assert_eq!(
        placed,
        [
            placed_on(1, 1),
            placed_on(2, 2),
            placed_on(3, 1),
            placed_on(4, 2)
        ]
    );
    let needs = TaskRequirements::from_spec(&task_spec());
    let why = placement_obstacle(&needs, None, &fixture.roster, MonotonicTime(0));
    assert_eq!(why, Some(PlacementObstacle::Daemon(DaemonObstacle::Busy)));
    fixture.roster.release_attempt(attempt(2), MonotonicTime(0));
    assert_eq!(fixture.all(), [placed_on(5, 2)]);
}

#[test]
fn a_higher_priority_task_is_placed_first() {
    let mut fixture = PlacementFixture::new([DaemonHello {
        slots: 1,
        ..hello(1)
    }]);
    fixture.push(1, &task_spec());
    let urgent = TaskSpec {
        priority: 90,
        ..task_spec()
    };
    fixture.push(2, &urgent);
    assert_eq!(fixture.all(), [placed_on(2, 1)]);
}

#[test]
fn draining_silent_and_disconnected_daemons_get_no_work() {
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
    for (change, obstacle) in cases {
        let mut fixture = PlacementFixture::with(1);
        change(&mut fixture.roster);
        fixture.push(1, &task_spec());
        assert_eq!(fixture.next(), None, "{obstacle:?}");
        let needs = TaskRequirements::from_spec(&task_spec());
        let why = placement_obstacle(&needs, None, &fixture.roster, MonotonicTime(0));
        assert_eq!(why, Some(PlacementObstacle::Daemon(obstacle)));
    }
}

#[test]
fn a_sick_daemon_is_avoided_only_while_a_healthy_one_matches() {
    let mut fixture = PlacementFixture::with(2);
    fixture.make_sick(1);
    for n in 1..=3 {
        fixture.push(n, &task_spec());
    }
    assert_eq!(
        fixture.all(),
        [placed_on(1, 2), placed_on(2, 2)],
        "task 3 waits for the healthy daemon"
    );
    let needs = TaskRequirements::from_spec(&task_spec());
    let why = placement_obstacle(&needs, None, &fixture.roster, MonotonicTime(0));
    assert_eq!(why, Some(PlacementObstacle::Daemon(DaemonObstacle::Sick)));
    fixture.roster.close_session(session(2), MonotonicTime(0));
    assert_eq!(
        fixture.all(),
        [placed_on(3, 1)],
        "a sick daemon is used when no other matches"
    );
}

#[test]
fn a_sick_daemon_is_used_after_a_minute_or_when_all_are_sick() {
    let mut fixture = PlacementFixture::with(2);
    fixture.make_sick(1);
    for n in 1..=3 {
        fixture.push(n, &task_spec());
    }
    fixture.all();
    fixture.make_sick(2);
    assert_eq!(fixture.all(), [placed_on(3, 1)]);
    let mut fixture = PlacementFixture::with(2);
    fixture.make_sick(1);
    for n in 1..=3 {
        fixture.push(n, &task_spec());
    }
    fixture.all();
    fixture.now = 60_000;
    for n in 1..=2 {
        fixture
            .roster
            .heartbeat(session(n), false, 60_000, MonotonicTime(1));
    }
    fixture.roster.tick(MonotonicTime(fixture.now));
    assert_eq!(fixture.all(), [placed_on(3, 1)]);
}

#[test]
fn a_daemon_that_rejected_a_task_gets_it_again_only_after_backoff() {
    let mut fixture = PlacementFixture::with(1);
    fixture
        .roster
        .exclude(task(1), daemon_id(1), MonotonicTime(5_000));
    fixture.push(1, &task_spec());
    fixture.push(2, &task_spec());
    assert_eq!(
        fixture.all(),
        [placed_on(2, 1)],
        "the rejection applies to one task only"
    );
    let needs = TaskRequirements::from_spec(&task_spec());
    let why = placement_obstacle(&needs, Some(task(1)), &fixture.roster, MonotonicTime(0));
    assert_eq!(
        why,
        Some(PlacementObstacle::Daemon(DaemonObstacle::Rejected))
    );
    join(
        &mut fixture.roster,
        session(2),
        &hello(2),
        5_000,
        MonotonicTime(0),
    );
    assert_eq!(fixture.all(), [placed_on(1, 2)], "a new daemon may take it");
    let mut fixture = PlacementFixture::with(1);
    fixture
        .roster
        .exclude(task(1), daemon_id(1), MonotonicTime(5_000));
    fixture.push(1, &task_spec());
    assert_eq!(
        (fixture.next(), fixture.queue.next_requeue_at()),
        (None, Some(MonotonicTime(5_000)))
    );
    fixture.now = 5_000;
    assert_eq!(fixture.next(), Some(placed_on(1, 1)));
}

#[test]
fn a_conversation_returns_to_its_last_daemon_if_that_is_available() {
    let mut fixture = PlacementFixture::with(2);
    let key = ConversationKey::from_spec(&in_conversation("c")).unwrap();
    fixture.affinity.remember(&key, daemon_id(2));
    fixture.push(1, &in_conversation("c"));
    fixture.push(2, &task_spec());
    assert_eq!(fixture.all(), [placed_on(1, 2), placed_on(2, 1)]);
    fixture
        .roster
        .set_drained(daemon_id(2), true, MonotonicTime(0));
    fixture.push(3, &in_conversation("c"));
    assert_eq!(fixture.all(), [placed_on(3, 1)]);
}

#[test]
fn a_resumed_task_prefers_its_previous_daemon() {
    let mut fixture = PlacementFixture::with(3);
    fixture.queue.push(QueuedTask {
        task: task(1),
        requirements: TaskRequirements::from_spec(&task_spec()),
        priority: 50,
        conversation: None,
        preferred_daemon: Some(daemon_id(3)),
        eligible_holders: EligibleHolders::Daemons,
    });
    assert_eq!(fixture.next(), Some(placed_on(1, 3)));
}

#[test]
fn one_attempt_of_a_conversation_is_leased_at_a_time() {
    let mut fixture = PlacementFixture::with(2);
    fixture.fence(9, Some("c"), FenceGuard::Leased);
    fixture.push(1, &in_conversation("c"));
    fixture.push(2, &in_conversation("c"));
    fixture.push(3, &in_conversation("d"));
    assert_eq!(fixture.all(), [placed_on(3, 1)]);
    let fence = fixture.fences.remove_fence(attempt(9)).unwrap();
    release_fenced(&mut fixture.queue, &fence);
    assert_eq!(fixture.next(), Some(placed_on(1, 2)));
    fixture.fence(1, Some("c"), FenceGuard::Leased);
    assert_eq!(fixture.next(), None, "turn 2 waits for turn 1");
}

#[test]
fn a_fenced_task_waits_without_blocking_other_tasks() {
    let mut fixture = PlacementFixture::with(1);
    fixture.fence(1, None, FenceGuard::Until(MonotonicTime(35_000)));
    fixture.push(1, &task_spec());
    fixture.push(2, &task_spec());
    assert_eq!(fixture.all(), [placed_on(2, 1)]);
    fixture.roster.release_attempt(attempt(2), MonotonicTime(0));
    assert_eq!(fixture.next(), None, "a free slot does not lift the fence");
    assert_eq!(fixture.queue.next_requeue_at(), Some(MonotonicTime(35_000)));
    let fence = fixture.fences.remove_fence(attempt(1)).unwrap();
    release_fenced(&mut fixture.queue, &fence);
    assert_eq!(fixture.next(), Some(placed_on(1, 1)));

    let mut fixture = PlacementFixture::with(1);
    fixture.fence(9, Some("c"), FenceGuard::Until(MonotonicTime(35_000)));
    fixture.push(1, &in_conversation("c"));
    assert_eq!(fixture.next(), None);
    fixture.now = 34_999;
    assert_eq!(fixture.next(), None);
    fixture.now = 35_000;
    assert_eq!(fixture.next(), Some(placed_on(1, 1)));
}
