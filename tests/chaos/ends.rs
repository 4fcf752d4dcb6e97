//! The last look: every task as the relay shows it when all is over, with its events and its output.

use baton_history::{Event, FinalAttempt, Recorder, Saw, Viewpoint};
use baton_proto::v1::read_output_response::Item as Piece;
use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    AttemptState, ListCheckpointsRequest, ListTasksRequest, ReadOutputRequest, Task, TaskEvent,
    TaskState, WatchTaskRequest,
};
use baton_tests::{Client, within};

use crate::run::now;

pub(crate) fn task_word(state: TaskState) -> String {
    word(state.as_str_name(), "TASK_STATE_")
}

fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

pub(crate) fn event(told: &TaskEvent) -> Event {
    let state = match told.state() {
        AttemptState::Unspecified => String::new(),
        state => word(state.as_str_name(), "ATTEMPT_STATE_"),
    };
    Event {
        revision: told.revision,
        kind: word(told.kind().as_str_name(), "TASK_EVENT_KIND_"),
        attempt: told.attempt_id.clone(),
        state,
        task_state: task_word(told.task_state()),
    }
}

/// All ids of the client's tenant.
pub(crate) async fn all_tasks(client: &Client) -> Vec<Task> {
    let mut found = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListTasksRequest {
            page_size: 200,
            page_token,
            ..ListTasksRequest::default()
        };
        let mut tasks = client.tasks();
        let page = within("a page of tasks", tasks.list(request)).await;
        let page = page.expect("tasks can be listed").into_inner();
        assert_eq!(page.skipped, 0, "every record can be read");
        found.extend(page.tasks);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return found;
        }
    }
}

/// Writes down all tasks of one tenant.
pub(crate) async fn record(client: &Client, tenant: &str, recorder: &Recorder) {
    let view = recorder.viewpoint(&format!("relay-{tenant}"));
    let mut look = Look {
        client,
        tenant,
        view: view.expect("a file can be made"),
        readings: 0,
    };
    for listed in all_tasks(client).await {
        let task = client.get(&listed.task_id).await;
        look.record(&task);
        look.goal(&task).await;
        look.timeline(&task.task_id).await;
        for attempt in &task.attempts {
            look.output(&task.task_id, &attempt.attempt_id).await;
        }
    }
}

struct Look<'a> {
    client: &'a Client,
    tenant: &'a str,
    view: Viewpoint,
    readings: u64,
}

impl Look<'_> {
    fn saw(&self, saw: Saw) {
        self.view
            .saw(now(), saw)
            .expect("the history can be written");
    }

    fn record(&self, task: &Task) {
        let attempts = task.attempts.iter().map(|attempt| FinalAttempt {
            attempt: attempt.attempt_id.clone(),
            number: attempt.attempt_number,
            state: word(attempt.state().as_str_name(), "ATTEMPT_STATE_"),
        });
        self.saw(Saw::Record {
            tenant: self.tenant.to_owned(),
            task: task.task_id.clone(),
            revision: task.revision,
            state: task_word(task.state()),
            attempts: attempts.collect(),
        });
    }

    /// What is kept of its goal.
    async fn goal(&self, task: &Task) {
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
            let page = within("checkpoints", tasks.list_checkpoints(request.clone())).await;
            let page = page.expect("checkpoints can be listed").into_inner();
            checkpoints.extend(page.checkpoints.iter().map(|one| one.number));
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        checkpoints.sort_unstable();
        self.saw(Saw::Goal {
            task: task.task_id.clone(),
            completed: progress.completed_items.clone(),
            dropped: progress.completed_items_truncated,
            checkpoints,
        });
    }

    async fn timeline(&self, task: &str) {
        let request = WatchTaskRequest {
            task_id: task.to_owned(),
            history_only: true,
            ..WatchTaskRequest::default()
        };
        let mut tasks = self.client.tasks();
        let opened = within("a history", tasks.watch(request)).await;
        let mut items = opened.expect("a task can be watched").into_inner();
        while let Some(message) = within("a history", items.message())
            .await
            .expect("a history ends")
        {
            if let Some(Item::Event(told)) = message.item {
                let task = task.to_owned();
                let event = event(&told);
                self.saw(Saw::Timeline { task, event });
            }
        }
    }

    async fn output(&mut self, task: &str, attempt: &str) {
        self.readings += 1;
        let reading = self.readings;
        let request = ReadOutputRequest {
            task_id: task.to_owned(),
            attempt_id: attempt.to_owned(),
            ..ReadOutputRequest::default()
        };
        let mut tasks = self.client.tasks();
        let opened = within("output", tasks.read_output(request)).await;
        let mut pieces = opened.expect("output can be read").into_inner();
        while let Some(message) = within("output", pieces.message())
            .await
            .expect("output ends by saying so")
        {
            let attempt = attempt.to_owned();
            match message.item {
                Some(Piece::Chunk(chunk)) => self.saw(Saw::Read {
                    reading,
                    tenant: self.tenant.to_owned(),
                    task: task.to_owned(),
                    attempt,
                    offset: chunk.offset,
                    text: String::from_utf8_lossy(&chunk.data).into_owned(),
                }),
                Some(Piece::Cut(cut)) => self.saw(Saw::ReadCut {
                    reading,
                    attempt,
                    offset: cut.offset,
                    length: cut.length,
                }),
                Some(Piece::End(end)) => self.saw(Saw::ReadEnd {
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
