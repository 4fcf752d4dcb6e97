//! Streams between daemons and the relay. Within a stream nothing is lost or reordered, as with
//! TCP. A stream can end at any point: then all frames after some frame are lost, and the
//! others may arrive very late.

use std::collections::VecDeque;

use baton_core::ids::{AttemptId, Incarnation, SessionId};
use baton_core::io::effects::DaemonMessage;
use baton_core::io::session_input::{AttemptFrame, DaemonHello, SessionInput};

use crate::relay::output_log::UpstreamOutput;
use crate::simulation::{ScheduledEvent, Simulation};

#[derive(Debug)]
pub(crate) enum UpstreamItem {
    Hello(Box<DaemonHello>),
    Input(SessionInput),
    /// A frame of an attempt, and which of its words it is.
    Frame {
        frame: Box<AttemptFrame>,
        frame_number: Option<u64>,
        is_replay: bool,
    },
    Output(Box<UpstreamOutput>),
    End,
}

#[derive(Debug)]
pub(crate) enum DownstreamItem {
    Message(DaemonMessage),
    /// Sent by the session itself: output up to here is stored.
    OutputAck {
        attempt: AttemptId,
        offset: u64,
    },
    /// The stored offsets of all attempts, with a Welcome.
    Offsets(Vec<(AttemptId, u64)>),
    End,
}

#[derive(Debug)]
pub(crate) struct StreamPipe<T> {
    queue: VecDeque<(u64, T)>,
    last_arrival: u64,
    /// Nothing can be sent any more.
    is_closed: bool,
    /// Items are dropped without an error for the sender.
    drops_silently: bool,
}

impl<T> StreamPipe<T> {
    fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            last_arrival: 0,
            is_closed: false,
            drops_silently: false,
        }
    }

    fn push(&mut self, at: u64, item: T) -> u64 {
        if self.drops_silently {
            return at;
        }
        self.last_arrival = self.last_arrival.max(at);
        self.queue.push_back((self.last_arrival, item));
        self.last_arrival
    }

    fn freeze(&mut self, until: u64) {
        for (at, _) in &mut self.queue {
            *at = (*at).max(until);
        }
        self.last_arrival = self.last_arrival.max(until);
    }

    fn pop(&mut self, now: u64) -> Option<T> {
        let (at, _) = self.queue.front()?;
        if *at > now {
            return None;
        }
        self.queue.pop_front().map(|(_, item)| item)
    }
}

#[derive(Debug)]
pub(crate) struct SimStream {
    pub(crate) session: SessionId,
    pub(crate) daemon: usize,
    /// The incarnation of the relay on the other side.
    pub(crate) incarnation: Incarnation,
    pub(crate) upstream: StreamPipe<UpstreamItem>,
    pub(crate) downstream: StreamPipe<DownstreamItem>,
    /// The relay has read Hello.
    pub(crate) hello_read: bool,
    /// The relay uses it as its daemon's stream.
    pub(crate) is_current: bool,
    /// This run of the relay has used it at some time.
    pub(crate) was_current: bool,
    pub(crate) relay_open: bool,
    pub(crate) daemon_open: bool,
}

impl Simulation {
    pub(crate) fn open_stream(&mut self, daemon: usize) -> usize {
        let session = SessionId(baton_core::time::IdSource::new_id(&mut self.id_source));
        self.streams.push(SimStream {
            session,
            daemon,
            incarnation: self.relay.incarnation(),
            upstream: StreamPipe::new(),
            downstream: StreamPipe::new(),
            hello_read: false,
            is_current: false,
            was_current: false,
            relay_open: true,
            daemon_open: true,
        });
        self.streams.len() - 1
    }

    /// Whether the relay uses this stream.
    pub(crate) fn is_current_session(&self, session: SessionId) -> bool {
        let mut own = self.streams.iter().filter(|c| c.session == session);
        own.any(|conn| conn.is_current)
    }

    fn pick_delay(&mut self) -> u64 {
        let most = self.options.delay_ms;
        self.rng.between(1, most)
    }

    pub(crate) fn send_to_relay(&mut self, conn: usize, item: UpstreamItem) {
        let at = self.now + self.pick_delay();
        let pipe = &mut self.streams[conn].upstream;
        if !pipe.is_closed {
            let at = pipe.push(at, item);
            self.schedule(at, ScheduledEvent::StreamArrival { conn, up: true });
        }
    }

    pub(crate) fn send_to_daemon(&mut self, conn: usize, item: DownstreamItem) {
        let at = self.now + self.pick_delay();
        let pipe = &mut self.streams[conn].downstream;
        if !pipe.is_closed {
            let at = pipe.push(at, item);
            self.schedule(at, ScheduledEvent::StreamArrival { conn, up: false });
        }
    }

    pub(crate) fn deliver_arrivals(&mut self, conn: usize, up: bool) {
        if up {
            while let Some(item) = self.streams[conn].upstream.pop(self.now) {
                self.counts.late_arrivals += u64::from(!self.streams[conn].daemon_open);
                self.deliver_to_relay(conn, item);
            }
        } else {
            while let Some(item) = self.streams[conn].downstream.pop(self.now) {
                self.deliver_to_daemon(conn, item);
            }
        }
    }

    /// Nothing moves for a while, then everything does: long-delayed frames, often of a stream
    /// that was replaced since.
    pub(crate) fn freeze_stream(&mut self, conn: usize) {
        let until = self.now + self.rng.between(1_000, 70_000);
        self.add_trace(|| format!("stream {conn} is frozen until {until}"));
        let (up, down) = (self.rng.chance(80), self.rng.chance(50));
        let conn_ref = &mut self.streams[conn];
        if up {
            conn_ref.upstream.freeze(until);
        }
        if down {
            conn_ref.downstream.freeze(until);
        }
        self.schedule(until, ScheduledEvent::StreamArrival { conn, up: true });
        self.schedule(until, ScheduledEvent::StreamArrival { conn, up: false });
    }

    /// One direction is dead from now on, without an error; the silence is noticed in the end.
    pub(crate) fn cut_stream_one_way(&mut self, conn: usize) {
        self.counts.one_way_cuts += 1;
        let up = self.rng.chance(50);
        self.add_trace(|| {
            format!(
                "stream {conn} carries nothing {}",
                if up { "up" } else { "down" }
            )
        });
        let found_out = self.now + 90_000;
        let link = &mut self.streams[conn];
        if up {
            link.upstream.push(found_out, UpstreamItem::End);
            link.upstream.drops_silently = true;
        } else {
            link.downstream.push(found_out, DownstreamItem::End);
            link.downstream.drops_silently = true;
        }
        self.schedule(found_out, ScheduledEvent::StreamArrival { conn, up });
    }

    /// The stream breaks. A prefix of the frames in flight still arrives, perhaps late. Each
    /// side notices the end at its own time, by an error or by silence.
    pub(crate) fn cut_stream(&mut self, conn: usize) {
        if self.streams[conn].upstream.is_closed && self.streams[conn].downstream.is_closed {
            return;
        }
        self.counts.cuts += 1;
        self.add_trace(|| format!("stream {conn} is cut"));
        let late = self.options.late_frames && !self.healing && self.rng.chance(50);
        let extra = if late {
            self.rng.between(500, 60_000)
        } else {
            0
        };
        let silent = self.options.half_open && !self.healing && self.rng.chance(40);
        let known = if silent {
            90_000
        } else {
            self.rng.between(1, 2_000)
        };
        let (kept_up, kept_down) = (self.rng.next_u64(), self.rng.next_u64());
        let now = self.now;
        let greeted = self.streams[conn].hello_read || self.options.stale_hellos;
        let up = &mut self.streams[conn].upstream;
        let kept = if greeted { kept_up } else { 0 };
        truncate_pipe(up, kept, extra);
        let end = up.push(now + known, UpstreamItem::End);
        up.is_closed = true;
        let times: Vec<u64> = up.queue.iter().map(|(at, _)| *at).collect();
        times
            .into_iter()
            .chain([end])
            .for_each(|at| self.schedule(at, ScheduledEvent::StreamArrival { conn, up: true }));
        let known = if silent {
            90_000
        } else {
            self.rng.between(1, 2_000)
        };
        let down = &mut self.streams[conn].downstream;
        truncate_pipe(down, kept_down, extra);
        let end = down.push(now + known, DownstreamItem::End);
        down.is_closed = true;
        let times: Vec<u64> = down.queue.iter().map(|(at, _)| *at).collect();
        times
            .into_iter()
            .chain([end])
            .for_each(|at| self.schedule(at, ScheduledEvent::StreamArrival { conn, up: false }));
    }

    /// One side closes the stream; the other side notices after all earlier frames.
    pub(crate) fn close_from_relay(&mut self, conn: usize) {
        self.streams[conn].relay_open = false;
        self.send_to_daemon(conn, DownstreamItem::End);
        self.streams[conn].downstream.is_closed = true;
    }

    pub(crate) fn close_from_daemon(&mut self, conn: usize) {
        if !self.streams[conn].hello_read && !self.options.stale_hellos {
            self.streams[conn].upstream.queue.clear();
        }
        self.streams[conn].daemon_open = false;
        self.send_to_relay(conn, UpstreamItem::End);
        self.streams[conn].upstream.is_closed = true;
    }

    /// The relay's process has ended: frames that it sent may arrive, frames to it are lost.
    pub(crate) fn break_from_relay(&mut self, conn: usize) {
        self.streams[conn].is_current = false;
        self.streams[conn].was_current = false;
        self.streams[conn].relay_open = false;
        self.streams[conn].upstream.queue.clear();
        self.streams[conn].upstream.is_closed = true;
        if !self.streams[conn].downstream.is_closed {
            let kept = self.rng.next_u64();
            truncate_pipe(&mut self.streams[conn].downstream, kept, 0);
            let at = self.now + self.rng.between(1, 3_000);
            let at = self.streams[conn].downstream.push(at, DownstreamItem::End);
            self.streams[conn].downstream.is_closed = true;
            self.schedule(at, ScheduledEvent::StreamArrival { conn, up: false });
        }
    }

    /// The daemon's process has ended. The kernel closes its streams, or the machine is off and
    /// they end without a notice.
    pub(crate) fn break_from_daemon(&mut self, conn: usize, silent: bool) {
        self.streams[conn].daemon_open = false;
        if !self.streams[conn].hello_read && !self.options.stale_hellos {
            self.streams[conn].upstream.queue.clear();
        }
        self.streams[conn].downstream.queue.clear();
        self.streams[conn].downstream.is_closed = true;
        if self.streams[conn].upstream.is_closed {
            return;
        }
        let after = if silent {
            90_000
        } else {
            self.rng.between(1, 1_000)
        };
        let at = self.now + after;
        let at = self.streams[conn].upstream.push(at, UpstreamItem::End);
        self.streams[conn].upstream.is_closed = true;
        self.schedule(at, ScheduledEvent::StreamArrival { conn, up: true });
    }
}

/// Keeps a random prefix of the frames in flight and delays it.
fn truncate_pipe<T>(pipe: &mut StreamPipe<T>, chance: u64, extra: u64) {
    let kept = chance % (pipe.queue.len() as u64 + 1);
    pipe.queue.truncate(usize::try_from(kept).unwrap_or(0));
    for (at, _) in &mut pipe.queue {
        *at += extra;
    }
    pipe.last_arrival = pipe.queue.back().map_or(0, |(at, _)| *at);
}
