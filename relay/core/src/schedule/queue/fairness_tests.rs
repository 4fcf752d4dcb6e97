//! Tests of fairness between tenants, and that the cost of placement does not grow with the
//! queue.

use proptest::prelude::*;

use super::queue_tests::{drain, task, waiting};
use super::*;

#[test]
fn a_small_tenant_waits_at_most_twice_as_long_behind_a_large_one() {
    let mut queue = TaskQueue::default();
    for n in 0..10_000 {
        queue.push(waiting(n, "big"));
    }
    for n in 10_000..10_010 {
        queue.push(waiting(n, "small"));
    }
    let order = drain(&mut queue);
    let last = order.iter().rposition(|t| *t >= task(10_000)).unwrap();
    assert!(last < 20, "served at position {last}");
}

#[test]
fn tasks_that_cannot_be_placed_are_examined_once_per_class() {
    let mut queue = TaskQueue::default();
    for n in 0..100_000u128 {
        let mut unplaceable = waiting(n, "a");
        unplaceable.requirements.agent = format!("missing-{}", n % 10);
        queue.push(unplaceable);
    }
    for n in 100_000..110_000 {
        queue.push(waiting(n, "a"));
    }
    let mut examined = 0;
    let mut served = 0;
    while let Some(candidate) = queue.first() {
        examined += 1;
        if candidate.requirements.agent == "claude" {
            queue.note_placed(&candidate);
            served += 1;
        } else {
            queue.skip_class(&candidate);
        }
    }
    assert_eq!((served, examined), (10_000, 10_010));
    assert_eq!(queue.len(), 100_000);
}

#[derive(Clone, Debug)]
enum QueueStep {
    Push { tenant: usize, priority: u8 },
    Place,
    Remove(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<QueueStep>> {
    let step = prop_oneof![
        3 => (0usize..4, 49u8..51).prop_map(|(tenant, priority)| QueueStep::Push { tenant, priority }),
        2 => Just(QueueStep::Place),
        1 => any::<prop::sample::Index>().prop_map(QueueStep::Remove),
    ];
    prop::collection::vec(step, 1..200)
}

/// One task of the reference model, which is a plain list.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ListedTask {
    task: TaskId,
    tenant: usize,
    priority: u8,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Within the highest priority the oldest task of a tenant is served first, and between two
    /// turns of one tenant every other tenant that kept waiting had a turn.
    #[test]
    fn every_waiting_tenant_gets_its_turn(steps in steps()) {
        let names = ["a", "b", "c", "d"];
        let mut queue = TaskQueue::default();
        let mut known: Vec<ListedTask> = Vec::new();
        // How often other tenants were served on this level while the tenant waited there.
        let mut passed = [[0usize; 4]; 2];
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                QueueStep::Push { tenant, priority } => {
                    let task = task(n as u128);
                    queue.push(QueuedTask { priority, ..waiting(n as u128, names[tenant]) });
                    known.push(ListedTask { task, tenant, priority });
                }
                QueueStep::Remove(at) if !known.is_empty() => {
                    let removed = known.remove(at.index(known.len()));
                    prop_assert!(queue.remove(removed.task));
                    let same = |k: &ListedTask| (k.tenant, k.priority) == (removed.tenant, removed.priority);
                    if !known.iter().any(same) {
                        passed[usize::from(removed.priority - 49)][removed.tenant] = 0;
                    }
                }
                QueueStep::Remove(_) => {}
                QueueStep::Place => {
                    let top = known.iter().map(|k| k.priority).max();
                    let Some(candidate) = queue.first() else {
                        prop_assert_eq!(top, None);
                        continue;
                    };
                    queue.note_placed(&candidate);
                    let served = *known.iter().find(|k| k.task == candidate.task).unwrap();
                    prop_assert_eq!(Some(served.priority), top);
                    let same = |k: &&ListedTask| (k.tenant, k.priority) == (served.tenant, served.priority);
                    prop_assert_eq!(known.iter().find(same), Some(&served), "first come, first served");
                    known.retain(|k| k.task != served.task);
                    let level = usize::from(served.priority - 49);
                    for (tenant, passed) in passed[level].iter_mut().enumerate() {
                        let waits = known.iter().any(|k| (k.tenant, k.priority) == (tenant, served.priority));
                        *passed = if tenant == served.tenant || !waits { 0 } else { *passed + 1 };
                        prop_assert!(*passed <= 3, "tenant {} was passed over", tenant);
                    }
                }
            }
            prop_assert_eq!(queue.len(), known.len());
        }
    }
}
