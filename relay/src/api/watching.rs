//! One task's events as a stream: history first, then live, without a gap or a duplicate.

use std::sync::Arc;

use baton_core::id::TaskId;
use baton_core::record::TaskRecord;
use baton_core::spec::TaskSpec;
use baton_proto::v1;
use baton_proto::v1::watch_task_response::Item;

use super::fault::Fault;
use super::streams::{Answers, Feed};
use super::{Api, events, validate};
use crate::auth::Principal;
use crate::watch::{Step, Tail, WATCHERS_MAX};
use crate::wire::words;

impl Api {
    pub(super) async fn watch_task(
        &self,
        who: Principal,
        request: v1::WatchTaskRequest,
    ) -> Result<Answers<v1::WatchTaskResponse>, Fault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        // The place first, the record second: what happens in between is seen twice and shown once.
        let tail = self.watch_place(task, request.from_revision)?;
        let (spec, record) = self.stored_task(&who, task).await?;
        let watching = Watching {
            spec,
            tail,
            shown: request.from_revision,
            history_only: request.history_only,
        };
        self.stream(&who, |feed| watching.run(record, feed))
    }

    pub(super) fn watch_place(&self, task: TaskId, after: u64) -> Result<Tail, Fault> {
        let full = Fault::TooManyStreams {
            limit: WATCHERS_MAX,
        };
        self.watchers.subscribe(task, after).map_err(|_| full)
    }
}

struct Watching {
    spec: Arc<TaskSpec>,
    tail: Tail,
    /// Newest revision that was sent or skipped.
    shown: u64,
    history_only: bool,
}

impl Watching {
    async fn run(
        mut self,
        record: Arc<TaskRecord>,
        feed: Feed<v1::WatchTaskResponse>,
    ) -> Result<(), Fault> {
        if let Some(step) = self.tail.advance(&record) {
            self.show(&step, &feed).await?;
        }
        let caught_up = v1::CaughtUp {
            revision: record.revision,
            state: words::task_state(record.state).into(),
        };
        send(&feed, Some(Item::CaughtUp(caught_up))).await?;
        let mut over = self.history_only || record.state.is_terminal();
        while !over {
            let step = self.tail.next().await;
            if step.missed.is_some() {
                let from_revision = self.shown;
                let cursor = String::new();
                return send(
                    &feed,
                    Some(Item::Lagged(v1::Lagged {
                        from_revision,
                        cursor,
                    })),
                )
                .await;
            }
            self.show(&step, &feed).await?;
            over = step.record.state.is_terminal();
        }
        Ok(())
    }

    async fn show(&mut self, step: &Step, feed: &Feed<v1::WatchTaskResponse>) -> Result<(), Fault> {
        let after = self.shown;
        self.shown = step.record.revision;
        let events = events::after(&self.spec, &step.record, after);
        send(feed, with_cuts(after, events)).await
    }
}

/// Each event in its place, and what is missing between them: of what is long ago only operators' verbs are kept.
fn with_cuts(mut shown: u64, events: Vec<v1::TaskEvent>) -> Vec<Item> {
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
async fn send(
    feed: &Feed<v1::WatchTaskResponse>,
    items: impl IntoIterator<Item = Item>,
) -> Result<(), Fault> {
    for item in items {
        let message = v1::WatchTaskResponse { item: Some(item) };
        feed.send(Ok(message)).await.map_err(|_| Fault::Stopping)?;
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
        let items = with_cuts(2, [5, 9, 10, 11].map(event).into());
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
