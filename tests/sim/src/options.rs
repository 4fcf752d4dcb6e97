//! What one seed may do: each enables its own subset of faults, so that rare ones are not drowned by common ones.

use baton_core::config::Config;
use baton_core::ids::{Incarnation, RelayEpoch};
use uuid::Uuid;

use crate::random::SeededRng;

pub(crate) const MAX_LEASE_TTL_MS: u64 = 40_000;
pub(crate) const MAX_LEASE_EXTENSION_MS: u64 = 60_000;
/// After so many offers a task ends.
pub(crate) const MAX_DISPATCHES: u32 = 6;
/// How long a lost task may still be completed.
pub(crate) const ADOPT_LATE_MS: u64 = 120_000;

/// A swarm of switches and sizes; percentages are of the chances to do it.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    pub daemons: usize,
    pub tasks: usize,
    /// How long faults and new work go on, in virtual milliseconds.
    pub storm_ms: u64,
    /// No fault at all, or only pauses of the relay that a lease outlasts: then nothing may be lost either.
    pub calm: bool,
    pub short_stalls: bool,
    pub cuts: bool,
    /// Streams that end without either side being told.
    pub half_open: bool,
    /// What was on its way when a stream ended may still arrive, much later.
    pub late_frames: bool,
    pub freezes: bool,
    /// A stream's Hello may come after that of a newer stream.
    pub stale_hellos: bool,
    pub relay_crashes: bool,
    /// The relay is back within a second or two, while everything of before still runs.
    pub quick_boots: bool,
    /// Daemons stay away long enough for leases to run out.
    pub long_outages: bool,
    pub relay_stalls: bool,
    /// The relay's data are replaced by an older copy of them.
    pub imports: bool,
    /// Daemons are stopped for a while (SIGSTOP, a busy machine); their shims are not.
    pub daemon_stalls: bool,
    /// Whole machines are asleep for a while.
    pub suspends: bool,
    /// Frames that were sent long ago come again, on the stream of today.
    pub replayed_frames: bool,
    /// Links give frames twice, and some before those that they follow.
    pub duplicate_frames: bool,
    /// One direction of a stream is dead and the other is not.
    pub one_way_cuts: bool,
    pub slow_disk: bool,
    /// The disk refuses a commit, and the relay's process ends by that.
    pub disk_errors: bool,
    pub wall_jumps: bool,
    pub daemon_crashes: bool,
    pub reboots: bool,
    /// Processes outlive their daemon.
    pub shims: bool,
    /// A shim dies by force, and its processes with it.
    pub shim_kills: bool,
    /// Frames outlive their daemon.
    pub disk_outbox: bool,
    /// Workers' disks take their time.
    pub slow_outbox: bool,
    pub lease_extensions: bool,
    pub hangs: bool,
    /// Children that print without end.
    pub floods: bool,
    pub failures: bool,
    /// Daemons that want nothing most of the time.
    pub refusals: bool,
    pub ends_without_receipt: bool,
    pub cancels: bool,
    pub retries: bool,
    pub pauses: bool,
    /// Operators take attempts away, fail and complete tasks, and insist.
    pub forced_operations: bool,
    pub drains: bool,
    /// Workers' disks fill up for a while.
    pub full_disks: bool,
    /// Finished tasks and absent daemons are removed while things go on.
    pub retention: bool,
    pub inputs: bool,
    /// People answer what is closed, and what somebody else has answered.
    pub late_answers: bool,
    pub conversations: bool,
    /// Tasks ask for files, and workers do not always leave them.
    pub contracts: bool,
    /// Agents without a daemon hold leases themselves.
    pub lease_holding_agents: bool,
    /// They sleep, die, renew late, lose answers and use tokens that are not theirs.
    pub careless_agents: bool,
    /// Workers and people tell of progress, write milestones, block and send on.
    pub goals: bool,
    pub grace_ms: u64,
    pub delay_ms: u64,
    pub max_open: usize,
    /// Unacknowledged output that a daemon keeps of one attempt.
    pub outbox_limit: usize,
    pub short_ttl: bool,
}

impl SimulationOptions {
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed.wrapping_mul(0x1_0001) ^ 0xface);
        let calm = rng.chance(8);
        let short_stalls = calm && rng.chance(50);
        let mut on = |percent| !calm && rng.chance(percent);
        Self {
            calm,
            short_stalls,
            cuts: on(75),
            half_open: on(40),
            late_frames: on(60),
            freezes: on(50),
            stale_hellos: on(30),
            relay_crashes: on(50),
            quick_boots: on(60),
            long_outages: on(50),
            relay_stalls: on(35),
            imports: on(20),
            daemon_stalls: on(30),
            suspends: on(25),
            replayed_frames: on(40),
            duplicate_frames: on(30),
            one_way_cuts: on(30),
            slow_disk: on(30),
            disk_errors: on(20),
            wall_jumps: on(25),
            daemon_crashes: on(45),
            reboots: on(35),
            shims: on(60),
            shim_kills: on(30),
            disk_outbox: on(60),
            slow_outbox: on(40),
            lease_extensions: on(30),
            hangs: on(40),
            floods: on(20),
            failures: on(60),
            refusals: on(15),
            ends_without_receipt: on(40),
            cancels: on(60),
            retries: on(50),
            pauses: on(25),
            drains: on(35),
            full_disks: on(25),
            retention: on(35),
            inputs: on(40),
            late_answers: on(60),
            conversations: on(60),
            short_ttl: on(50),
            contracts: on(40),
            forced_operations: on(40),
            lease_holding_agents: on(45),
            careless_agents: on(60),
            goals: on(55),
            daemons: usize::try_from(rng.between(1, 4)).unwrap_or(1),
            tasks: usize::try_from(rng.between(3, 30)).unwrap_or(3),
            storm_ms: rng.between(60_000, 400_000),
            grace_ms: rng.pick(&[1, 200, 5_000]).unwrap_or(1),
            delay_ms: rng.pick(&[2, 20, 300]).unwrap_or(2),
            outbox_limit: rng.pick(&[1_500, 6_000, 100_000]).unwrap_or(1_500),
            max_open: usize::try_from(rng.pick(&[6, 100, 100]).unwrap_or(100)).unwrap_or(100),
        }
    }

    pub fn core_config(&self, incarnation: u128, epoch: u64) -> Config {
        let incarnation = Incarnation(Uuid::from_u128(incarnation));
        let mut config = Config::new(incarnation, RelayEpoch(epoch));
        config.grace_ms = self.grace_ms;
        config.max_lease_ms = MAX_LEASE_TTL_MS;
        config.max_extension_ms = MAX_LEASE_EXTENSION_MS;
        config.sick_ms = 15_000;
        config.unfit_max_ms = 15_000;
        config.max_dispatches = MAX_DISPATCHES;
        config.max_open_tasks = self.max_open;
        config.adopt_late_ms = ADOPT_LATE_MS;
        config
    }
}
