//! One task's events as a stream: history first, then live, without a gap or a duplicate.

use std::sync::Arc;

use baton_core::ids::TaskId;
use baton_core::record::TaskRecord;
use baton_core::task::spec::TaskSpec;
use baton_proto::v1;
use baton_proto::v1::watch_task_response::Item;

use crate::api::Api;
use crate::api::error::fault::ApiFault;
use crate::api::request::streams::{ResponseStream, StreamSender};
use crate::api::request::validate;
use crate::api::wire::enums;
use crate::api::wire::event;
use crate::auth::Principal;
use crate::task_watchers::{TaskSubscription, WATCHERS_MAX, WatchUpdate};

impl Api {
    pub(crate) async fn watch_task(
        &self,
        who: Principal,
        request: v1::WatchTaskRequest,
    ) -> Result<ResponseStream<v1::WatchTaskResponse>, ApiFault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        // The place first, the record second: what happens in between is seen twice and shown once.
        let tail = self.subscribe_task(task, request.from_revision)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        let watching = TaskWatchStream {
            spec,
            subscription: tail,
            sent_revision: request.from_revision,
            history_only: request.history_only,
        };
        self.open_stream(&who, |feed| watching.run(record, feed))
    }

    pub(crate) fn subscribe_task(
        &self,
        task: TaskId,
        after: u64,
    ) -> Result<TaskSubscription, ApiFault> {
        let full = ApiFault::TooManyStreams {
            limit: WATCHERS_MAX,
        };
        self.watchers.subscribe(task, after).map_err(|_| full)
    }
}

struct TaskWatchStream {
    spec: Arc<TaskSpec>,
    subscription: TaskSubscription,
    /// Newest revision that was sent or skipped.
    sent_revision: u64,
    history_only: bool,
}

impl TaskWatchStream {
    async fn run(
        mut self,
        record: Arc<TaskRecord>,
        feed: StreamSender<v1::WatchTaskResponse>,
    ) -> Result<(), ApiFault> {
        if let Some(step) = self.subscription.advance(&record) {
            self.send_update(&step, &feed).await?;
        }
        let caught_up = v1::CaughtUp {
            revision: record.revision,
            state: enums::task_state(record.state).into(),
        };
        send_items(&feed, Some(Item::CaughtUp(caught_up))).await?;
        let mut over = self.history_only || record.state.is_terminal();
        while !over {
            let step = self.subscription.next().await;
            if step.missed.is_some() {
                let from_revision = self.sent_revision;
                let cursor = String::new();
                return send_items(
                    &feed,
                    Some(Item::Lagged(v1::Lagged {
                        from_revision,
                        cursor,
                    })),
                )
                .await;
            }
            self.send_update(&step, &feed).await?;
            over = step.record.state.is_terminal();
        }
        Ok(())
    }

    async fn send_update(
        &mut self,
        step: &WatchUpdate,
        feed: &StreamSender<v1::WatchTaskResponse>,
    ) -> Result<(), ApiFault> {
        let after = self.sent_revision;
        self.sent_revision = step.record.revision;
        let events = event::events_after(&self.spec, &step.record, after);
        send_items(feed, with_gaps(after, events)).await
    }
}

/// Each event in its place, and what is missing between them: of what is long ago only operators' verbs are kept.
fn with_gaps(mut shown: u64, events: Vec<v1::TaskEvent>) -> Vec<Item> {
    let mut items = Vec::with_capacity(events.len());
    for event in events {
        if event.revision > shown + 1 {
            items.push(Item::HistoryCut(v1::HistoryCut {
                from_revision: shown + 1,
                to_revision: event.revision - 1,
            }));
        }
        shown = event.revision;
        items.push(Item::Event(event));
    }
    items
}

/// Waits for room; a client that left ends the stream in `Api::stream`.
async fn send_items(
    feed: &StreamSender<v1::WatchTaskResponse>,
    items: impl IntoIterator<Item = Item>,
) -> Result<(), ApiFault> {
    for item in items {
        let message = v1::WatchTaskResponse { item: Some(item) };
        feed.send(Ok(message))
            .await
            .map_err(|_| ApiFault::Stopping)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_revision_is_told_or_said_to_be_gone_once_and_in_order() {
        let event = |revision| v1::TaskEvent {
            revision,
            ..Default::default()
        };
        let items = with_gaps(2, [5, 9, 10, 11].map(event).into());
        let told: Vec<(u64, u64)> = items
            .iter()
            .map(|item| match item {
                Item::HistoryCut(cut) => (cut.from_revision, cut.to_revision),
                Item::Event(event) => (event.revision, event.revision),
                other => panic!("not history: {other:?}"),
            })
            .collect();
        assert_eq!(told, [(3, 4), (5, 5), (6, 8), (9, 9), (10, 10), (11, 11)]);
    }
}
