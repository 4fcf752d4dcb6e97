//! Faults during a storm, and their end.

use baton_core::io::session_input::{LeaseExtension, SessionInput};

use crate::daemon::sim_daemon::PlannedRestart;
use crate::simulation::{ScheduledEvent, Simulation};
use crate::stream::UpstreamItem;

/// Two heartbeats less than a lease of fifteen seconds.
const SHORT_STALL_MS: u64 = 5_000;

impl Simulation {
    pub(crate) fn inject_fault(&mut self) {
        if self.healing {
            return;
        }
        let next = self.now + self.rng.between(200, 12_000);
        self.schedule(next, ScheduledEvent::FaultInjection);
        let index = self.rng.random_index(self.daemons.len());
        if self.options.short_stalls {
            // Consecutive stalls would add up to one long stall.
            let heard = self.now > self.relay.stalled_until + 2 * SHORT_STALL_MS;
            return if heard {
                self.stall_relay(SHORT_STALL_MS)
            };
        }
        if self.options.imports {
            self.relay.store.back_up();
        }
        match self.rng.below(158) {
            0..=18 if self.options.cuts => self.cut_daemon(index),
            19..=29 if self.options.freezes => self.freeze_daemon(index),
            30..=39 if self.options.relay_crashes => self.crash_relay(),
            40..=49 if self.options.relay_stalls => {
                let longest = self.rng.pick(&[8_000, 25_000, 90_000]).unwrap_or(8_000);
                self.stall_relay(longest);
            }
            50..=64 if self.options.daemon_crashes => {
                self.counts.daemon_crashes += 1;
                self.crash_daemon(index, false);
            }
            65..=74 if self.options.reboots => {
                self.counts.reboots += 1;
                self.crash_daemon(index, true);
            }
            75..=82
                if self.options.lease_extensions
                    && self.options.shims
                    && self.options.disk_outbox =>
            {
                self.request_lease_extension(index)
            }
            83..=87 if self.options.wall_jumps => self.jump_wall_clock(),
            88..=90 if self.options.drains => self.daemons[index].draining = self.rng.chance(50),
            101..=108 if self.options.daemon_stalls && self.options.shims => {
                self.stop_daemon(index)
            }
            109..=115 if self.options.shim_kills && self.options.shims => self.kill_shim(index),
            116..=119 if self.options.imports => self.import_old_data(),
            91..=100 | 128..=137 if self.options.replayed_frames => self.replay_something(index),
            120..=127 if self.options.one_way_cuts => self.cut_daemon_one_way(index),
            152..=157 if self.options.suspends && self.options.shims => self.suspend_machine(index),
            138..=141 if self.options.full_disks => self.fill_disk(index),
            _ => {}
        }
    }

    fn fill_disk(&mut self, index: usize) {
        self.counts.full_disks += 1;
        let lasts = self.rng.between(1_000, 120_000);
        let daemon = &mut self.daemons[index];
        daemon.disk_full_until = self.now + lasts;
        daemon.reports_full_disk = self.rng.chance(50);
    }

    fn cut_daemon(&mut self, index: usize) {
        if let Some(conn) = self.daemons[index].stream {
            self.cut_stream(conn);
        }
    }

    fn freeze_daemon(&mut self, index: usize) {
        if let Some(conn) = self.daemons[index].stream {
            self.freeze_stream(conn);
        }
    }

    fn cut_daemon_one_way(&mut self, index: usize) {
        if let Some(conn) = self.daemons[index].stream {
            self.cut_stream_one_way(conn);
        }
    }

    fn stall_relay(&mut self, longest: u64) {
        self.counts.stalls += 1;
        let away = self.rng.between(500, longest);
        self.add_trace(|| format!("the loop is away for {away} ms"));
        self.relay.stalled_until = self.now + away;
    }

    fn jump_wall_clock(&mut self) {
        let by = i64::try_from(self.rng.below(400_000_000)).unwrap_or(0);
        self.wall_clock_shift_ms += if self.rng.chance(50) { by } else { -by };
    }

    /// A planned restart: requests a lease extension first.
    fn request_lease_extension(&mut self, index: usize) {
        let daemon = &mut self.daemons[index];
        let (Some(conn), true) = (daemon.stream, daemon.welcomed) else {
            return;
        };
        self.counts.holds += 1;
        let (request, at) = (self.now, self.now);
        daemon.planned_restart = Some(PlannedRestart {
            request,
            requested_at: at,
        });
        let running = daemon
            .attempts
            .values()
            .filter(|held| held.processes_alive && !held.ended && held.reachable);
        let attempts = running
            .map(|held| (held.re.attempt, held.token.clone()))
            .collect();
        let session = self.streams[conn].session;
        let granted_ms = self.rng.between(10_000, 90_000);
        self.send_to_relay(
            conn,
            UpstreamItem::Input(SessionInput::ExtendLeases(LeaseExtension {
                session,
                request,
                attempts,
                granted_ms,
            })),
        );
    }

    /// Ends the relay's stall, detects dead streams, and reconnects all daemons soon.
    pub(crate) fn reconnect_all_daemons(&mut self) {
        self.relay.stalled_until = self.relay.stalled_until.min(self.now + 1_000);
        for index in 0..self.daemons.len() {
            let life = self.daemons[index].generation;
            if self.daemons[index].stream.is_none() {
                self.schedule(
                    self.now + 1_000,
                    ScheduledEvent::DaemonConnect {
                        daemon: index,
                        life,
                    },
                );
            }
        }
    }
}
