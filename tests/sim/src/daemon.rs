//! A simulated daemon: an honest and simple speaker of the protocol. What it decides by time and by what it was told is the daemon's
//! own code (`baton_daemon_core`); when something happens to it, and to its machine, is the world's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_core::Looked;
use baton_core::id::{AttemptId, DaemonId, InputId, InstanceId, TenantId, TenantScope, TokenId};
use baton_core::input::{ActiveAttempt, ActiveState, Heartbeat, Hello, Input};
use baton_core::record::Decision;
use baton_core::time::Mint;
use baton_daemon_core::heartbeats::Heartbeats;
use uuid::Uuid;

use crate::ghosts::Past;
use crate::held::{Held, Kill, moment};
use crate::links::Up;
use crate::world::{Event, World};

/// Before a Welcome says how often.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Two are out before a stream is given up, and a short lease may bring others forward.
const MOST_UNANSWERED: usize = 8;

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
    /// Dials in vain since its last stream.
    pub(crate) failures: u32,
    /// Nobody answers before this.
    pub(crate) cut_off_until: u64,
    pub(crate) beats: Heartbeats,
    /// How much output of its attempts the relay has, as its last Welcome says.
    pub(crate) offsets: Vec<(AttemptId, u64)>,
    /// The judge's own: when each heartbeat of this stream was sent.
    pub(crate) beats_sent: BTreeMap<u64, u64>,
    pub(crate) hold: Option<Hold>,
    pub(crate) draining: bool,
    /// Its disk is full until then, and it may be of those that say so in heartbeats.
    pub(crate) full_until: u64,
    pub(crate) says_full: bool,
    pub(crate) held: BTreeMap<AttemptId, Held>,
    /// It does nothing before this.
    pub(crate) stopped_until: u64,
    /// Its whole machine does nothing before this, or did so.
    pub(crate) asleep_until: u64,
    /// Since when it did.
    pub(crate) asleep_since: u64,
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
            failures: 0,
            cut_off_until: 0,
            beats: Heartbeats::new(HEARTBEAT, moment(0)),
            offsets: Vec::new(),
            beats_sent: BTreeMap::new(),
            hold: None,
            draining: false,
            full_until: 0,
            says_full: false,
            held: BTreeMap::new(),
            stopped_until: 0,
            asleep_until: 0,
            asleep_since: 0,
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
        if daemon.life != life || daemon.conn.is_some() {
            return;
        }
        if daemon.down {
            self.revive(index);
        }
        if self.relay.core.is_none() || self.is_cut_off(index) {
            return self.dialed_in_vain(index);
        }
        let conn = self.open_conn(index);
        let hello = self.hello(index);
        let daemon = &mut self.daemons[index];
        daemon.conn = Some(conn);
        daemon.welcomed = false;
        daemon.hello_at = self.now;
        daemon.beats_sent.clear();
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
        let active = daemon.held.values().map(|held| {
            let state = match (held.ended, held.reachable) {
                (true, _) if !held.is_told() => ActiveState::Finished,
                (_, false) => ActiveState::Unreachable,
                (_, true) => ActiveState::Running,
            };
            ActiveAttempt {
                re: held.re,
                proof: Some(held.token.clone()),
                state,
                control_seq: held.outbox.last_control_seq(),
                output_end: held.outbox.end_offset(),
                looked: Looked::default(),
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
        let now = self.now;
        if self.daemons[index].beats.is_dead(moment(now)) {
            self.note(|| format!("d{index} hears nothing on {conn} and hangs up"));
            return self.hang_up(index);
        }
        if self.daemons[index].beats.due_at() <= moment(now) {
            self.send_beat(index, conn);
        }
        let next = self.daemons[index].beats.due_at().as_millis().max(now + 1);
        self.at(
            next,
            Event::Beat {
                daemon: index,
                conn,
            },
        );
    }

    fn send_beat(&mut self, index: usize, conn: usize) {
        let (session, now) = (self.conns[conn].session, self.now);
        let daemon = &mut self.daemons[index];
        let seq = daemon.beats.sent(moment(now));
        daemon.beats_sent.insert(seq, now);
        let unanswered = daemon.beats_sent.len();
        assert!(
            unanswered <= MOST_UNANSWERED,
            "L4: d{index} speaks to nobody for {unanswered} heartbeats"
        );
        let running = daemon.held.values().filter(|held| {
            let leased = !held.ended || (held.is_within_lease(now) && !held.is_told());
            let over = matches!(held.killing, Some(Kill::GivenUp | Kill::Limit));
            leased && held.reachable && !over
        });
        let heartbeat = Heartbeat {
            seq,
            heard_seq: Some(daemon.beats.heard_seq()),
            renewals: running
                .map(|held| (held.re.attempt, held.token.clone()))
                .collect(),
            free_slots: 0,
            draining: daemon.draining,
            unfit: daemon.says_full && daemon.full_until > now,
            load: None,
        };
        let leases = daemon
            .held
            .values()
            .filter(|held| held.alive)
            .filter_map(|held| held.lease);
        if let Some(ttl) = leases.map(|lease| lease.ttl()).min() {
            daemon.beats.keep_alive(ttl, moment(now));
        }
        self.send_up(conn, Up::Input(Input::Heartbeat { session, heartbeat }));
    }

    /// Its process ends by force. What it had in memory is gone; its machine may go with it.
    pub(crate) fn crash_daemon(&mut self, index: usize, reboot: bool) {
        let asleep = self.daemons[index].asleep_until > self.now;
        if self.daemons[index].down || (asleep && !reboot) {
            return;
        }
        self.note(|| format!("d{index} {}", if reboot { "reboots" } else { "crashes" }));
        if let Some(conn) = self.daemons[index].conn {
            let silent = reboot && self.rng.chance(50);
            self.daemon_dies(conn, silent);
        }
        self.daemons[index].down = true;
        let attempts: Vec<AttemptId> = self.daemons[index].held.keys().copied().collect();
        for attempt in attempts {
            self.crash_attempt(index, attempt, reboot);
        }
        let instance = InstanceId(self.mint.id());
        let daemon = &mut self.daemons[index];
        daemon.conn = None;
        daemon.welcomed = false;
        daemon.life += 1;
        daemon.failures = 0;
        daemon.instance = instance;
        daemon.boot += u64::from(reboot);
        daemon.stopped_until = 0;
        if reboot {
            // The machine that slept is gone with all that ran on it. A daemon that ends leaves its shims on a machine that
            // may have woken this instant.
            daemon.asleep_until = 0;
        }
        let life = daemon.life;
        let long = self.rng.chance(20);
        let away = self.rng.between(100, if long { 90_000 } else { 8_000 });
        self.at(
            self.now + away,
            Event::Connect {
                daemon: index,
                life,
            },
        );
    }

    /// What becomes of one attempt when its daemon's process ends.
    fn crash_attempt(&mut self, index: usize, attempt: AttemptId, reboot: bool) {
        let (shims, disk) = (self.options.shims && !reboot, self.options.disk_outbox);
        let (answers, limit) = (self.rng.chance(80), self.options.outbox_limit);
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        held.restored = true;
        if shims && disk && held.alive {
            held.reachable = answers;
            self.counts.unreachable += u64::from(!answers);
            return held.restore(limit);
        }
        self.bury(index, attempt);
        let swept = self.rng.chance(50);
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        if disk && held.disk.is_begun() {
            if reboot {
                held.lose_power(limit, &mut self.rng);
            } else {
                held.restore(limit);
            }
            if held.ended && !held.is_told() {
                return;
            }
            if swept && held.confirmed && !held.ended {
                return self.report_death(index, attempt);
            }
        }
        self.daemons[index].held.remove(&attempt);
    }

    /// The next daemon is there, and reads on where the one before stopped.
    fn revive(&mut self, index: usize) {
        self.daemons[index].down = false;
        self.fold_all(index);
    }
}
