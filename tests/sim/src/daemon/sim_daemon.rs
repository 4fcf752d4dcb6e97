//! A simulated daemon: a correct and simple implementation of the protocol. Its decisions by
//! time and state are the daemon's own code (`baton_daemon_core`); faults of the daemon and its
//! machine come from the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_core::TaskLookup;
use baton_core::ids::{AttemptId, DaemonId, InputId, InstanceId, TenantId, TenantScope, TokenId};
use baton_core::io::session_input::SessionInput;
use baton_core::io::session_input::{
    ActiveAttempt, ActiveAttemptState, DaemonHello, HeartbeatMessage,
};
use baton_core::record::InputDecision;
use baton_core::time::IdSource;
use baton_daemon_core::heartbeat_tracker::HeartbeatTracker;
use uuid::Uuid;

use crate::daemon::sim_attempt::{KillReason, SimAttempt, monotonic_time};
use crate::faults::replayed_frames::SentHistory;
use crate::simulation::{ScheduledEvent, Simulation};
use crate::stream::UpstreamItem;

/// Used until a Welcome sets the interval.
const INITIAL_HEARTBEAT: Duration = Duration::from_secs(5);
/// Two are unanswered before a stream is given up, and a short lease may cause additional ones.
const MAX_UNANSWERED_HEARTBEATS: usize = 8;

#[derive(Debug)]
pub(crate) struct SimDaemon {
    pub(crate) id: DaemonId,
    scope: TenantScope,
    slots: u32,
    boot_number: u64,
    instance: InstanceId,
    /// Counts runs and reconnects, so that events scheduled for an earlier one are ignored.
    pub(crate) generation: u64,
    pub(crate) is_down: bool,
    pub(crate) stream: Option<usize>,
    pub(crate) welcomed: bool,
    pub(crate) hello_sent_at: u64,
    /// Failed connection attempts since its last stream.
    pub(crate) failed_dials: u32,
    /// The relay is unreachable until then.
    pub(crate) cut_off_until: u64,
    pub(crate) heartbeats: HeartbeatTracker,
    /// Stored output of its attempts, as the last Welcome reported.
    pub(crate) relay_output_offsets: Vec<(AttemptId, u64)>,
    /// For checks: when each heartbeat of this stream was sent.
    pub(crate) heartbeats_sent_at: BTreeMap<u64, u64>,
    pub(crate) planned_restart: Option<PlannedRestart>,
    pub(crate) draining: bool,
    /// Its disk is full until then. Only some daemons report it in heartbeats.
    pub(crate) disk_full_until: u64,
    pub(crate) reports_full_disk: bool,
    pub(crate) attempts: BTreeMap<AttemptId, SimAttempt>,
    /// It is stopped until then.
    pub(crate) stopped_until: u64,
    /// Its whole machine is suspended until then, or was.
    pub(crate) asleep_until: u64,
    /// Since when.
    pub(crate) asleep_since: u64,
    /// Frames and output that may arrive again much later.
    pub(crate) sent_history: SentHistory,
    pub(crate) replayed_frames: BTreeSet<(AttemptId, u64)>,
    /// The answer that it got for each input.
    pub(crate) input_answers: BTreeMap<InputId, InputDecision>,
}

/// A planned restart: requested at a time, begun when the extension is granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedRestart {
    pub(crate) request: u64,
    pub(crate) requested_at: u64,
}

impl Simulation {
    pub(crate) fn add_daemon(&mut self, index: usize) {
        let tenant = TenantId::new("acme").expect("a good name");
        let own = self.rng.chance(25);
        self.daemons.push(SimDaemon {
            id: DaemonId(Uuid::from_u128(1_000 + index as u128)),
            scope: if own {
                TenantScope::One(tenant)
            } else {
                TenantScope::All
            },
            slots: u32::try_from(self.rng.between(1, 4)).unwrap_or(1),
            boot_number: 1,
            instance: InstanceId(self.id_source.new_id()),
            generation: 0,
            is_down: false,
            stream: None,
            welcomed: false,
            hello_sent_at: 0,
            failed_dials: 0,
            cut_off_until: 0,
            heartbeats: HeartbeatTracker::new(INITIAL_HEARTBEAT, monotonic_time(0)),
            relay_output_offsets: Vec::new(),
            heartbeats_sent_at: BTreeMap::new(),
            planned_restart: None,
            draining: false,
            disk_full_until: 0,
            reports_full_disk: false,
            attempts: BTreeMap::new(),
            stopped_until: 0,
            asleep_until: 0,
            asleep_since: 0,
            sent_history: SentHistory::default(),
            replayed_frames: BTreeSet::new(),
            input_answers: BTreeMap::new(),
        });
        let at = self.rng.below(2_000);
        self.schedule(
            at,
            ScheduledEvent::DaemonConnect {
                daemon: index,
                life: 0,
            },
        );
    }

    pub(crate) fn connect_daemon(&mut self, index: usize, life: u64) {
        let daemon = &self.daemons[index];
        if daemon.generation != life || daemon.stream.is_some() {
            return;
        }
        if daemon.is_down {
            self.restart_daemon(index);
        }
        if self.relay.core.is_none() || self.is_cut_off(index) {
            return self.handle_failed_dial(index);
        }
        let conn = self.open_stream(index);
        let hello = self.build_hello(index);
        let daemon = &mut self.daemons[index];
        daemon.stream = Some(conn);
        daemon.welcomed = false;
        daemon.hello_sent_at = self.now;
        daemon.heartbeats_sent_at.clear();
        daemon.planned_restart = None;
        if self.options.stale_hellos && !self.healing && self.rng.chance(30) {
            self.freeze_stream(conn);
        }
        self.send_to_relay(conn, UpstreamItem::Hello(Box::new(hello)));
        self.schedule(
            self.now + 15_000,
            ScheduledEvent::WelcomeTimeout {
                daemon: index,
                conn,
            },
        );
    }

    pub(crate) fn give_up_on_welcome(&mut self, index: usize, conn: usize) {
        if self.daemons[index].stream == Some(conn) && !self.daemons[index].welcomed {
            self.drop_stream(index);
        }
    }

    fn build_hello(&mut self, index: usize) -> DaemonHello {
        let daemon = &mut self.daemons[index];
        let active = daemon.attempts.values().map(|held| {
            let state = match (held.ended, held.reachable) {
                (true, _) if !held.is_fully_acked() => ActiveAttemptState::Finished,
                (_, false) => ActiveAttemptState::Unreachable,
                (_, true) => ActiveAttemptState::Running,
            };
            ActiveAttempt {
                frame_ref: held.re,
                proof: Some(held.token.clone()),
                state,
                control_seq: held.outbox.last_control_seq(),
                output_end: held.outbox.end_offset(),
                lookup: TaskLookup::default(),
            }
        });
        DaemonHello {
            active: active.collect(),
            daemon: daemon.id,
            scope: daemon.scope.clone(),
            token: TokenId(Uuid::from_u128(9)),
            instance: daemon.instance,
            boot_id: format!("boot-{}", daemon.boot_number).into(),
            name: format!("d{index}").into(),
            version: "1".into(),
            platform: baton_core::record::DaemonPlatform::default(),
            slots: daemon.slots,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: vec!["claude".into()],
            workspaces: Vec::new(),
            draining: daemon.draining,
        }
    }

    pub(crate) fn drop_stream(&mut self, index: usize) {
        if let Some(conn) = self.daemons[index].stream {
            self.close_from_daemon(conn);
            self.handle_lost_stream(index);
        }
    }

    pub(crate) fn heartbeat_due(&mut self, index: usize, conn: usize) {
        if self.daemons[index].stream != Some(conn) || self.daemons[index].is_down {
            return;
        }
        let now = self.now;
        if self.daemons[index].heartbeats.is_dead(monotonic_time(now)) {
            self.add_trace(|| format!("d{index} hears nothing on {conn} and hangs up"));
            return self.drop_stream(index);
        }
        if self.daemons[index].heartbeats.next_action_at() <= monotonic_time(now) {
            self.send_heartbeat(index, conn);
        }
        let next = self.daemons[index]
            .heartbeats
            .next_action_at()
            .as_millis()
            .max(now + 1);
        self.schedule(
            next,
            ScheduledEvent::DaemonHeartbeat {
                daemon: index,
                conn,
            },
        );
    }

    fn send_heartbeat(&mut self, index: usize, conn: usize) {
        let (session, now) = (self.streams[conn].session, self.now);
        let daemon = &mut self.daemons[index];
        let seq = daemon.heartbeats.record_sent(monotonic_time(now));
        daemon.heartbeats_sent_at.insert(seq, now);
        let unanswered = daemon.heartbeats_sent_at.len();
        assert!(
            unanswered <= MAX_UNANSWERED_HEARTBEATS,
            "L4: d{index} speaks to nobody for {unanswered} heartbeats"
        );
        let running = daemon.attempts.values().filter(|held| {
            let leased = !held.ended || (held.is_within_lease(now) && !held.is_fully_acked());
            let over = matches!(
                held.kill_reason,
                Some(KillReason::Abandoned | KillReason::LeaseExpired)
            );
            leased && held.reachable && !over
        });
        let heartbeat = HeartbeatMessage {
            seq,
            received_ack_seq: Some(daemon.heartbeats.last_answered_seq()),
            renewals: running
                .map(|held| (held.re.attempt, held.token.clone()))
                .collect(),
            free_slots: 0,
            draining: daemon.draining,
            unfit: daemon.reports_full_disk && daemon.disk_full_until > now,
            load: None,
        };
        let leases = daemon
            .attempts
            .values()
            .filter(|held| held.processes_alive)
            .filter_map(|held| held.lease);
        if let Some(ttl) = leases.map(|lease| lease.ttl()).min() {
            daemon
                .heartbeats
                .shorten_for_lease(ttl, monotonic_time(now));
        }
        self.send_to_relay(
            conn,
            UpstreamItem::Input(SessionInput::Heartbeat { session, heartbeat }),
        );
    }

    /// Its process is killed and loses its memory; its machine may reboot with it.
    pub(crate) fn crash_daemon(&mut self, index: usize, reboot: bool) {
        let asleep = self.daemons[index].asleep_until > self.now;
        if self.daemons[index].is_down || (asleep && !reboot) {
            return;
        }
        self.add_trace(|| format!("d{index} {}", if reboot { "reboots" } else { "crashes" }));
        if let Some(conn) = self.daemons[index].stream {
            let silent = reboot && self.rng.chance(50);
            self.break_from_daemon(conn, silent);
        }
        self.daemons[index].is_down = true;
        let attempts: Vec<AttemptId> = self.daemons[index].attempts.keys().copied().collect();
        for attempt in attempts {
            self.crash_attempt(index, attempt, reboot);
        }
        let instance = InstanceId(self.id_source.new_id());
        let daemon = &mut self.daemons[index];
        daemon.stream = None;
        daemon.welcomed = false;
        daemon.generation += 1;
        daemon.failed_dials = 0;
        daemon.instance = instance;
        daemon.boot_number += u64::from(reboot);
        daemon.stopped_until = 0;
        if reboot {
            // A reboot ends the suspended machine with everything on it. Otherwise the daemon's
            // shims stay on a machine that may have resumed just now.
            daemon.asleep_until = 0;
        }
        let life = daemon.generation;
        let long = self.rng.chance(20);
        let away = self.rng.between(100, if long { 90_000 } else { 8_000 });
        self.schedule(
            self.now + away,
            ScheduledEvent::DaemonConnect {
                daemon: index,
                life,
            },
        );
    }

    /// The effect on one attempt when its daemon's process ends.
    fn crash_attempt(&mut self, index: usize, attempt: AttemptId, reboot: bool) {
        let (shims, disk) = (self.options.shims && !reboot, self.options.disk_outbox);
        let (answers, limit) = (self.rng.chance(80), self.options.outbox_limit);
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        held.restored = true;
        if shims && disk && held.processes_alive {
            held.reachable = answers;
            self.counts.unreachable += u64::from(!answers);
            return held.restore_from_disk(limit);
        }
        self.remove_processes(index, attempt);
        let swept = self.rng.chance(50);
        let Some(held) = self.daemons[index].attempts.get_mut(&attempt) else {
            return;
        };
        if disk && held.disk.has_entries() {
            if reboot {
                held.lose_power(limit, &mut self.rng);
            } else {
                held.restore_from_disk(limit);
            }
            if held.ended && !held.is_fully_acked() {
                return;
            }
            if swept && held.confirmed && !held.ended {
                return self.report_termination(index, attempt);
            }
        }
        self.daemons[index].attempts.remove(&attempt);
    }

    /// The next daemon has started, and reads the transcripts from where the previous one
    /// stopped.
    fn restart_daemon(&mut self, index: usize) {
        self.daemons[index].is_down = false;
        self.forward_all_transcripts(index);
    }
}
