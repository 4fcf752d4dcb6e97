//! Tests of the queue: order, removal, classes and conversations.

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

fn needing_agent(n: u128, agent: &str) -> QueuedTask {
    let mut waiting = waiting(n, "a");
    waiting.requirements.agent = agent.into();
    waiting
}

fn in_conversation(n: u128, priority: u8) -> QueuedTask {
    QueuedTask {
        priority,
        conversation: Some(conversation_key()),
        ..waiting(n, "a")
    }
}

fn conversation_key() -> ConversationKey {
    ConversationKey {
        tenant: tenant("a"),
        name: "c".into(),
    }
}

/// Places every task that is in a lane, in order.
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
fn a_task_is_queued_once_and_removed_once() {
    let mut queue = TaskQueue::default();
    queue.push(waiting(1, "a"));
    queue.push(waiting(1, "a"));
    assert_eq!(queue.len(), 1);
    assert!(queue.remove(task(1)) && !queue.remove(task(1)));
    assert!(queue.is_empty());
}

#[test]
fn a_class_without_a_daemon_is_skipped_until_one_meets_it() {
    let mut queue = TaskQueue::default();
    for n in 1..=3 {
        queue.push(needing_agent(n, "rare"));
    }
    queue.push(needing_agent(4, "common"));
    let candidate = queue.first().unwrap();
    queue.skip_class(&candidate);
    queue.push(needing_agent(5, "rare"));
    assert_eq!(first(&queue), Some(task(4)));
    queue.wake(|needs| needs.agent == "else", |_| true);
    assert_eq!(drain(&mut queue), [task(4)]);
    queue.wake(|needs| needs.agent == "rare", |_| true);
    assert_eq!(drain(&mut queue), [1, 2, 3, 5].map(task));
}

#[test]
fn a_skipped_class_that_empties_is_forgotten() {
    let mut queue = TaskQueue::default();
    queue.push(needing_agent(1, "rare"));
    let candidate = queue.first().unwrap();
    queue.skip_class(&candidate);
    queue.remove(task(1));
    queue.push(needing_agent(2, "rare"));
    assert_eq!(first(&queue), Some(task(2)), "the class is tried again");
    queue.remove(task(2));
    assert!(queue.skipped_classes.is_empty() && queue.class_ids.is_empty());
}

#[test]
fn a_deferred_task_keeps_its_position_and_returns_on_time() {
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
        "an available daemon does not lift a fence"
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
fn a_passed_over_task_returns_for_a_daemon_that_takes_it() {
    let mut queue = TaskQueue::default();
    queue.push(waiting(1, "a"));
    queue.pass_over(task(1), MonotonicTime(100));
    queue.wake(|_| true, |_| false);
    assert_eq!(first(&queue), None);
    queue.wake(|_| true, |_| true);
    assert_eq!((first(&queue), queue.passed_over.len()), (Some(task(1)), 0));
}

#[test]
fn turns_of_one_conversation_are_placed_one_at_a_time_in_order() {
    let mut queue = TaskQueue::default();
    queue.push(in_conversation(1, 50));
    queue.push(in_conversation(2, 50));
    queue.push(waiting(3, "a"));
    assert!(queue.is_behind_conversation(task(2)) && !queue.is_behind_conversation(task(1)));
    queue.mark_conversation_busy(&conversation_key());
    assert!(queue.is_behind_conversation(task(1)));
    assert_eq!(first(&queue), Some(task(3)));
    queue.mark_conversation_free(&conversation_key());
    assert_eq!(first(&queue), Some(task(1)));
    queue.push(in_conversation(4, 90));
    assert!(
        queue.is_behind_conversation(task(1)),
        "a turn of higher priority comes first"
    );
    assert_eq!(first(&queue), Some(task(4)));
    queue.remove(task(4));
    queue.remove(task(1));
    assert_eq!(first(&queue), Some(task(2)), "the next turn is placed");
    queue.defer_until(task(2), MonotonicTime(9));
    queue.requeue_conversation(&conversation_key());
    assert_eq!(queue.next_requeue_at(), None);
    assert_eq!(drain(&mut queue), [2, 3].map(task));
    assert!(queue.conversations.is_empty());
}

#[test]
fn a_retried_turn_comes_before_turns_submitted_later() {
    let mut queue = TaskQueue::default();
    queue.push(in_conversation(2, 50));
    queue.push(in_conversation(3, 50));
    queue.push(in_conversation(1, 50));
    assert_eq!(first(&queue), Some(task(1)));
    assert!(queue.is_behind_conversation(task(2)));
    assert_eq!(drain(&mut queue), [1, 2, 3].map(task));
}
