//! The connection to the relay as the supervisor sees it: the live stream with its heartbeats, or
//! why there is none.

use std::time::Duration;

use baton_daemon_core::heartbeat_tracker::HeartbeatTracker;
use baton_proto::v1::{DaemonFrame, Heartbeat, HeartbeatAck, Hello, RelayFrame, daemon_frame};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::positive_millis;
use crate::clock::BootTime;
use crate::health::daemon_status::RelayContact;
use crate::link::LinkError;
use crate::link::link_session::LinkSession;

/// How long after its start a daemon expects the relay to answer.
const RELAY_WAIT_AFTER_START: Duration = Duration::from_secs(30);

/// What the link reports.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The link is about to dial and needs the daemon's Hello.
    HelloRequested(oneshot::Sender<Hello>),
    Connected {
        session: LinkSession,
        hello_sent_at: BootTime,
        welcome: Box<RelayFrame>,
        /// Receives whether the relay is current, so that the link stays with it.
        admitted: oneshot::Sender<bool>,
    },
    Frame {
        session: u64,
        frame: Box<RelayFrame>,
    },
    Disconnected {
        session: u64,
    },
    /// There is no stream, for this reason. The link dials again later.
    NotConnected(String),
    /// The link will not dial again.
    GivenUp(LinkError),
}

struct LiveSession {
    session: LinkSession,
    heartbeats: HeartbeatTracker,
    /// When the relay last answered.
    last_answer_at: BootTime,
    /// Whether the relay can extend leases over a restart of the daemon.
    grants_lease_extensions: bool,
}

pub(super) struct RelaySession {
    live: Option<LiveSession>,
    /// Why there is no stream, for operators.
    disconnect_reason: String,
    /// Why the link does not dial again.
    link_error: Option<LinkError>,
    /// Until then the relay is expected to answer: no output is cut because it is not there yet.
    awaited_until: Option<BootTime>,
    /// Messages of a newer relay that this version does not know.
    unknown_messages: u64,
}

impl RelaySession {
    pub(super) fn new(now: BootTime) -> Self {
        Self {
            live: None,
            disconnect_reason: "it has not connected yet".to_owned(),
            link_error: None,
            awaited_until: Some(now.after(RELAY_WAIT_AFTER_START)),
            unknown_messages: 0,
        }
    }

    pub(super) fn open(
        &mut self,
        session: LinkSession,
        heartbeat_interval: Duration,
        grants_lease_extensions: bool,
        now: BootTime,
    ) {
        self.live = Some(LiveSession {
            session,
            heartbeats: HeartbeatTracker::new(heartbeat_interval, now),
            last_answer_at: now,
            grants_lease_extensions,
        });
    }

    /// The stream is gone; the link reports more when it knows more.
    pub(super) fn on_lost(&mut self) {
        self.live = None;
        "the stream broke".clone_into(&mut self.disconnect_reason);
    }

    /// Makes the link drop the stream and dial again.
    pub(super) fn close(&self) {
        if let Some(live) = &self.live {
            live.session.close();
        }
    }

    /// Ends the sending side after everything that is queued. Without room for the frame the relay
    /// notices the closed stream.
    pub(super) fn finish(&mut self, goodbye: daemon_frame::Frame) {
        if let Some(live) = self.live.take() {
            let _ = live.session.frames.try_send(to_daemon_frame(goodbye));
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.live.is_some()
    }

    /// Whether the live stream has this number.
    pub(super) fn is_current(&self, number: u64) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| live.session.number == number)
    }

    /// Whether the relay is connected or expected any moment, so that output waits for it.
    pub(super) fn is_expected(&self) -> bool {
        self.live.is_some() || self.awaited_until.is_some()
    }

    /// True once, when the relay has not come in the time after the start.
    pub(super) fn stop_awaiting(&mut self, now: BootTime) -> bool {
        let is_over = self.awaited_until.is_some_and(|until| until <= now);
        if is_over {
            self.awaited_until = None;
        }
        is_over
    }

    pub(super) fn next_wake(&self) -> Option<BootTime> {
        let heartbeat = self.next_heartbeat_at();
        heartbeat.into_iter().chain(self.awaited_until).min()
    }

    fn next_heartbeat_at(&self) -> Option<BootTime> {
        let live = self.live.as_ref()?;
        Some(live.heartbeats.next_action_at())
    }

    pub(super) fn is_heartbeat_due(&self, now: BootTime) -> bool {
        self.next_heartbeat_at().is_some_and(|at| at <= now)
    }

    /// Two heartbeats went unanswered.
    pub(super) fn is_dead(&self, now: BootTime) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| live.heartbeats.is_dead(now))
    }

    /// Numbers the heartbeat and sends it. A short lease brings the next one forward.
    pub(super) fn send_heartbeat(
        &mut self,
        mut heartbeat: Heartbeat,
        shortest_ttl: Option<Duration>,
        now: BootTime,
    ) {
        let Some(live) = &mut self.live else { return };
        heartbeat.seq = live.heartbeats.record_sent(now);
        heartbeat.heard_seq = Some(live.heartbeats.last_answered_seq());
        if let Some(ttl) = shortest_ttl {
            live.heartbeats.shorten_for_lease(ttl, now);
        }
        live.session
            .send_urgent(to_daemon_frame(daemon_frame::Frame::Heartbeat(heartbeat)));
    }

    /// When the acknowledged heartbeat was sent; `None` for one that is not outstanding.
    pub(super) fn on_heartbeat_ack(
        &mut self,
        ack: &HeartbeatAck,
        now: BootTime,
    ) -> Option<BootTime> {
        let live = self.live.as_mut()?;
        let sent_at = live.heartbeats.record_answer(ack.seq)?;
        live.last_answer_at = now;
        if let Some(interval) = positive_millis(ack.heartbeat_ms) {
            live.heartbeats.set_interval(interval, now);
        }
        Some(sent_at)
    }

    /// A new lease may need an earlier heartbeat.
    pub(super) fn shorten_for_lease(&mut self, ttl: Option<Duration>, now: BootTime) {
        if let Some((live, ttl)) = self.live.as_mut().zip(ttl) {
            live.heartbeats.shorten_for_lease(ttl, now);
        }
    }

    pub(super) fn send_urgent(&self, frame: daemon_frame::Frame) {
        if let Some(live) = &self.live {
            live.session.send_urgent(to_daemon_frame(frame));
        }
    }

    /// Where attempts' frames are sent.
    pub(super) fn frames(&self) -> Option<&mpsc::Sender<DaemonFrame>> {
        self.live.as_ref().map(|live| &live.session.frames)
    }

    /// The queue of frames while it is full; closed it is reported by the link.
    pub(super) fn full_frame_queue(&self) -> Option<mpsc::Sender<DaemonFrame>> {
        self.frames().filter(|frames| !frames.is_closed()).cloned()
    }

    /// The number of the stream on which a lease extension can be requested.
    pub(super) fn extension_stream(&self) -> Option<u64> {
        let live = self.live.as_ref();
        live.filter(|live| live.grants_lease_extensions)
            .map(|live| live.session.number)
    }

    /// The link tries for ever, so a reason is logged only when it changes.
    pub(super) fn on_not_connected(&mut self, why: String) {
        if why != self.disconnect_reason {
            warn!(why, "no stream to the relay");
        }
        self.disconnect_reason = why;
    }

    pub(super) fn on_given_up(&mut self, error: LinkError) {
        self.link_error = Some(error);
    }

    pub(super) fn take_link_error(&mut self) -> Option<LinkError> {
        self.link_error.take()
    }

    pub(super) fn count_unknown(&mut self) {
        self.unknown_messages += 1;
    }

    pub(super) fn unknown_messages(&self) -> u64 {
        self.unknown_messages
    }

    pub(super) fn contact(&self) -> Option<RelayContact> {
        self.live.as_ref().map(|live| RelayContact {
            at: live.last_answer_at,
            interval: live.heartbeats.interval(),
        })
    }

    /// Empty while there is a stream.
    pub(super) fn disconnect_reason(&self) -> &str {
        match self.live {
            Some(_) => "",
            None => &self.disconnect_reason,
        }
    }
}

fn to_daemon_frame(frame: daemon_frame::Frame) -> DaemonFrame {
    DaemonFrame { frame: Some(frame) }
}

/// Returns when the queue has room again; never for one that is closed. Cancel safe.
pub(super) async fn wait_for_room(frames: Option<mpsc::Sender<DaemonFrame>>) {
    if let Some(frames) = frames
        && frames.reserve().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
