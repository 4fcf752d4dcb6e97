//! A simulated daemon: an honest and simple speaker of the protocol. It keeps frames until they are acknowledged, renews
//! what it holds, and counts its leases from the send of what was acknowledged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use baton_core::id::{AttemptId, DaemonId, InputId, InstanceId, TenantId, TenantScope, TokenId};
use baton_core::input::{
    ActiveAttempt, ActiveState, FrameBody, FrameRef, Heartbeat, Hello, Input, LeaseToken,
};
use baton_core::record::Decision;
use baton_core::spec::TaskSpec;
use baton_core::time::{Mint, Wall};
use uuid::Uuid;

use crate::agent::Plan;
use crate::ghosts::{Past, Said};
use crate::links::Up;
use crate::world::{Event, World};

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) id: DaemonId,
    scope: TenantScope,
    slots: u32,
    boot: u64,
    instance: InstanceId,
    /// Counts runs and reconnects, so that what was planned for an earlier one is void.
    pub(crate) life: u64,
    pub(crate) down: bool,
    pub(crate) conn: Option<usize>,
    pub(crate) welcomed: bool,
    pub(crate) hello_at: u64,
    pub(crate) beat_ms: u64,
    beat_seq: u64,
    /// Heartbeats that are not answered yet, with the time they were sent.
    pub(crate) beats: VecDeque<(u64, u64)>,
    pub(crate) hold: Option<Hold>,
    pub(crate) draining: bool,
    /// Its disk is full until then, and it may be of those that say so in heartbeats.
    pub(crate) full_until: u64,
    pub(crate) says_full: bool,
    pub(crate) held: BTreeMap<AttemptId, Held>,
    /// It does nothing before this.
    pub(crate) stopped_until: u64,
    /// What may come again much later.
    pub(crate) past: Past,
    pub(crate) ghosts: BTreeSet<(AttemptId, u64)>,
    /// What it was told for each input.
    pub(crate) answers: BTreeMap<InputId, Decision>,
}

/// A restart on purpose: asked at a time, begun when it is granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) request: u64,
    pub(crate) at: u64,
}

/// One attempt on its machine.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) re: FrameRef,
    pub(crate) token: LeaseToken,
    pub(crate) spec: Arc<TaskSpec>,
    pub(crate) plan: Plan,
    pub(crate) stage: u32,
    /// Its processes run.
    pub(crate) alive: bool,
    pub(crate) confirmed: bool,
    pub(crate) accepted_at: u64,
    /// By then its processes are dead, unless a renewal is acknowledged.
    pub(crate) limit: u64,
    /// Why it is being killed, if it is.
    pub(crate) killing: Option<Kill>,
    /// A terminal frame was made.
    pub(crate) ended: bool,
    pub(crate) reachable: bool,
    /// Its frames were read back from the disk: they carry no token.
    pub(crate) restored: bool,
    /// Not even its receipt is wanted.
    pub(crate) unwanted: bool,
    pub(crate) tool: Option<Arc<str>>,
    pub(crate) asked: Option<InputId>,
    pub(crate) output: u64,
    pub(crate) outbox: VecDeque<(u64, Wall, FrameBody)>,
    /// How many of the outbox went out on this stream.
    pub(crate) sent: usize,
    pub(crate) seq: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// The relay asked for it in a Cancel.
    Canceled,
    /// It is over for the relay, and nothing of it will count.
    GivenUp,
    /// The lease ran out.
    Limit,
    /// It told its end before its processes were gone.
    Lingering,
}

impl Held {
    pub(crate) fn push(&mut self, body: FrameBody, wall: Wall) {
        self.seq += 1;
        self.outbox.push_back((self.seq, wall, body));
    }

    pub(crate) fn acked(&mut self, upto: u64) {
        while self.outbox.front().is_some_and(|(seq, ..)| *seq <= upto) {
            self.outbox.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }

    /// Nothing is left to run or to say.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && !self.alive && self.outbox.is_empty()
    }
}

impl World {
    pub(crate) fn add_daemon(&mut self, index: usize) {
        let tenant = TenantId::new("acme").expect("a good name");
        let own = self.rng.chance(25);
        self.daemons.push(Daemon {
            id: DaemonId(Uuid::from_u128(1_000 + index as u128)),
            scope: if own {
                TenantScope::One(tenant)
            } else {
                TenantScope::All
            },
            slots: u32::try_from(self.rng.between(1, 4)).unwrap_or(1),
            boot: 1,
            instance: InstanceId(self.mint.id()),
            life: 0,
            down: false,
            conn: None,
            welcomed: false,
            hello_at: 0,
            beat_ms: 5_000,
            beat_seq: 0,
            beats: VecDeque::new(),
            hold: None,
            draining: false,
            full_until: 0,
            says_full: false,
            held: BTreeMap::new(),
            stopped_until: 0,
            past: Past::default(),
            ghosts: BTreeSet::new(),
            answers: BTreeMap::new(),
        });
        let at = self.rng.below(2_000);
        self.at(
            at,
            Event::Connect {
                daemon: index,
                life: 0,
            },
        );
    }

    pub(crate) fn connect(&mut self, index: usize, life: u64) {
        let daemon = &self.daemons[index];
        if daemon.life != life || daemon.down || daemon.conn.is_some() {
            return;
        }
        if self.relay.core.is_none() {
            let at = self.now + self.rng.between(200, 2_000);
            return self.at(
                at,
                Event::Connect {
                    daemon: index,
                    life,
                },
            );
        }
        let conn = self.open_conn(index);
        let hello = self.hello(index);
        let daemon = &mut self.daemons[index];
        daemon.conn = Some(conn);
        daemon.welcomed = false;
        daemon.hello_at = self.now;
        daemon.beats.clear();
        daemon.hold = None;
        if self.options.stale_hellos && !self.healing && self.rng.chance(30) {
            self.freeze(conn);
        }
        self.send_up(conn, Up::Hello(Box::new(hello)));
        self.at(
            self.now + 15_000,
            Event::Patience {
                daemon: index,
                conn,
            },
        );
    }

    pub(crate) fn patience_ends(&mut self, index: usize, conn: usize) {
        if self.daemons[index].conn == Some(conn) && !self.daemons[index].welcomed {
            self.hang_up(index);
        }
    }

    fn hello(&mut self, index: usize) -> Hello {
        let daemon = &mut self.daemons[index];
        let active = daemon.held.values_mut().map(|held| {
            held.sent = 0;
            let state = match (held.ended, held.reachable) {
                (true, _) if !held.outbox.is_empty() => ActiveState::Finished,
                (_, false) => ActiveState::Unreachable,
                (_, true) => ActiveState::Running,
            };
            ActiveAttempt {
                re: held.re,
                proof: Some(held.token.clone()),
                state,
                control_seq: held.seq,
                output_end: held.output,
                finished: None,
            }
        });
        Hello {
            active: active.collect(),
            daemon: daemon.id,
            scope: daemon.scope.clone(),
            token: TokenId(Uuid::from_u128(9)),
            instance: daemon.instance,
            boot_id: format!("boot-{}", daemon.boot).into(),
            name: format!("d{index}").into(),
            version: "1".into(),
            platform: baton_core::record::Platform::default(),
            slots: daemon.slots,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: vec!["claude".into()],
            workspaces: Vec::new(),
            draining: daemon.draining,
        }
    }

    /// The stream is gone on this side; another is tried soon, while attempts go on.
    pub(crate) fn lost_conn(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        daemon.conn = None;
        daemon.welcomed = false;
        daemon.life += 1;
        let life = daemon.life;
        let long = self.options.long_outages && !self.healing && self.rng.chance(40);
        let worst = match (long, self.rng.chance(20)) {
            (true, true) => 300_000,
            (true, false) => 80_000,
            (false, _) => 2_000,
        };
        let at = self.now + self.rng.between(1, worst);
        self.at(
            at,
            Event::Connect {
                daemon: index,
                life,
            },
        );
    }

    pub(crate) fn hang_up(&mut self, index: usize) {
        if let Some(conn) = self.daemons[index].conn {
            self.daemon_hangs_up(conn);
            self.lost_conn(index);
        }
    }

    pub(crate) fn beat(&mut self, index: usize, conn: usize) {
        if self.daemons[index].conn != Some(conn) || self.daemons[index].down {
            return;
        }
        if self.daemons[index].beats.len() >= 2 {
            self.note(|| format!("d{index} hears nothing on {conn} and hangs up"));
            return self.hang_up(index);
        }
        let session = self.conns[conn].session;
        let now = self.now;
        let daemon = &mut self.daemons[index];
        daemon.beat_seq += 1;
        daemon.beats.push_back((daemon.beat_seq, now));
        let running = daemon.held.values().filter(|held| {
            let leased = !held.ended || (held.limit > now && !held.outbox.is_empty());
            leased && held.reachable && held.killing != Some(Kill::GivenUp)
        });
        let oldest_unanswered = daemon.beats.front().map_or(0, |(seq, _)| *seq);
        let heartbeat = Heartbeat {
            seq: daemon.beat_seq,
            heard_seq: Some(oldest_unanswered.saturating_sub(1)),
            renewals: running
                .map(|held| (held.re.attempt, held.token.clone()))
                .collect(),
            free_slots: 0,
            draining: daemon.draining,
            unfit: daemon.says_full && daemon.full_until > now,
            load: None,
        };
        let next = now + daemon.beat_ms;
        self.send_up(conn, Up::Input(Input::Heartbeat { session, heartbeat }));
        self.at(
            next,
            Event::Beat {
                daemon: index,
                conn,
            },
        );
    }

    /// Numbers a frame, keeps it, and sends it if there is a stream.
    pub(crate) fn say(&mut self, index: usize, attempt: AttemptId, body: FrameBody) {
        let wall = self.wall();
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.push(body, wall);
        }
        self.flush(index, attempt);
    }

    pub(crate) fn flush(&mut self, index: usize, attempt: AttemptId) {
        if self.is_stopped(index) {
            return;
        }
        let daemon = &mut self.daemons[index];
        let (Some(conn), true, false) = (daemon.conn, daemon.welcomed, daemon.down) else {
            return;
        };
        let session = self.conns[conn].session;
        let Some(held) = daemon.held.get_mut(&attempt).filter(|held| held.reachable) else {
            return;
        };
        let unsent: Vec<_> = held.outbox.iter().skip(held.sent).cloned().collect();
        held.sent = held.outbox.len();
        let (re, token, restored) = (held.re, held.token.clone(), held.restored);
        let said = |(control_seq, observed, body)| Said {
            re,
            control_seq,
            observed,
            body,
        };
        let unsent: Vec<Said> = unsent.into_iter().map(said).collect();
        self.doubled(index, conn, &unsent);
        for said in unsent {
            let proof = (!restored && self.rng.chance(50)).then(|| token.clone());
            self.daemons[index].past.said(said.clone());
            let frame = Box::new(said.frame(session, proof));
            self.send_up(conn, Up::Input(Input::Frame(frame)));
        }
    }

    /// Its process ends by force. What it had in memory is gone; its machine may go with it.
    pub(crate) fn crash_daemon(&mut self, index: usize, reboot: bool) {
        if self.daemons[index].down {
            return;
        }
        self.note(|| format!("d{index} {}", if reboot { "reboots" } else { "crashes" }));
        if let Some(conn) = self.daemons[index].conn {
            let silent = reboot && self.rng.chance(50);
            self.daemon_dies(conn, silent);
        }
        let shims = self.options.shims && !reboot;
        let attempts: Vec<AttemptId> = self.daemons[index].held.keys().copied().collect();
        for attempt in attempts {
            self.crash_attempt(index, attempt, shims);
        }
        let instance = InstanceId(self.mint.id());
        let daemon = &mut self.daemons[index];
        daemon.conn = None;
        daemon.welcomed = false;
        daemon.down = true;
        daemon.life += 1;
        daemon.instance = instance;
        daemon.boot += u64::from(reboot);
        daemon.stopped_until = 0;
        let life = daemon.life;
        let away = self.rng.between(
            100,
            if self.rng.clone().chance(20) {
                90_000
            } else {
                8_000
            },
        );
        self.daemons[index].down = false;
        self.at(
            self.now + away,
            Event::Connect {
                daemon: index,
                life,
            },
        );
    }

    /// What becomes of one attempt when its daemon's process ends.
    fn crash_attempt(&mut self, index: usize, attempt: AttemptId, shims: bool) {
        let disk = self.options.disk_outbox;
        let answers = self.rng.chance(80);
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        held.sent = 0;
        held.restored = true;
        if shims && disk && held.alive {
            held.reachable = answers;
            self.counts.unreachable += u64::from(!answers);
            return;
        }
        if held.alive {
            held.alive = false;
            let (task, spec) = (held.re.task, Arc::clone(&held.spec));
            self.died(task, attempt, &spec);
        }
        let swept = self.rng.chance(50);
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        let told = held.ended && !held.outbox.is_empty();
        if disk && told {
            return;
        }
        if disk && swept && held.confirmed && !held.ended {
            return self.report_death(index, attempt);
        }
        self.daemons[index].held.remove(&attempt);
    }
}
