//! Streams one task's events: first the history, then live, without gaps or duplicates.

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
        // Subscribe before reading the record: an event in between is received twice and sent once,
        // but never missed.
        let subscription = self.subscribe_task(task, request.from_revision)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        let watch = TaskWatchStream {
            spec,
            subscription,
            sent_revision: request.from_revision,
            history_only: request.history_only,
        };
        self.open_stream(&who, |feed| watch.run(record, feed))
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
        if let Some(update) = self.subscription.advance(&record) {
            self.send_update(&update, &feed).await?;
        }
        let caught_up = v1::CaughtUp {
            revision: record.revision,
            state: enums::task_state(record.state).into(),
        };
        send_items(&feed, Some(Item::CaughtUp(caught_up))).await?;
        let mut ended = self.history_only || record.state.is_terminal();
        while !ended {
            let update = self.subscription.next().await;
            if update.missed.is_some() {
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
            self.send_update(&update, &feed).await?;
            ended = update.record.state.is_terminal();
        }
        Ok(())
    }

    async fn send_update(
        &mut self,
        update: &WatchUpdate,
        feed: &StreamSender<v1::WatchTaskResponse>,
    ) -> Result<(), ApiFault> {
        let after = self.sent_revision;
        self.sent_revision = update.record.revision;
        let events = event::events_after(&self.spec, &update.record, after);
        send_items(feed, with_gaps(after, events)).await
    }
}

/// The events in order, with a cut for each gap in the revisions. Old parts of a timeline keep only
/// operator commands.
fn with_gaps(mut last_revision: u64, events: Vec<v1::TaskEvent>) -> Vec<Item> {
    let mut items = Vec::with_capacity(events.len());
    for event in events {
        if event.revision > last_revision + 1 {
            items.push(Item::HistoryCut(v1::HistoryCut {
                from_revision: last_revision + 1,
                to_revision: event.revision - 1,
            }));
        }
        last_revision = event.revision;
        items.push(Item::Event(event));
    }
    items
}

/// Waits while the channel is full. If the client leaves, `Api::open_stream` ends the feeder.
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
    fn every_revision_is_sent_or_reported_cut_once_and_in_order() {
        let event = |revision| v1::TaskEvent {
            revision,
            ..Default::default()
        };
        let items = with_gaps(2, [5, 9, 10, 11].map(event).into());
        let revisions: Vec<(u64, u64)> = items
            .iter()
            .map(|item| match item {
                Item::HistoryCut(cut) => (cut.from_revision, cut.to_revision),
                Item::Event(event) => (event.revision, event.revision),
                other => panic!("not history: {other:?}"),
            })
            .collect();
        let expected = [(3, 4), (5, 5), (6, 8), (9, 9), (10, 10), (11, 11)];
        assert_eq!(revisions, expected);
    }
}
