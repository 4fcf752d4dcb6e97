//! Which task owes which attempt its end. A task that dies without a word must not keep its slot and its lease:
//! what it left is swept, and the attempt ends as an error.

use tokio::task::{Id, JoinError};
use tracing::error;

use super::Supervisor;
use crate::attempt::{self, AttemptEnding, AttemptEvent};
use crate::process::TerminationOutcome;
use crate::supervised_attempt::SupervisedAttempt;

/// What a task does for the attempt of this id.
pub(super) enum AttemptTaskKind {
    Run(String),
    /// Ends what a task that died has left.
    CleanUp(String),
}

impl Supervisor {
    pub(super) fn on_task_ended(&mut self, over: Result<(Id, ()), JoinError>) {
        match over {
            Ok((task, ())) => {
                self.task_kinds.remove(&task);
            }
            Err(death) => {
                error!(error = %death, "a task of the daemon died");
                match self.task_kinds.remove(&death.id()) {
                    Some(AttemptTaskKind::Run(id)) => self.clean_up_dead_task(id),
                    // Nobody could look, so nothing is proved: the fence waits for the lease to end.
                    Some(AttemptTaskKind::CleanUp(id)) => self.end_without_proof(&id),
                    // It only reaped orphans, and will again.
                    None => {}
                }
            }
        }
    }

    fn clean_up_dead_task(&mut self, id: String) {
        if self
            .supervised
            .get(&id)
            .is_some_and(SupervisedAttempt::is_running)
        {
            let grave = attempt::report_dead_task(
                id.clone(),
                self.event_sender.clone(),
                self.clock.clone(),
            );
            let task = self.tasks.spawn(grave).id();
            self.task_kinds.insert(task, AttemptTaskKind::CleanUp(id));
        }
    }

    fn end_without_proof(&mut self, id: &str) {
        if self
            .supervised
            .get(id)
            .is_some_and(SupervisedAttempt::is_running)
        {
            let ending = AttemptEnding::daemon_fault(TerminationOutcome::default());
            self.on_attempt_event(id, AttemptEvent::Ended(ending));
        }
    }
}
