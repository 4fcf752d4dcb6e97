//! One live stream as the supervisor uses it: where frames go out. Heartbeats overtake output, so that a busy stream still
//! renews. Knows no attempt; dropping it ends the sending side.

use std::pin::Pin;
use std::task::{Context, Poll};

use baton_proto::v1::DaemonFrame;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

/// Frames about attempts on their way out. Full: they wait in their outboxes.
const FRAME_QUEUE: usize = 32;
/// Heartbeats and Goodbye. Full: the stream is stuck, and the heartbeat counts as unanswered.
const URGENT_QUEUE: usize = 8;

#[derive(Debug)]
pub(crate) struct LinkSession {
    pub(crate) number: u64,
    pub(crate) frames: mpsc::Sender<DaemonFrame>,
    urgent: mpsc::Sender<DaemonFrame>,
    close: CancellationToken,
}

/// The other end: what tonic sends.
#[derive(Debug)]
pub(crate) struct OutgoingFrames {
    urgent: mpsc::Receiver<DaemonFrame>,
    frames: mpsc::Receiver<DaemonFrame>,
}

impl LinkSession {
    /// `close` ends the stream at once, for the link that reads it.
    pub(crate) fn new(number: u64, close: CancellationToken) -> (Self, OutgoingFrames) {
        let (urgent, urgent_rx) = mpsc::channel(URGENT_QUEUE);
        let (frames, frames_rx) = mpsc::channel(FRAME_QUEUE);
        (
            Self {
                number,
                frames,
                urgent,
                close,
            },
            OutgoingFrames {
                urgent: urgent_rx,
                frames: frames_rx,
            },
        )
    }

    pub(crate) fn send_urgent(&self, frame: DaemonFrame) {
        // Full or closed: the missing answer is noticed by whoever waits for it.
        let _ = self.urgent.try_send(frame);
    }

    pub(crate) fn close(&self) {
        self.close.cancel();
    }
}

impl Stream for OutgoingFrames {
    type Item = DaemonFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<DaemonFrame>> {
        match self.urgent.poll_recv(cx) {
            Poll::Ready(Some(frame)) => Poll::Ready(Some(frame)),
            // Both senders live in one session, so one closed end is the end of both.
            Poll::Ready(None) | Poll::Pending => self.frames.poll_recv(cx),
        }
    }
}
