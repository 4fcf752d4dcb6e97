//! The thread that updates the watermark file with the durable number: at most one write per
//! interval, and one at the end. A loss by sled within this delay would not be detected.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::commit_progress::ThreadWake;
use super::committer::StoreShared;
use super::watermark::{Watermark, WatermarkFile};
use crate::store::{CommitSeq, StoreFailure};

const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct WatermarkWriter {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) file: WatermarkFile,
    pub(crate) incarnation: Uuid,
    pub(crate) written_seq: CommitSeq,
}

impl WatermarkWriter {
    pub(crate) fn run(mut self) {
        loop {
            let (durable, stop) = match self.shared.progress.wait_for_mark(self.written_seq) {
                ThreadWake::Work(durable) => (durable, false),
                ThreadWake::Stop(durable) => (durable, true),
                ThreadWake::Failed => return,
            };
            if let Err(fatal) = self.write_watermark(durable) {
                return self.shared.fail(&fatal);
            }
            if stop {
                return;
            }
            self.shared.progress.pause_watermark_writer(INTERVAL);
        }
    }

    pub(crate) fn write_watermark(&mut self, durable: CommitSeq) -> Result<(), StoreFailure> {
        if durable > self.written_seq {
            let mark = Watermark {
                seq: durable,
                incarnation: self.incarnation,
            };
            self.file
                .write(mark)
                .map_err(|error| StoreFailure::io("watermark", &error))?;
            self.written_seq = durable;
        }
        Ok(())
    }
}
