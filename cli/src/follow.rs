//! Follows one task: its events without a gap or a duplicate, however often the connection breaks, and, if wanted, the output
//! of each attempt as it comes. Says when the task has settled; does not print.

use std::time::{Duration, Instant};

use baton_proto::v1::watch_task_response::Item;
use baton_proto::v1::{
    AttemptState, GetTaskRequest, ReadOutputRequest, Task, TaskEvent, TaskState, WatchTaskRequest,
    WatchTaskResponse,
};
use tonic::Streaming;

use crate::client::Relay;
use crate::clock;
use crate::errors::{CliError, Story};
use crate::exit::Exit;
use crate::output_reader::{OutputReader, Piece};

const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_LONGEST: Duration = Duration::from_secs(3);
/// A relay that restarts is back well within this; one that is not needs a person.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// How long a broken connection is dialed again before it is called unreachable.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    tries: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Waits a little before the next try, or gives the error back when it has been long enough.
    pub(crate) async fn wait(&mut self, error: CliError) -> Result<(), CliError> {
        let since = *self.since.get_or_insert_with(clock::instant);
        if clock::instant().duration_since(since) > GIVE_UP_AFTER {
            return Err(error);
        }
        let pause = RETRY_FIRST
            .saturating_mul(1 << self.tries.min(8))
            .min(RETRY_LONGEST);
        self.tries += 1;
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// What happened next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Event(Box<TaskEvent>),
    Output(Piece),
    /// The history is over; the task is in this state now.
    CaughtUp(TaskState),
    /// These revisions are no longer kept.
    HistoryCut {
        from: u64,
        to: u64,
    },
    /// The relay has no more events for this task.
    Ended,
}

#[derive(Debug)]
pub(crate) struct Follow {
    relay: Relay,
    request: WatchTaskRequest,
    events: Option<Streaming<WatchTaskResponse>>,
    patience: Patience,
    live: bool,
    output: Option<Outputs>,
}

/// Attempts whose output is read, one after the other.
#[derive(Debug, Default)]
struct Outputs {
    current: Option<(u32, OutputReader)>,
    waiting: std::collections::VecDeque<(u32, String)>,
    newest: u32,
}

impl Follow {
    pub(crate) fn new(relay: &Relay, request: WatchTaskRequest) -> Self {
        Self {
            relay: relay.clone(),
            request,
            events: None,
            patience: Patience::default(),
            live: false,
            output: None,
        }
    }

    pub(crate) fn with_output(mut self) -> Self {
        self.output = Some(Outputs::default());
        self
    }

    /// The next step. May be dropped and called again without losing anything.
    pub(crate) async fn next(&mut self) -> Result<Step, CliError> {
        loop {
            let result = match self
                .output
                .as_mut()
                .and_then(|output| output.current.as_mut())
            {
                None => self.event().await,
                Some((_, reader)) => {
                    let events = Events {
                        relay: &self.relay,
                        request: &mut self.request,
                        stream: &mut self.events,
                    };
                    tokio::select! {
                        biased;
                        piece = reader.next() => return Ok(self.piece(piece?)),
                        step = events.next() => step,
                    }
                }
            };
            match result {
                Ok(Some(Step::Ended)) => {
                    self.events = None;
                    if self.is_over().await? {
                        return Ok(Step::Ended);
                    }
                    self.patience.wait(ended_early()).await?;
                }
                Ok(Some(step)) => return Ok(self.stepped(step)),
                Ok(None) => {}
                Err(error) if error.is_transient() => {
                    self.events = None;
                    self.patience.wait(error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn event(&mut self) -> Result<Option<Step>, CliError> {
        let events = Events {
            relay: &self.relay,
            request: &mut self.request,
            stream: &mut self.events,
        };
        events.next().await
    }

    /// A stream also ends when the relay stops; only a finished task has no more events.
    async fn is_over(&self) -> Result<bool, CliError> {
        if self.request.history_only {
            return Ok(true);
        }
        let state = get(&self.relay, &self.request.task_id).await?.state();
        Ok(Exit::of_task(state).is_some_and(|exit| exit != Exit::NeedsAttention))
    }

    fn stepped(&mut self, step: Step) -> Step {
        self.patience = Patience::default();
        match &step {
            Step::Event(event) => self.note_attempt(event),
            Step::CaughtUp(_) => self.live = true,
            Step::HistoryCut { .. } | Step::Output(_) | Step::Ended => {}
        }
        step
    }

    /// An attempt that a holder has taken may have output.
    fn note_attempt(&mut self, event: &TaskEvent) {
        let Some(output) = &mut self.output else {
            return;
        };
        let waiting = matches!(
            event.state(),
            AttemptState::Queued | AttemptState::Unspecified
        );
        if !waiting && event.attempt_number > output.newest {
            output.newest = event.attempt_number;
            output
                .waiting
                .push_back((event.attempt_number, event.attempt_id.clone()));
        }
        output.advance(&self.relay);
    }

    fn piece(&mut self, piece: Piece) -> Step {
        if let (Piece::End(_), Some(output)) = (&piece, &mut self.output) {
            output.current = None;
            output.advance(&self.relay);
        }
        Step::Output(piece)
    }

    /// Whether `step` says that waiting is over, and how. Old parks in the history do not count.
    pub(crate) fn settled(&self, step: &Step) -> Option<Exit> {
        match step {
            Step::Event(event) if self.live => Exit::of_task(event.task_state()),
            Step::CaughtUp(state) => Exit::of_task(*state),
            Step::Event(_) | Step::HistoryCut { .. } | Step::Output(_) | Step::Ended => None,
        }
    }

    /// The output that is stored by now and was not read yet, attempt by attempt.
    pub(crate) fn unread(self) -> Vec<OutputReader> {
        let Some(output) = self.output else {
            return Vec::new();
        };
        let current = output.current.map(|(_, reader)| reader.rest());
        let waiting = output.waiting.into_iter();
        let later = waiting.map(|(_, attempt)| reader(&self.relay, attempt, false));
        current.into_iter().chain(later).collect()
    }
}

impl Outputs {
    fn advance(&mut self, relay: &Relay) {
        if self.current.is_none()
            && let Some((number, attempt)) = self.waiting.pop_front()
        {
            self.current = Some((number, reader(relay, attempt, true)));
        }
    }
}

fn reader(relay: &Relay, attempt_id: String, follow: bool) -> OutputReader {
    let request = ReadOutputRequest {
        attempt_id,
        follow,
        ..ReadOutputRequest::default()
    };
    OutputReader::new(relay.clone(), request)
}

/// The event half of a `Follow`, borrowed apart from the output half.
struct Events<'a> {
    relay: &'a Relay,
    request: &'a mut WatchTaskRequest,
    stream: &'a mut Option<Streaming<WatchTaskResponse>>,
}

impl Events<'_> {
    async fn next(self) -> Result<Option<Step>, CliError> {
        let stream = match self.stream {
            Some(stream) => stream,
            None => {
                let opened = self.relay.tasks().watch(self.request.clone()).await?;
                self.stream.insert(opened.into_inner())
            }
        };
        let Some(response) = stream.message().await? else {
            return Ok(Some(Step::Ended));
        };
        Ok(match response.item {
            Some(Item::Event(event)) => {
                self.request.from_revision = event.revision;
                Some(Step::Event(Box::new(event)))
            }
            Some(Item::CaughtUp(caught_up)) => Some(Step::CaughtUp(caught_up.state())),
            Some(Item::HistoryCut(cut)) => {
                self.request.from_revision = cut.to_revision;
                Some(Step::HistoryCut {
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

pub(crate) fn ended_early() -> CliError {
    CliError::Unreachable(Story {
        what: "the relay closed the stream".to_owned(),
        why: "it may be stopping".to_owned(),
        hint: "see whether the relay is up, then repeat the command".to_owned(),
    })
}

/// The task as it is now.
pub(crate) async fn get(relay: &Relay, task_id: &str) -> Result<Task, CliError> {
    let request = GetTaskRequest {
        task_id: task_id.to_owned(),
        include_spec: false,
    };
    let mut patience = Patience::default();
    loop {
        match relay
            .tasks()
            .get(request.clone())
            .await
            .map_err(CliError::from)
        {
            Ok(response) => return response.into_inner().task.ok_or_else(no_task),
            Err(error) if error.is_transient() => patience.wait(error).await?,
            Err(error) => return Err(error),
        }
    }
}

/// An answer without what was asked for can only come from something that is not a relay of this version.
pub(crate) fn no_task() -> CliError {
    CliError::local(
        "the relay answered without a task",
        "it may speak another version",
    )
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::{CaughtUp, Lagged};
    use tonic::Status;

    use super::*;
    use crate::scripted_relay::ScriptedRelay;

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

    async fn revisions(follow: &mut Follow) -> Vec<u64> {
        let mut seen = Vec::new();
        loop {
            match follow.next().await.unwrap() {
                Step::Event(event) => seen.push(event.revision),
                Step::Ended => return seen,
                Step::Output(_) | Step::CaughtUp(_) | Step::HistoryCut { .. } => {}
            }
        }
    }

    #[tokio::test]
    async fn broken_lagging_and_stopping_streams_leave_no_gap_and_no_duplicate() {
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
        let mut follow = Follow::new(&client, WatchTaskRequest::default());
        assert_eq!(revisions(&mut follow).await, [1, 2, 3, 4, 5]);
        assert_eq!(relay.asked(), [0, 2, 3, 4]);
    }

    #[tokio::test]
    async fn an_old_park_in_the_history_does_not_end_the_waiting() {
        let relay = ScriptedRelay::default().watch(vec![
            event(1, TaskState::NeedsAttention),
            event(2, TaskState::Running),
            caught_up(TaskState::Running),
            event(3, TaskState::NeedsAttention),
        ]);
        let client = relay.serve().await;
        let mut follow = Follow::new(&client, WatchTaskRequest::default());
        let mut settled = Vec::new();
        for _ in 0..4 {
            let step = follow.next().await.unwrap();
            settled.push(follow.settled(&step));
        }
        assert_eq!(settled, [None, None, None, Some(Exit::NeedsAttention)]);
    }

    #[tokio::test]
    async fn a_refusal_is_not_tried_again() {
        let relay = ScriptedRelay::default().watch(vec![Err(Status::not_found("no such task"))]);
        let client = relay.serve().await;
        let mut follow = Follow::new(&client, WatchTaskRequest::default());
        assert_eq!(follow.next().await.unwrap_err().exit(), Exit::NotCompleted);
        assert_eq!(relay.asked(), [0]);
    }
}
