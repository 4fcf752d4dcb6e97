//! Order, bounds, removal, classes and conversations of the queue.

use uuid::Uuid;

use super::*;
use crate::samples::{task_spec, tenant};
use crate::task::spec::TaskSpec;

pub(super) fn task(n: u128) -> TaskId {
    TaskId(Uuid::from_u128(n))
}

pub(super) fn waiting(n: u128, tenant_name: &str) -> QueuedTask {
    let spec = TaskSpec {
        tenant: tenant(tenant_name),
        ..task_spec()
    };
    QueuedTask {
        task: task(n),
        requirements: TaskRequirements::from_spec(&spec),
        priority: 50,
        conversation: None,
        preferred_daemon: None,
        eligible_holders: EligibleHolders::Daemons,
    }
}

fn needing(n: u128, agent: &str) -> QueuedTask {
    let mut waiting = waiting(n, "a");
    waiting.requirements.agent = agent.into();
    waiting
}

fn talking(n: u128, priority: u8) -> QueuedTask {
    QueuedTask {
        priority,
        conversation: Some(talk()),
        ..waiting(n, "a")
    }
}

fn talk() -> ConversationKey {
    ConversationKey {
        tenant: tenant("a"),
        name: "c".into(),
    }
}

/// Places everything that is in line, in order.
pub(super) fn drain(queue: &mut TaskQueue) -> Vec<TaskId> {
    let mut order = Vec::new();
    while let Some(candidate) = queue.first() {
        queue.note_placed(&candidate);
        order.push(candidate.task);
    }
    order
}

fn first(queue: &TaskQueue) -> Option<TaskId> {
    queue.first().map(|candidate| candidate.task)
}

#[test]
fn priority_goes_first_then_tenants_in_turn_then_age() {
    let mut queue = TaskQueue::default();
    for n in 1..=3 {
        queue.push(waiting(n, "a"));
    }
    for n in 4..=5 {
        queue.push(waiting(n, "b"));
    }
    queue.push(QueuedTask {
        priority: 51,
        ..waiting(6, "b")
    });
    queue.push(QueuedTask {
        priority: 0,
        ..waiting(7, "a")
    });
    assert_eq!(drain(&mut queue), [6, 1, 4, 2, 5, 3, 7].map(task));
    assert!(queue.is_empty() && queue.classes.is_empty());
}

#[test]
fn a_task_waits_once_and_leaves_once() {
    let mut queue = TaskQueue::default();
    queue.push(waiting(1, "a"));
    queue.push(waiting(1, "a"));
    assert_eq!(queue.len(), 1);
    assert!(queue.remove(task(1)) && !queue.remove(task(1)));
    assert!(queue.is_empty());
}

#[test]
fn a_class_that_nobody_can_take_is_skipped_whole_until_a_daemon_meets_it() {
    let mut queue = TaskQueue::default();
    for n in 1..=3 {
        queue.push(needing(n, "rare"));
    }
    queue.push(needing(4, "common"));
    let candidate = queue.first().unwrap();
    queue.skip_class(&candidate);
    queue.push(needing(5, "rare"));
    assert_eq!(first(&queue), Some(task(4)));
    queue.wake(|needs| needs.agent == "else", |_| true);
    assert_eq!(drain(&mut queue), [task(4)]);
    queue.wake(|needs| needs.agent == "rare", |_| true);
    assert_eq!(drain(&mut queue), [1, 2, 3, 5].map(task));
}

#[test]
fn a_skipped_class_that_empties_is_forgotten() {
    let mut queue = TaskQueue::default();
    queue.push(needing(1, "rare"));
    let candidate = queue.first().unwrap();
    queue.skip_class(&candidate);
    queue.remove(task(1));
    queue.push(needing(2, "rare"));
    assert_eq!(first(&queue), Some(task(2)), "tried again");
    queue.remove(task(2));
    assert!(queue.skipped_classes.is_empty() && queue.class_ids.is_empty());
}

#[test]
fn a_task_set_aside_keeps_its_place_and_comes_back_in_time() {
    let mut queue = TaskQueue::default();
    for n in 1..=2 {
        queue.push(waiting(n, "a"));
    }
    queue.defer_until(task(1), MonotonicTime(100));
    assert_eq!(
        (first(&queue), queue.next_requeue_at()),
        (Some(task(2)), Some(MonotonicTime(100)))
    );
    queue.tick(MonotonicTime(99));
    queue.wake(|_| true, |_| true);
    assert_eq!(
        first(&queue),
        Some(task(2)),
        "a fence is not lifted by a daemon"
    );
    queue.tick(MonotonicTime(100));
    assert_eq!(
        (first(&queue), queue.next_requeue_at()),
        (Some(task(1)), None)
    );
    queue.defer_until(task(1), MonotonicTime(500));
    queue.requeue(task(1));
    assert_eq!(first(&queue), Some(task(1)));
    queue.defer_until(task(1), MonotonicTime(500));
    queue.remove(task(1));
    assert_eq!((queue.next_requeue_at(), queue.len()), (None, 1));
}

#[test]
fn a_task_passed_over_comes_back_for_a_daemon_that_takes_it() {
    let mut queue = TaskQueue::default();
    queue.push(waiting(1, "a"));
    queue.pass_over(task(1), MonotonicTime(100));
    queue.wake(|_| true, |_| false);
    assert_eq!(first(&queue), None);
    queue.wake(|_| true, |_| true);
    assert_eq!((first(&queue), queue.passed_over.len()), (Some(task(1)), 0));
}

#[test]
fn turns_of_one_conversation_go_one_at_a_time_in_their_order() {
    let mut queue = TaskQueue::default();
    queue.push(talking(1, 50));
    queue.push(talking(2, 50));
    queue.push(waiting(3, "a"));
    assert!(queue.is_behind_conversation(task(2)) && !queue.is_behind_conversation(task(1)));
    queue.mark_conversation_busy(&talk());
    assert!(queue.is_behind_conversation(task(1)));
    assert_eq!(first(&queue), Some(task(3)));
    queue.mark_conversation_free(&talk());
    assert_eq!(first(&queue), Some(task(1)));
    queue.push(talking(4, 90));
    assert!(
        queue.is_behind_conversation(task(1)),
        "a more urgent turn goes before it"
    );
    assert_eq!(first(&queue), Some(task(4)));
    queue.remove(task(4));
    queue.remove(task(1));
    assert_eq!(first(&queue), Some(task(2)), "the next turn moved up");
    queue.defer_until(task(2), MonotonicTime(9));
    queue.requeue_conversation(&talk());
    assert_eq!(queue.next_requeue_at(), None);
    assert_eq!(drain(&mut queue), [2, 3].map(task));
    assert!(queue.conversations.is_empty());
}

#[test]
fn a_turn_that_is_tried_again_goes_before_the_turns_that_were_submitted_after_it() {
    let mut queue = TaskQueue::default();
    queue.push(talking(2, 50));
    queue.push(talking(3, 50));
    queue.push(talking(1, 50));
    assert_eq!(first(&queue), Some(task(1)));
    assert!(queue.is_behind_conversation(task(2)));
    assert_eq!(drain(&mut queue), [1, 2, 3].map(task));
}
