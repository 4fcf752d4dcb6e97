//! The tasks of the daemon's attempts, and which attempt each of them belongs to.
//!
//! A task that panics must not keep its attempt's slot and lease, so the supervisor learns of its
//! end here.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tracing::error;

use crate::attempt::{
    self, AttemptControlReceiver, AttemptEnvironment, AttemptEvent, AttemptRunInput,
};
use crate::clock::{BootTime, Clock};
use crate::process::reap_orphans;

/// Events of all attempts together. When it is full the attempts wait, and so do their children.
const EVENT_QUEUE: usize = 256;
/// Orphans whose end was not noticed are reaped this often.
const REAP_INTERVAL: Duration = Duration::from_secs(5);

/// An event with the id of its attempt.
pub(super) type EventReceiver = mpsc::Receiver<(String, AttemptEvent)>;

/// What a task does for the attempt with this id.
pub(super) enum AttemptTaskKind {
    Run(String),
    /// Kills the processes that a panicked task has left.
    CleanUp(String),
}

pub(super) struct AttemptTasks {
    tasks: JoinSet<()>,
    kinds: HashMap<Id, AttemptTaskKind>,
    events: mpsc::Sender<(String, AttemptEvent)>,
    environment: AttemptEnvironment,
    clock: Clock,
    reap_at: BootTime,
}

impl AttemptTasks {
    pub(super) fn new(environment: AttemptEnvironment, clock: Clock) -> (Self, EventReceiver) {
        let (events, receiver) = mpsc::channel(EVENT_QUEUE);
        let tasks = Self {
            tasks: JoinSet::new(),
            kinds: HashMap::new(),
            events,
            environment,
            reap_at: clock.now().after(REAP_INTERVAL),
            clock,
        };
        (tasks, receiver)
    }

    /// Starts the task that an attempt has from here to its end.
    pub(super) fn run(
        &mut self,
        input: AttemptRunInput,
        control: AttemptControlReceiver,
        daemon_id: &str,
    ) {
        let id = input.attempt_id.clone();
        let environment = AttemptEnvironment {
            // The relay may have assigned it since the start.
            daemon_id: daemon_id.to_owned(),
            ..self.environment.clone()
        };
        let run = attempt::run_attempt(input, control, self.events.clone(), environment);
        let task = self.tasks.spawn(run).id();
        self.kinds.insert(task, AttemptTaskKind::Run(id));
    }

    /// Kills what the panicked task of this attempt has left, and reports that as its end.
    pub(super) fn clean_up(&mut self, id: String) {
        let (events, clock) = (self.events.clone(), self.clock.clone());
        let cleanup = attempt::report_dead_task(id.clone(), events, clock);
        let task = self.tasks.spawn(cleanup).id();
        self.kinds.insert(task, AttemptTaskKind::CleanUp(id));
    }

    /// Cancel safe.
    pub(super) async fn join_next(&mut self) -> Option<Result<(Id, ()), JoinError>> {
        self.tasks.join_next_with_id().await
    }

    /// The attempt whose task has panicked.
    pub(super) fn on_joined(
        &mut self,
        joined: Result<(Id, ()), JoinError>,
    ) -> Option<AttemptTaskKind> {
        match joined {
            Ok((task, ())) => {
                self.kinds.remove(&task);
                None
            }
            Err(panic) => {
                error!(error = %panic, "a task of the daemon has panicked");
                // Without an entry it only reaped orphans, and will be started again.
                self.kinds.remove(&panic.id())
            }
        }
    }

    pub(super) fn reap_at(&self) -> BootTime {
        self.reap_at
    }

    pub(super) fn reap_orphans_if_due(&mut self, now: BootTime) {
        if self.reap_at <= now {
            self.reap_at = now.after(REAP_INTERVAL);
            self.tasks.spawn_blocking(reap_orphans);
        }
    }

    #[cfg(test)]
    pub(super) fn abort_all(&mut self) {
        self.tasks.abort_all();
    }
}
