//! A task's events as they come. Checks that revisions are 1, 2, 3, … without gap or duplicate.

use baton_proto::timestamp_to_ms;
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{TaskEvent, TaskEventKind, TaskState, WatchTaskRequest, WatchTaskResponse};
use tonic::{Status, Streaming};

use crate::client::test_client::TestClient;
use crate::wait::{TEST_TIMEOUT, wait_within};

#[derive(Debug)]
pub struct TaskWatch {
    stream: Streaming<WatchTaskResponse>,
    /// Everything seen so far.
    pub events: Vec<TaskEvent>,
    /// How many of them came before CaughtUp; none until it came.
    pub history_length: Option<usize>,
    revision: u64,
}

impl TaskWatch {
    pub async fn open(client: &TestClient, task_id: &str, after: u64) -> Result<Self, Status> {
        let request = WatchTaskRequest {
            task_id: task_id.to_owned(),
            from_revision: after,
            ..WatchTaskRequest::default()
        };
        let mut tasks = client.tasks();
        let opened = wait_within("a watch to open", tasks.watch(request)).await?;
        Ok(Self {
            stream: opened.into_inner(),
            events: Vec::new(),
            history_length: None,
            revision: after,
        })
    }

    /// The next event; none when the watch has ended.
    pub async fn next(&mut self) -> Result<Option<TaskEvent>, Status> {
        loop {
            let Some(message) = self.stream.message().await? else {
                return Ok(None);
            };
            match message.item {
                // It only says that the stream lives.
                None => {}
                Some(Item::Event(event)) => {
                    self.revision += 1;
                    assert_eq!(
                        event.revision, self.revision,
                        "no gap and no duplicate: {event:?}"
                    );
                    self.events.push(event.clone());
                    return Ok(Some(event));
                }
                Some(Item::CaughtUp(_)) => {
                    assert_eq!(self.history_length, None, "CaughtUp comes once");
                    self.history_length = Some(self.events.len());
                }
                Some(Item::Lagged(lagged)) => panic!("a test's watch was too slow: {lagged:?}"),
                Some(Item::HistoryCut(cut)) => panic!("a test's history was cut: {cut:?}"),
            }
        }
    }

    /// The first event, seen already or yet to come, that is wanted.
    pub async fn wait_for_event(
        &mut self,
        what: &str,
        wanted: impl Fn(&TaskEvent) -> bool,
    ) -> TaskEvent {
        if let Some(seen) = self.events.iter().find(|event| wanted(event)) {
            return seen.clone();
        }
        loop {
            match self.next_within_timeout(what).await {
                Some(event) if wanted(&event) => return event,
                Some(_) => {}
                None => panic!("the watch ended before {what}: {:#?}", self.events),
            }
        }
    }

    /// The next event; a panic that shows what there was when none comes.
    async fn next_within_timeout(&mut self, what: &str) -> Option<TaskEvent> {
        match tokio::time::timeout(TEST_TIMEOUT, self.next()).await {
            Ok(event) => event.expect("the watch goes on"),
            Err(_) => panic!("waited in vain for {what} after {:#?}", self.events),
        }
    }

    pub async fn wait_for_kind(&mut self, kind: TaskEventKind) -> TaskEvent {
        self.wait_for_event(&format!("{kind:?}"), |event| event.kind() == kind)
            .await
    }

    pub async fn wait_for_state(&mut self, state: TaskState) -> TaskEvent {
        self.wait_for_event(&format!("{state:?}"), |event| event.task_state() == state)
            .await
    }

    /// All events, to the end of the watch.
    pub async fn collect_to_end(mut self) -> Vec<TaskEvent> {
        while self
            .next_within_timeout("the end of the watch")
            .await
            .is_some()
        {}
        self.events
    }
}

/// Relay time of an event in milliseconds.
pub fn recorded_ms(event: &TaskEvent) -> u64 {
    timestamp_to_ms(event.recorded_at.as_ref().expect("every event has a time"))
}
