//! Checks between two turns of an agent whether its required files exist. The turn was the last
//! one when they do, when the attempt is being ended, or when the agent has reported its
//! outcome through its tools.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use baton_validation::UnmetRequirement;

use super::AttemptTask;
use crate::receipts;

/// A running check. Dropping it stops reading the files.
#[derive(Default)]
pub(super) struct RequiredFileCheck(
    Option<Pin<Box<dyn Future<Output = Vec<UnmetRequirement>> + Send>>>,
);

impl RequiredFileCheck {
    /// Never returns when no check runs.
    pub(super) async fn wait(&mut self) -> Vec<UnmetRequirement> {
        match &mut self.0 {
            Some(running) => running.await,
            None => std::future::pending().await,
        }
    }
}

impl AttemptTask {
    /// Begins the check when a turn has ended that may not have been the last.
    pub(super) fn check_files_between_turns(&mut self, check: &mut RequiredFileCheck) {
        if !self.transcript_reader.awaits_file_check() {
            check.0 = None;
            return;
        }
        let is_ending = self.cause.is_some() || self.control.orders().outcome_fixed;
        match self.required_files.clone().filter(|_| !is_ending) {
            Some(files) if check.0.is_none() => {
                check.0 = Some(Box::pin(async move {
                    files.unmet_requirements(receipts::INSPECTION_TIMEOUT).await
                }));
            }
            Some(_) => {}
            None => {
                check.0 = None;
                self.on_files_checked(&[]);
            }
        }
    }

    pub(super) fn on_files_checked(&mut self, unmet: &[UnmetRequirement]) {
        let root = self
            .required_files
            .as_ref()
            .map_or(Path::new(""), |files| files.root());
        self.transcript_reader
            .on_files_checked(unmet, root, self.environment.clock.now());
    }
}
