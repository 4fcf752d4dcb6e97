//! Streams between daemons and the relay. Inside one nothing is lost or reordered, for it is TCP; but it can end at
//! any point, what was on its way is then lost behind some frame, and what is not lost may come very late.

use std::collections::VecDeque;

use baton_core::effects::Downstream;
use baton_core::id::{AttemptId, Incarnation, SessionId};
use baton_core::input::{Frame, Hello, Input};

use crate::outputs::Chunk;
use crate::world::{Event, World};

#[derive(Debug)]
pub(crate) enum Up {
    Hello(Box<Hello>),
    Input(Input),
    /// A frame of an attempt, and which of its words it is.
    Said {
        frame: Box<Frame>,
        nth: Option<u64>,
        ghost: bool,
    },
    Output(Box<Chunk>),
    End,
}

#[derive(Debug)]
pub(crate) enum Down {
    Message(Downstream),
    /// The session's own word: output up to here is stored.
    OutputAck {
        attempt: AttemptId,
        offset: u64,
    },
    /// The same of all attempts, with a Welcome.
    Offsets(Vec<(AttemptId, u64)>),
    End,
}

#[derive(Debug)]
pub(crate) struct Pipe<T> {
    queue: VecDeque<(u64, T)>,
    last: u64,
    /// Nothing enters any more.
    shut: bool,
    /// What enters is never seen again, and its sender does not know.
    swallows: bool,
}

impl<T> Pipe<T> {
    fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            last: 0,
            shut: false,
            swallows: false,
        }
    }

    fn push(&mut self, at: u64, item: T) -> u64 {
        if self.swallows {
            return at;
        }
        self.last = self.last.max(at);
        self.queue.push_back((self.last, item));
        self.last
    }

    fn freeze(&mut self, until: u64) {
        for (at, _) in &mut self.queue {
            *at = (*at).max(until);
        }
        self.last = self.last.max(until);
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
pub(crate) struct Conn {
    pub(crate) session: SessionId,
    pub(crate) daemon: usize,
    /// Of the relay at its other end.
    pub(crate) incarnation: Incarnation,
    pub(crate) up: Pipe<Up>,
    pub(crate) down: Pipe<Down>,
    /// Hello has been read by the relay.
    pub(crate) greeted: bool,
    /// The relay takes it for its daemon's stream.
    pub(crate) known: bool,
    /// This run of the relay has taken it for that at some time.
    pub(crate) welcomed: bool,
    pub(crate) relay_open: bool,
    pub(crate) daemon_open: bool,
}

impl World {
    pub(crate) fn open_conn(&mut self, daemon: usize) -> usize {
        let session = SessionId(baton_core::time::Mint::id(&mut self.mint));
        self.conns.push(Conn {
            session,
            daemon,
            incarnation: self.relay.incarnation(),
            up: Pipe::new(),
            down: Pipe::new(),
            greeted: false,
            known: false,
            welcomed: false,
            relay_open: true,
            daemon_open: true,
        });
        self.conns.len() - 1
    }

    /// Whether the relay hears this stream.
    pub(crate) fn is_current(&self, session: SessionId) -> bool {
        let mut own = self.conns.iter().filter(|c| c.session == session);
        own.any(|conn| conn.known)
    }

    fn delay(&mut self) -> u64 {
        let most = self.options.delay_ms;
        self.rng.between(1, most)
    }

    pub(crate) fn send_up(&mut self, conn: usize, item: Up) {
        let at = self.now + self.delay();
        let pipe = &mut self.conns[conn].up;
        if !pipe.shut {
            let at = pipe.push(at, item);
            self.at(at, Event::Arrive { conn, up: true });
        }
    }

    pub(crate) fn send_down(&mut self, conn: usize, item: Down) {
        let at = self.now + self.delay();
        let pipe = &mut self.conns[conn].down;
        if !pipe.shut {
            let at = pipe.push(at, item);
            self.at(at, Event::Arrive { conn, up: false });
        }
    }

    pub(crate) fn arrive(&mut self, conn: usize, up: bool) {
        if up {
            while let Some(item) = self.conns[conn].up.pop(self.now) {
                self.counts.late_arrivals += u64::from(!self.conns[conn].daemon_open);
                self.relay_hears(conn, item);
            }
        } else {
            while let Some(item) = self.conns[conn].down.pop(self.now) {
                self.daemon_hears(conn, item);
            }
        }
    }

    /// Nothing moves for a while, then all of it does: long-delayed frames, often of a stream that was given up since.
    pub(crate) fn freeze(&mut self, conn: usize) {
        let until = self.now + self.rng.between(1_000, 70_000);
        self.note(|| format!("stream {conn} is frozen until {until}"));
        let (up, down) = (self.rng.chance(80), self.rng.chance(50));
        let conn_ref = &mut self.conns[conn];
        if up {
            conn_ref.up.freeze(until);
        }
        if down {
            conn_ref.down.freeze(until);
        }
        self.at(until, Event::Arrive { conn, up: true });
        self.at(until, Event::Arrive { conn, up: false });
    }

    /// One direction is dead from now on, and nobody is told; in the end the silence is.
    pub(crate) fn cut_one_way(&mut self, conn: usize) {
        self.counts.one_way_cuts += 1;
        let up = self.rng.chance(50);
        self.note(|| {
            format!(
                "stream {conn} carries nothing {}",
                if up { "up" } else { "down" }
            )
        });
        let found_out = self.now + 90_000;
        let link = &mut self.conns[conn];
        if up {
            link.up.push(found_out, Up::End);
            link.up.swallows = true;
        } else {
            link.down.push(found_out, Down::End);
            link.down.swallows = true;
        }
        self.at(found_out, Event::Arrive { conn, up });
    }

    /// The stream breaks. A prefix of what is on its way still arrives, perhaps late; each side learns of the end in
    /// its own time, or finds out by silence.
    pub(crate) fn cut(&mut self, conn: usize) {
        if self.conns[conn].up.shut && self.conns[conn].down.shut {
            return;
        }
        self.counts.cuts += 1;
        self.note(|| format!("stream {conn} is cut"));
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
        let (kept_up, kept_down) = (self.rng.bits(), self.rng.bits());
        let now = self.now;
        let greeted = self.conns[conn].greeted || self.options.stale_hellos;
        let up = &mut self.conns[conn].up;
        let kept = if greeted { kept_up } else { 0 };
        shorten(up, kept, extra);
        let end = up.push(now + known, Up::End);
        up.shut = true;
        let times: Vec<u64> = up.queue.iter().map(|(at, _)| *at).collect();
        times
            .into_iter()
            .chain([end])
            .for_each(|at| self.at(at, Event::Arrive { conn, up: true }));
        let known = if silent {
            90_000
        } else {
            self.rng.between(1, 2_000)
        };
        let down = &mut self.conns[conn].down;
        shorten(down, kept_down, extra);
        let end = down.push(now + known, Down::End);
        down.shut = true;
        let times: Vec<u64> = down.queue.iter().map(|(at, _)| *at).collect();
        times
            .into_iter()
            .chain([end])
            .for_each(|at| self.at(at, Event::Arrive { conn, up: false }));
    }

    /// One side hangs up; the other learns it behind what was sent before.
    pub(crate) fn relay_hangs_up(&mut self, conn: usize) {
        self.conns[conn].relay_open = false;
        self.send_down(conn, Down::End);
        self.conns[conn].down.shut = true;
    }

    pub(crate) fn daemon_hangs_up(&mut self, conn: usize) {
        if !self.conns[conn].greeted && !self.options.stale_hellos {
            self.conns[conn].up.queue.clear();
        }
        self.conns[conn].daemon_open = false;
        self.send_up(conn, Up::End);
        self.conns[conn].up.shut = true;
    }

    /// The relay's process is gone: what it sent may arrive, what it was sent is lost.
    pub(crate) fn relay_dies(&mut self, conn: usize) {
        self.conns[conn].known = false;
        self.conns[conn].welcomed = false;
        self.conns[conn].relay_open = false;
        self.conns[conn].up.queue.clear();
        self.conns[conn].up.shut = true;
        if !self.conns[conn].down.shut {
            let kept = self.rng.bits();
            shorten(&mut self.conns[conn].down, kept, 0);
            let at = self.now + self.rng.between(1, 3_000);
            let at = self.conns[conn].down.push(at, Down::End);
            self.conns[conn].down.shut = true;
            self.at(at, Event::Arrive { conn, up: false });
        }
    }

    /// The daemon's process is gone; the kernel closes its streams, or the machine is off and nobody says so.
    pub(crate) fn daemon_dies(&mut self, conn: usize, silent: bool) {
        self.conns[conn].daemon_open = false;
        if !self.conns[conn].greeted && !self.options.stale_hellos {
            self.conns[conn].up.queue.clear();
        }
        self.conns[conn].down.queue.clear();
        self.conns[conn].down.shut = true;
        if self.conns[conn].up.shut {
            return;
        }
        let after = if silent {
            90_000
        } else {
            self.rng.between(1, 1_000)
        };
        let at = self.now + after;
        let at = self.conns[conn].up.push(at, Up::End);
        self.conns[conn].up.shut = true;
        self.at(at, Event::Arrive { conn, up: true });
    }
}

/// Keeps some prefix of what is on its way and delays it.
fn shorten<T>(pipe: &mut Pipe<T>, chance: u64, extra: u64) {
    let kept = chance % (pipe.queue.len() as u64 + 1);
    pipe.queue.truncate(usize::try_from(kept).unwrap_or(0));
    for (at, _) in &mut pipe.queue {
        *at += extra;
    }
    pipe.last = pipe.queue.back().map_or(0, |(at, _)| *at);
}
