//! Fairness between tenants, and that size alone costs nothing.

use proptest::prelude::*;

use super::queue_tests::{drain, task, waiting};
use super::*;

#[test]
fn ten_tasks_behind_ten_thousand_wait_at_most_twice_their_wait_alone() {
    let mut queue = TaskQueue::default();
    for n in 0..10_000 {
        queue.push(waiting(n, "big"));
    }
    for n in 10_000..10_010 {
        queue.push(waiting(n, "small"));
    }
    let order = drain(&mut queue);
    let last = order.iter().rposition(|t| *t >= task(10_000)).unwrap();
    assert!(last < 20, "served at place {last}");
}

#[test]
fn a_hundred_thousand_waiting_tasks_that_cannot_be_placed_are_looked_at_once() {
    let mut queue = TaskQueue::default();
    for n in 0..100_000u128 {
        let mut stuck = waiting(n, "a");
        stuck.requirements.agent = format!("missing-{}", n % 10);
        queue.push(stuck);
    }
    for n in 100_000..110_000 {
        queue.push(waiting(n, "a"));
    }
    let mut looked = 0;
    let mut served = 0;
    while let Some(candidate) = queue.first() {
        looked += 1;
        if candidate.requirements.agent == "claude" {
            queue.note_placed(&candidate);
            served += 1;
        } else {
            queue.skip_class(&candidate);
        }
    }
    assert_eq!((served, looked), (10_000, 10_010));
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

/// One task as a plain list knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ListedTask {
    task: TaskId,
    tenant: usize,
    priority: u8,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Among those with the highest priority, the first of a tenant is served, and between two turns of one
    /// tenant each other tenant that waited all the time had one.
    #[test]
    fn every_waiting_tenant_has_its_turn(steps in steps()) {
        let names = ["a", "b", "c", "d"];
        let mut queue = TaskQueue::default();
        let mut known: Vec<ListedTask> = Vec::new();
        // How often others were served on this level while the tenant waited there.
        let mut passed = [[0usize; 4]; 2];
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                QueueStep::Push { tenant, priority } => {
                    let task = task(n as u128);
                    queue.push(QueuedTask { priority, ..waiting(n as u128, names[tenant]) });
                    known.push(ListedTask { task, tenant, priority });
                }
                QueueStep::Remove(at) if !known.is_empty() => {
                    let gone = known.remove(at.index(known.len()));
                    prop_assert!(queue.remove(gone.task));
                    let same = |k: &ListedTask| (k.tenant, k.priority) == (gone.tenant, gone.priority);
                    if !known.iter().any(same) {
                        passed[usize::from(gone.priority - 49)][gone.tenant] = 0;
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
