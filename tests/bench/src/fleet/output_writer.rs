//! The output of one simulated attempt: numbered lines in chunks, as fast as the relay acknowledges
//! them, then the completion.

use std::sync::Arc;

use baton_proto::v1::{
    AttemptFrame, AttemptRef, DaemonFrame, OutputKind, Stream, attempt_frame, daemon_frame,
};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

pub(crate) const LINE_BYTES: usize = 256;
/// Limit on sent but unacknowledged output of one attempt.
const MAX_UNACKED_BYTES: u64 = 16 << 20;

/// The output that each attempt writes.
#[derive(Clone, Debug)]
pub(crate) struct OutputWorkload {
    chunk: Bytes,
    chunks: u64,
    /// Attempts write only after this becomes true, so that all watchers are connected first.
    start_signal: watch::Receiver<bool>,
}

impl OutputWorkload {
    /// Rounds `lines` up to whole chunks of `chunk_lines` lines.
    pub(crate) fn new(lines: u64, chunk_lines: usize, start_signal: watch::Receiver<bool>) -> Self {
        let text = (0..chunk_lines)
            .flat_map(numbered_line)
            .collect::<Vec<u8>>();
        Self {
            chunk: text.into(),
            chunks: lines.div_ceil(chunk_lines as u64),
            start_signal,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.chunk.len() as u64 * self.chunks
    }

    pub(crate) fn lines(&self) -> u64 {
        self.bytes() / LINE_BYTES as u64
    }
}

fn numbered_line(number: usize) -> Vec<u8> {
    format!("{number:>width$}\n", width = LINE_BYTES - 1).into_bytes()
}

/// Writes in its own tokio task, so that the daemon keeps reading acknowledgements meanwhile.
#[derive(Debug)]
pub(crate) struct AttemptOutputWriter {
    acked: Arc<watch::Sender<u64>>,
    _task: AbortOnDropHandle<()>,
}

impl AttemptOutputWriter {
    pub(crate) fn start(
        writing: &OutputWorkload,
        attempt: &AttemptRef,
        end: daemon_frame::Frame,
        outgoing: &mpsc::Sender<DaemonFrame>,
    ) -> Self {
        let acked = Arc::new(watch::Sender::new(0));
        let ack_offsets = acked.subscribe();
        let (writing, attempt, outgoing) = (writing.clone(), attempt.clone(), outgoing.clone());
        let task = tokio::spawn(async move {
            // A closed stream ends the writing; the daemon's own loop notices it as well.
            let _ = write_output(writing, attempt, end, outgoing, ack_offsets).await;
        });
        Self {
            acked,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn record_ack(&self, offset: u64) {
        self.acked.send_replace(offset);
    }
}

async fn write_output(
    mut writing: OutputWorkload,
    attempt: AttemptRef,
    end: daemon_frame::Frame,
    outgoing: mpsc::Sender<DaemonFrame>,
    mut acked: watch::Receiver<u64>,
) -> Option<()> {
    writing.start_signal.wait_for(|begin| *begin).await.ok()?;
    let mut offset = 0;
    for _ in 0..writing.chunks {
        let room = |acked: &u64| offset - acked < MAX_UNACKED_BYTES;
        acked.wait_for(room).await.ok()?;
        let frame = daemon_frame::Frame::Attempt(AttemptFrame {
            r#ref: Some(attempt.clone()),
            body: Some(attempt_frame::Body::Stream(Stream {
                offset,
                chunk: writing.chunk.clone(),
                after_control_seq: 2,
                visible: true,
                kind: OutputKind::Stdout.into(),
                ..Stream::default()
            })),
            ..AttemptFrame::default()
        });
        outgoing
            .send(DaemonFrame { frame: Some(frame) })
            .await
            .ok()?;
        offset += writing.chunk.len() as u64;
    }
    outgoing.send(DaemonFrame { frame: Some(end) }).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_fixed_size_and_fill_whole_chunks() {
        let (_begin, never) = watch::channel(false);
        let writing = OutputWorkload::new(1_000, 16, never);
        assert_eq!(writing.chunk.len(), 16 * LINE_BYTES);
        assert!(
            writing
                .chunk
                .chunks(LINE_BYTES)
                .all(|line| line.ends_with(b"\n"))
        );
        assert_eq!((writing.chunks, writing.lines()), (63, 1_008));
    }
}
