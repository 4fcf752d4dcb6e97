//! Records the final state of every task as the relay shows it after the run, with its events
//! and its output.

use baton_history::{FinalAttempt, HistoryEvent, HistoryRecorder, Observation, ParticipantLog};
use baton_proto::v1::read_output_response::Item as Piece;
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    AttemptState, ListCheckpointsRequest, ListTasksRequest, ReadOutputRequest, Task, TaskEvent,
    TaskState, WatchTaskRequest,
};
use baton_tests::{TestClient, wait_within};

use crate::chaos_run::now_ms;

pub(crate) fn task_state_name(state: TaskState) -> String {
    short_enum_name(state.as_str_name(), "TASK_STATE_")
}

fn short_enum_name(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

pub(crate) fn history_event(event: &TaskEvent) -> HistoryEvent {
    let state = match event.state() {
        AttemptState::Unspecified => String::new(),
        state => short_enum_name(state.as_str_name(), "ATTEMPT_STATE_"),
    };
    HistoryEvent {
        revision: event.revision,
        kind: short_enum_name(event.kind().as_str_name(), "TASK_EVENT_KIND_"),
        attempt: event.attempt_id.clone(),
        state,
        task_state: task_state_name(event.task_state()),
    }
}

/// All tasks of the client's tenant.
pub(crate) async fn list_all_tasks(client: &TestClient) -> Vec<Task> {
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListTasksRequest {
            page_size: 200,
            page_token,
            ..ListTasksRequest::default()
        };
        let mut tasks = client.tasks();
        let page = wait_within("a page of tasks", tasks.list(request)).await;
        let page = page.expect("tasks can be listed").into_inner();
        assert_eq!(page.skipped, 0, "every record can be read");
        found.extend(page.tasks);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return found;
        }
    }
}

/// Records all tasks of one tenant.
pub(crate) async fn record_final_state(
    client: &TestClient,
    tenant: &str,
    recorder: &HistoryRecorder,
) {
    let view = recorder.participant_log(&format!("relay-{tenant}"));
    let mut look = FinalStateReader {
        client,
        tenant,
        view: view.expect("a file can be created"),
        output_readings: 0,
    };
    for listed in list_all_tasks(client).await {
        let task = client.get(&listed.task_id).await;
        look.record_task(&task);
        look.record_goal(&task).await;
        look.record_timeline(&task.task_id).await;
        for attempt in &task.attempts {
            look.record_output(&task.task_id, &attempt.attempt_id).await;
        }
    }
}

struct FinalStateReader<'a> {
    client: &'a TestClient,
    tenant: &'a str,
    view: ParticipantLog,
    output_readings: u64,
}

impl FinalStateReader<'_> {
    fn record_observation(&self, observation: Observation) {
        self.view
            .record(now_ms(), observation)
            .expect("the history can be written");
    }

    fn record_task(&self, task: &Task) {
        let attempts = task.attempts.iter().map(|attempt| FinalAttempt {
            attempt: attempt.attempt_id.clone(),
            number: attempt.attempt_number,
            state: short_enum_name(attempt.state().as_str_name(), "ATTEMPT_STATE_"),
        });
        self.record_observation(Observation::Record {
            tenant: self.tenant.to_owned(),
            task: task.task_id.clone(),
            revision: task.revision,
            state: task_state_name(task.state()),
            attempts: attempts.collect(),
        });
    }

    /// Records the stored progress and checkpoints.
    async fn record_goal(&self, task: &Task) {
        let Some(progress) = &task.progress else {
            return;
        };
        let mut request = ListCheckpointsRequest {
            task_id: task.task_id.clone(),
            ..ListCheckpointsRequest::default()
        };
        let mut checkpoints = Vec::new();
        loop {
            let mut tasks = self.client.tasks();
            let page = wait_within("checkpoints", tasks.list_checkpoints(request.clone())).await;
            let page = page.expect("checkpoints can be listed").into_inner();
            checkpoints.extend(page.checkpoints.iter().map(|one| one.number));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        checkpoints.sort_unstable();
        self.record_observation(Observation::Goal {
            task: task.task_id.clone(),
            completed: progress.completed_items.clone(),
            dropped: progress.completed_items_truncated,
            checkpoints,
        });
    }

    async fn record_timeline(&self, task: &str) {
        let request = WatchTaskRequest {
            task_id: task.to_owned(),
            history_only: true,
            ..WatchTaskRequest::default()
        };
        let mut tasks = self.client.tasks();
        let opened = wait_within("a history", tasks.watch(request)).await;
        let mut items = opened.expect("a task can be watched").into_inner();
        while let Some(message) = wait_within("a history", items.message())
            .await
            .expect("a history ends")
        {
            if let Some(Item::Event(event)) = message.item {
                let task = task.to_owned();
                let event = history_event(&event);
                self.record_observation(Observation::Timeline { task, event });
            }
        }
    }

    async fn record_output(&mut self, task: &str, attempt: &str) {
        self.output_readings += 1;
        let reading = self.output_readings;
        let request = ReadOutputRequest {
            task_id: task.to_owned(),
            attempt_id: attempt.to_owned(),
            ..ReadOutputRequest::default()
        };
        let mut tasks = self.client.tasks();
        let opened = wait_within("output", tasks.read_output(request)).await;
        let mut pieces = opened.expect("output can be read").into_inner();
        while let Some(message) = wait_within("output", pieces.message())
            .await
            .expect("output ends with an end message")
        {
            let attempt = attempt.to_owned();
            match message.item {
                Some(Piece::Chunk(chunk)) => self.record_observation(Observation::Read {
                    reading,
                    tenant: self.tenant.to_owned(),
                    task: task.to_owned(),
                    attempt,
                    offset: chunk.offset,
                    text: String::from_utf8_lossy(&chunk.data).into_owned(),
                }),
                Some(Piece::Cut(cut)) => self.record_observation(Observation::ReadCut {
                    reading,
                    attempt,
                    offset: cut.offset,
                    length: cut.length,
                }),
                Some(Piece::End(end)) => self.record_observation(Observation::ReadEnd {
                    reading,
                    attempt,
                    offset: end.offset,
                    complete: end.complete,
                }),
                None => {}
            }
        }
    }
}
