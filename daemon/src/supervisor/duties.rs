//! Which task owes which attempt its end. A task that dies without a word must not keep its slot and its lease:
//! what it left is swept, and the attempt ends as an error.

use tokio::task::{Id, JoinError};
use tracing::error;

use super::Supervisor;
use crate::attempt::{self, AttemptEvent, Ending};
use crate::held::Held;
use crate::process::Cleared;

/// What a task does for the attempt of this id.
pub(super) enum Duty {
    Run(String),
    /// Ends what a task that died has left.
    Bury(String),
}

impl Supervisor {
    pub(super) fn on_task_over(&mut self, over: Result<(Id, ()), JoinError>) {
        match over {
            Ok((task, ())) => {
                self.duties.remove(&task);
            }
            Err(death) => {
                error!(error = %death, "a task of the daemon died");
                match self.duties.remove(&death.id()) {
                    Some(Duty::Run(id)) => self.bury(id),
                    // Nobody could look, so nothing is proved: the fence waits for the lease to end.
                    Some(Duty::Bury(id)) => self.end_unseen(&id),
                    // It only reaped orphans, and will again.
                    None => {}
                }
            }
        }
    }

    fn bury(&mut self, id: String) {
        if self.held.get(&id).is_some_and(Held::is_running) {
            let grave = attempt::bury(id.clone(), self.events.clone(), self.clock.clone());
            let task = self.tasks.spawn(grave).id();
            self.duties.insert(task, Duty::Bury(id));
        }
    }

    fn end_unseen(&mut self, id: &str) {
        if self.held.get(id).is_some_and(Held::is_running) {
            let ending = Ending::broken(Cleared::default());
            self.on_attempt(id, AttemptEvent::Ended(ending));
        }
    }
}
