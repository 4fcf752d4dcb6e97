//! A watch of a task's events. It checks that revisions are 1, 2, 3, … without gap or
//! duplicate.

use baton_proto::timestamp_to_ms;
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    AttemptState, TaskEvent, TaskEventKind, TaskState, WatchTaskRequest, WatchTaskResponse,
};
use tonic::{Status, Streaming};

use crate::client::test_client::TestClient;
use crate::wait::{TEST_TIMEOUT, wait_within};

#[derive(Debug)]
pub struct TaskWatch {
    stream: Streaming<WatchTaskResponse>,
    /// All events so far.
    pub events: Vec<TaskEvent>,
    /// Number of events before CaughtUp; none until it arrived.
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

    /// The next event; none after the end of the watch.
    pub async fn next(&mut self) -> Result<Option<TaskEvent>, Status> {
        loop {
            let Some(message) = self.stream.message().await? else {
                return Ok(None);
            };
            match message.item {
                // An empty message only shows that the stream is alive.
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
                    assert_eq!(self.history_length, None, "CaughtUp is sent once");
                    self.history_length = Some(self.events.len());
                }
                Some(Item::Lagged(lagged)) => panic!("a test's watch was too slow: {lagged:?}"),
                Some(Item::HistoryCut(cut)) => panic!("a test's history was cut: {cut:?}"),
            }
        }
    }

    /// The first matching event, already received or still to come.
    pub async fn wait_for_event(
        &mut self,
        what: &str,
        matches: impl Fn(&TaskEvent) -> bool,
    ) -> TaskEvent {
        if let Some(event) = self.events.iter().find(|event| matches(event)) {
            return event.clone();
        }
        loop {
            match self.next_within_timeout(what).await {
                Some(event) if matches(&event) => return event,
                Some(_) => {}
                None => panic!("the watch ended before {what}: {:#?}", self.events),
            }
        }
    }

    /// The next event. Panics with the events so far after the deadline.
    async fn next_within_timeout(&mut self, what: &str) -> Option<TaskEvent> {
        match tokio::time::timeout(TEST_TIMEOUT, self.next()).await {
            Ok(event) => event.expect("the watch does not fail"),
            Err(_) => panic!("timed out waiting for {what} after {:#?}", self.events),
        }
    }

    pub async fn wait_for_output(&mut self) {
        let is_streaming = |event: &TaskEvent| event.state() == AttemptState::Streaming;
        self.wait_for_event("output", is_streaming).await;
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
