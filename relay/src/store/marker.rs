//! The thread that keeps the watermark file behind the durable number: at most one write per interval, and one at the
//! end. Its lag is the span in which a loss by sled would go unnoticed.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::committer::Shared;
use super::progress::Wake;
use super::watermark::{Mark, WatermarkFile};
use super::{CommitSeq, Fatal};

const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Marker {
    pub(super) shared: Arc<Shared>,
    pub(super) file: WatermarkFile,
    pub(super) incarnation: Uuid,
    pub(super) marked: CommitSeq,
}

impl Marker {
    pub(super) fn run(mut self) {
        loop {
            let (durable, stop) = match self.shared.progress.next_mark(self.marked) {
                Wake::Work(durable) => (durable, false),
                Wake::Stop(durable) => (durable, true),
                Wake::Failed => return,
            };
            if let Err(fatal) = self.mark(durable) {
                return self.shared.fail(&fatal);
            }
            if stop {
                return;
            }
            self.shared.progress.pause_marker(INTERVAL);
        }
    }

    pub(super) fn mark(&mut self, durable: CommitSeq) -> Result<(), Fatal> {
        if durable > self.marked {
            let mark = Mark {
                seq: durable,
                incarnation: self.incarnation,
            };
            self.file
                .write(mark)
                .map_err(|error| Fatal::io("watermark", &error))?;
            self.marked = durable;
        }
        Ok(())
    }
}
