//! Follows one task: its events without gaps or duplicates across broken connections and, on request,
//! the output of each attempt. Reports when the task has settled; does not print.

use std::time::{Duration, Instant};

use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    AttemptState, GetTaskRequest, ReadOutputRequest, Task, TaskEvent, TaskState, WatchTaskRequest,
    WatchTaskResponse,
};
use tonic::Streaming;

use crate::client::relay_client::RelayClient;
use crate::clock;
use crate::error::cli_error::{CliError, ErrorText};
use crate::error::exit_code::CommandExit;
use crate::follow::output_reader::{AttemptOutputReader, OutputReadItem};

const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(3);
/// A restarting relay is back well within this time. Otherwise a person has to act.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Retries a broken connection with growing pauses, up to a time limit.
#[derive(Debug, Default)]
pub(crate) struct ReconnectBackoff {
    tries: u32,
    first_failure_at: Option<Instant>,
}

impl ReconnectBackoff {
    /// Waits before the next try, or returns the error after the time limit.
    pub(crate) async fn wait_or_give_up(&mut self, error: CliError) -> Result<(), CliError> {
        let since = *self.first_failure_at.get_or_insert_with(clock::instant);
        if clock::instant().duration_since(since) > GIVE_UP_AFTER {
            return Err(error);
        }
        let pause = FIRST_RETRY_DELAY
            .saturating_mul(1 << self.tries.min(8))
            .min(MAX_RETRY_DELAY);
        self.tries += 1;
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// One step of following a task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TaskFollowStep {
    Event(Box<TaskEvent>),
    Output(OutputReadItem),
    /// All stored events were delivered; the task is in this state now.
    CaughtUp(TaskState),
    /// The events of these revisions are no longer stored.
    HistoryCut {
        from: u64,
        to: u64,
    },
    /// The relay has no more events for this task.
    Ended,
}

#[derive(Debug)]
pub(crate) struct TaskFollower {
    relay: RelayClient,
    request: WatchTaskRequest,
    events: Option<Streaming<WatchTaskResponse>>,
    backoff: ReconnectBackoff,
    caught_up: bool,
    outputs: Option<AttemptOutputs>,
}

/// The attempts whose output is read one after the other.
#[derive(Debug, Default)]
struct AttemptOutputs {
    current: Option<(u32, AttemptOutputReader)>,
    queued: std::collections::VecDeque<(u32, String)>,
    newest_attempt: u32,
}

impl TaskFollower {
    pub(crate) fn new(relay: &RelayClient, request: WatchTaskRequest) -> Self {
        Self {
            relay: relay.clone(),
            request,
            events: None,
            backoff: ReconnectBackoff::default(),
            caught_up: false,
            outputs: None,
        }
    }

    pub(crate) fn with_output(mut self) -> Self {
        self.outputs = Some(AttemptOutputs::default());
        self
    }

    /// The next step. Cancel-safe: it may be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<TaskFollowStep, CliError> {
        loop {
            let result = match self
                .outputs
                .as_mut()
                .and_then(|output| output.current.as_mut())
            {
                None => self.next_event().await,
                Some((_, reader)) => {
                    let events = TaskEventStream {
                        relay: &self.relay,
                        request: &mut self.request,
                        stream: &mut self.events,
                    };
                    tokio::select! {
                        biased;
                        piece = reader.next() => return Ok(self.record_piece(piece?)),
                        step = events.next() => step,
                    }
                }
            };
            match result {
                Ok(Some(TaskFollowStep::Ended)) => {
                    self.events = None;
                    if self.has_task_ended().await? {
                        return Ok(TaskFollowStep::Ended);
                    }
                    self.backoff.wait_or_give_up(stream_closed_error()).await?;
                }
                Ok(Some(step)) => return Ok(self.record_step(step)),
                Ok(None) => {}
                Err(error) if error.is_transient() => {
                    self.events = None;
                    self.backoff.wait_or_give_up(error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn next_event(&mut self) -> Result<Option<TaskFollowStep>, CliError> {
        let events = TaskEventStream {
            relay: &self.relay,
            request: &mut self.request,
            stream: &mut self.events,
        };
        events.next().await
    }

    /// A stream also ends when the relay stops, so the task's state decides.
    async fn has_task_ended(&self) -> Result<bool, CliError> {
        if self.request.history_only {
            return Ok(true);
        }
        let state = get_task(&self.relay, &self.request.task_id).await?.state();
        Ok(CommandExit::for_task_state(state)
            .is_some_and(|exit| exit != CommandExit::NeedsAttention))
    }

    fn record_step(&mut self, step: TaskFollowStep) -> TaskFollowStep {
        self.backoff = ReconnectBackoff::default();
        match &step {
            TaskFollowStep::Event(event) => self.queue_attempt_output(event),
            TaskFollowStep::CaughtUp(_) => self.caught_up = true,
            TaskFollowStep::HistoryCut { .. }
            | TaskFollowStep::Output(_)
            | TaskFollowStep::Ended => {}
        }
        step
    }

    /// Queues the output of an attempt once a daemon or agent holds it.
    fn queue_attempt_output(&mut self, event: &TaskEvent) {
        let Some(output) = &mut self.outputs else {
            return;
        };
        let waiting = matches!(
            event.state(),
            AttemptState::Queued | AttemptState::Unspecified
        );
        if !waiting && event.attempt_number > output.newest_attempt {
            output.newest_attempt = event.attempt_number;
            output
                .queued
                .push_back((event.attempt_number, event.attempt_id.clone()));
        }
        output.open_next(&self.relay);
    }

    fn record_piece(&mut self, piece: OutputReadItem) -> TaskFollowStep {
        if let (OutputReadItem::End(_), Some(output)) = (&piece, &mut self.outputs) {
            output.current = None;
            output.open_next(&self.relay);
        }
        TaskFollowStep::Output(piece)
    }

    /// The exit code if the task has settled with this step. An old park in the history does not count.
    pub(crate) fn exit_if_settled(&self, step: &TaskFollowStep) -> Option<CommandExit> {
        match step {
            TaskFollowStep::Event(event) if self.caught_up => {
                CommandExit::for_task_state(event.task_state())
            }
            TaskFollowStep::CaughtUp(state) => CommandExit::for_task_state(*state),
            TaskFollowStep::Event(_)
            | TaskFollowStep::HistoryCut { .. }
            | TaskFollowStep::Output(_)
            | TaskFollowStep::Ended => None,
        }
    }

    /// Readers for the stored output that was not read yet, one per attempt.
    pub(crate) fn unread_outputs(self) -> Vec<AttemptOutputReader> {
        let Some(output) = self.outputs else {
            return Vec::new();
        };
        let current = output.current.map(|(_, reader)| reader.stored_remainder());
        let waiting = output.queued.into_iter();
        let later = waiting.map(|(_, attempt)| open_reader(&self.relay, attempt, false));
        current.into_iter().chain(later).collect()
    }
}

impl AttemptOutputs {
    fn open_next(&mut self, relay: &RelayClient) {
        if self.current.is_none()
            && let Some((number, attempt)) = self.queued.pop_front()
        {
            self.current = Some((number, open_reader(relay, attempt, true)));
        }
    }
}

fn open_reader(relay: &RelayClient, attempt_id: String, follow: bool) -> AttemptOutputReader {
    let request = ReadOutputRequest {
        attempt_id,
        follow,
        ..ReadOutputRequest::default()
    };
    AttemptOutputReader::new(relay.clone(), request)
}

/// The event half of a `TaskFollower`, borrowed separately from the output half.
struct TaskEventStream<'a> {
    relay: &'a RelayClient,
    request: &'a mut WatchTaskRequest,
    stream: &'a mut Option<Streaming<WatchTaskResponse>>,
}

impl TaskEventStream<'_> {
    async fn next(self) -> Result<Option<TaskFollowStep>, CliError> {
        let stream = match self.stream {
            Some(stream) => stream,
            None => {
                let opened = self.relay.tasks().watch(self.request.clone()).await?;
                self.stream.insert(opened.into_inner())
            }
        };
        let Some(response) = stream.message().await? else {
            return Ok(Some(TaskFollowStep::Ended));
        };
        Ok(match response.item {
            Some(Item::Event(event)) => {
                self.request.from_revision = event.revision;
                Some(TaskFollowStep::Event(Box::new(event)))
            }
            Some(Item::CaughtUp(caught_up)) => Some(TaskFollowStep::CaughtUp(caught_up.state())),
            Some(Item::HistoryCut(cut)) => {
                self.request.from_revision = cut.to_revision;
                Some(TaskFollowStep::HistoryCut {
                    from: cut.from_revision,
                    to: cut.to_revision,
                })
            }
            Some(Item::Lagged(lagged)) => {
                self.request.from_revision = lagged.from_revision;
                *self.stream = None;
                None
            }
            None => None,
        })
    }
}

pub(crate) fn stream_closed_error() -> CliError {
    CliError::Unreachable(ErrorText {
        what: "the relay closed the stream".to_owned(),
        why: "it may be stopping".to_owned(),
        hint: "check that the relay is running, then repeat the command".to_owned(),
    })
}

/// The current task.
pub(crate) async fn get_task(relay: &RelayClient, task_id: &str) -> Result<Task, CliError> {
    let request = GetTaskRequest {
        task_id: task_id.to_owned(),
        include_spec: false,
    };
    let mut backoff = ReconnectBackoff::default();
    loop {
        match relay
            .tasks()
            .get(request.clone())
            .await
            .map_err(CliError::from)
        {
            Ok(response) => return response.into_inner().task.ok_or_else(missing_task_error),
            Err(error) if error.is_transient() => backoff.wait_or_give_up(error).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Only a server that is not a relay of this version returns a response without the task.
pub(crate) fn missing_task_error() -> CliError {
    CliError::local(
        "the relay's response has no task",
        "it may be of another version",
    )
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::{CaughtUp, Lagged};
    use tonic::Status;

    use super::*;
    use crate::follow::scripted_relay::ScriptedRelay;

    fn event(revision: u64, task_state: TaskState) -> Result<WatchTaskResponse, Status> {
        let event = TaskEvent {
            revision,
            task_state: task_state.into(),
            ..TaskEvent::default()
        };
        Ok(WatchTaskResponse {
            item: Some(Item::Event(event)),
        })
    }

    fn caught_up(state: TaskState) -> Result<WatchTaskResponse, Status> {
        let caught_up = CaughtUp {
            revision: 0,
            state: state.into(),
        };
        Ok(WatchTaskResponse {
            item: Some(Item::CaughtUp(caught_up)),
        })
    }

    fn lagged(from_revision: u64) -> Result<WatchTaskResponse, Status> {
        let lagged = Lagged {
            from_revision,
            ..Lagged::default()
        };
        Ok(WatchTaskResponse {
            item: Some(Item::Lagged(lagged)),
        })
    }

    async fn revisions(follow: &mut TaskFollower) -> Vec<u64> {
        let mut seen = Vec::new();
        loop {
            match follow.next().await.unwrap() {
                TaskFollowStep::Event(event) => seen.push(event.revision),
                TaskFollowStep::Ended => return seen,
                TaskFollowStep::Output(_)
                | TaskFollowStep::CaughtUp(_)
                | TaskFollowStep::HistoryCut { .. } => {}
            }
        }
    }

    #[tokio::test]
    async fn broken_and_lagging_streams_cause_no_gap_and_no_duplicate() {
        let running = TaskState::Running;
        let relay = ScriptedRelay::default()
            .watch(vec![
                event(1, running),
                event(2, running),
                Err(Status::unavailable("gone")),
            ])
            .watch(vec![event(3, running), lagged(3)])
            .watch(vec![event(4, running)])
            .watch(vec![event(5, TaskState::Completed)])
            .state(running)
            .state(TaskState::Completed);
        let client = relay.serve().await;
        let mut follow = TaskFollower::new(&client, WatchTaskRequest::default());
        assert_eq!(revisions(&mut follow).await, [1, 2, 3, 4, 5]);
        assert_eq!(relay.requested_positions(), [0, 2, 3, 4]);
    }

    #[tokio::test]
    async fn an_old_park_in_the_history_does_not_settle_the_task() {
        let relay = ScriptedRelay::default().watch(vec![
            event(1, TaskState::NeedsAttention),
            event(2, TaskState::Running),
            caught_up(TaskState::Running),
            event(3, TaskState::NeedsAttention),
        ]);
        let client = relay.serve().await;
        let mut follow = TaskFollower::new(&client, WatchTaskRequest::default());
        let mut settled = Vec::new();
        for _ in 0..4 {
            let step = follow.next().await.unwrap();
            settled.push(follow.exit_if_settled(&step));
        }
        assert_eq!(
            settled,
            [None, None, None, Some(CommandExit::NeedsAttention)]
        );
    }

    #[tokio::test]
    async fn a_rejected_watch_is_not_retried() {
        let relay = ScriptedRelay::default().watch(vec![Err(Status::not_found("no such task"))]);
        let client = relay.serve().await;
        let mut follow = TaskFollower::new(&client, WatchTaskRequest::default());
        assert_eq!(
            follow.next().await.unwrap_err().exit(),
            CommandExit::NotCompleted
        );
        assert_eq!(relay.requested_positions(), [0]);
    }
}
