//! The sending side of one live stream. Heartbeats overtake output, so that a busy stream still
//! renews leases. It has no attempts; dropping it ends the sending side.

use std::pin::Pin;
use std::task::{Context, Poll};

use baton_proto::v1::DaemonFrame;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

/// Frames of attempts that are being sent. When it is full they wait in their outboxes.
const FRAME_QUEUE: usize = 32;
/// Heartbeats and Goodbye. When it is full the stream is stuck, and the heartbeat counts as
/// unanswered.
const URGENT_QUEUE: usize = 8;

#[derive(Debug)]
pub(crate) struct LinkSession {
    pub(crate) number: u64,
    pub(crate) frames: mpsc::Sender<DaemonFrame>,
    urgent: mpsc::Sender<DaemonFrame>,
    close: CancellationToken,
}

/// The receiving end, which tonic sends from.
#[derive(Debug)]
pub(crate) struct OutgoingFrames {
    urgent: mpsc::Receiver<DaemonFrame>,
    frames: mpsc::Receiver<DaemonFrame>,
}

impl LinkSession {
    /// `close` makes the link drop the stream at once.
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
        // When it is full or closed, the missing answer is noticed.
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
            // Both senders belong to one session, so when one is closed the other is too.
            Poll::Ready(None) | Poll::Pending => self.frames.poll_recv(cx),
        }
    }
}
