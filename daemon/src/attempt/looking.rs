//! Between two turns of an agent: whether its files are there. Where they are, where nobody wants more of it, or where it has
//! said through its tools how it ends, the turn was the last one.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use baton_contract::Unmet;

use super::Attempt;
use crate::receipts;

/// A look on its way. Dropped, nobody reads any file to its end.
#[derive(Default)]
pub(super) struct Looking(Option<Pin<Box<dyn Future<Output = Vec<Unmet>> + Send>>>);

impl Looking {
    /// Never, where nobody looks.
    pub(super) async fn done(&mut self) -> Vec<Unmet> {
        match &mut self.0 {
            Some(look) => look.await,
            None => std::future::pending().await,
        }
    }
}

impl Attempt {
    /// Begins to look where a turn has ended that may not have been the last.
    pub(super) fn look_between_turns(&mut self, looking: &mut Looking) {
        if !self.fold.rests() {
            looking.0 = None;
            return;
        }
        let wants_no_more = self.cause.is_some() || *self.lines.fixed.borrow();
        match self.files.clone().filter(|_| !wants_no_more) {
            Some(files) if looking.0.is_none() => {
                looking.0 = Some(Box::pin(async move { files.unmet(receipts::LOOK).await }));
            }
            Some(_) => {}
            None => {
                looking.0 = None;
                self.on_looked(&[]);
            }
        }
    }

    pub(super) fn on_looked(&mut self, unmet: &[Unmet]) {
        let root = self
            .files
            .as_ref()
            .map_or(Path::new(""), |files| files.root());
        self.fold.judged(unmet, root, self.workshop.clock.now());
    }
}
