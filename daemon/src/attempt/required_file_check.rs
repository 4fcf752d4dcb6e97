//! Between two turns of an agent: whether its files are there. Where they are, where nobody wants more of it, or where it has
//! said through its tools how it ends, the turn was the last one.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use baton_contract::UnmetRequirement;

use super::AttemptTask;
use crate::receipts;

/// A look on its way. Dropped, nobody reads any file to its end.
#[derive(Default)]
pub(super) struct RequiredFileCheck(
    Option<Pin<Box<dyn Future<Output = Vec<UnmetRequirement>> + Send>>>,
);

impl RequiredFileCheck {
    /// Never, where nobody looks.
    pub(super) async fn wait(&mut self) -> Vec<UnmetRequirement> {
        match &mut self.0 {
            Some(look) => look.await,
            None => std::future::pending().await,
        }
    }
}

impl AttemptTask {
    /// Begins to look where a turn has ended that may not have been the last.
    pub(super) fn check_files_between_turns(&mut self, looking: &mut RequiredFileCheck) {
        if !self.transcript_reader.awaits_file_check() {
            looking.0 = None;
            return;
        }
        let wants_no_more = self.cause.is_some() || self.control.orders().outcome_fixed;
        match self.required_files.clone().filter(|_| !wants_no_more) {
            Some(files) if looking.0.is_none() => {
                looking.0 = Some(Box::pin(async move {
                    files.unmet_requirements(receipts::INSPECTION_TIMEOUT).await
                }));
            }
            Some(_) => {}
            None => {
                looking.0 = None;
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
