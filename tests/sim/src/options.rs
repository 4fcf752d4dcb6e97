//! The options of one seed. Each seed enables its own subset of faults, so that common faults
//! do not hide rare ones.

use baton_core::config::Config;
use baton_core::ids::{Incarnation, RelayEpoch};
use uuid::Uuid;

use crate::random::SeededRng;

pub(crate) const MAX_LEASE_TTL_MS: u64 = 40_000;
pub(crate) const MAX_LEASE_EXTENSION_MS: u64 = 60_000;
/// A task ends after this many dispatches.
pub(crate) const MAX_DISPATCHES: u32 = 6;
/// How long a late result of a lost task may be adopted.
pub(crate) const ADOPT_LATE_MS: u64 = 120_000;

/// Switches and sizes of a seed. A switch is on in a percentage of the seeds.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    pub daemons: usize,
    pub tasks: usize,
    /// Duration of faults and new work, in virtual milliseconds.
    pub storm_ms: u64,
    /// No fault at all, or only pauses of the relay that are shorter than a lease: then no
    /// attempt may be lost.
    pub calm: bool,
    pub short_stalls: bool,
    pub cuts: bool,
    /// Streams that end without either side noticing.
    pub half_open: bool,
    /// Frames in flight when a stream ended may still arrive, much later.
    pub late_frames: bool,
    pub freezes: bool,
    /// A stream's Hello may arrive after that of a newer stream.
    pub stale_hellos: bool,
    pub relay_crashes: bool,
    /// The relay restarts within one or two seconds, while all processes still run.
    pub quick_boots: bool,
    /// Daemons are offline long enough for leases to expire.
    pub long_outages: bool,
    pub relay_stalls: bool,
    /// The relay's data is replaced by an older copy.
    pub imports: bool,
    /// Daemons are stopped for a while (SIGSTOP, a busy machine); their shims are not.
    pub daemon_stalls: bool,
    /// Whole machines are suspended for a while.
    pub suspends: bool,
    /// Old frames arrive again, on the current stream.
    pub replayed_frames: bool,
    /// Links deliver frames twice, and some out of order.
    pub duplicate_frames: bool,
    /// One direction of a stream is dead and the other is not.
    pub one_way_cuts: bool,
    pub slow_disk: bool,
    /// The disk fails a commit, and the relay's process exits.
    pub disk_errors: bool,
    pub wall_jumps: bool,
    pub daemon_crashes: bool,
    pub reboots: bool,
    /// Processes outlive their daemon.
    pub shims: bool,
    /// A shim is killed, and its processes with it.
    pub shim_kills: bool,
    /// Frames outlive their daemon.
    pub disk_outbox: bool,
    /// Workers' disks are slow.
    pub slow_outbox: bool,
    pub lease_extensions: bool,
    pub hangs: bool,
    /// Children that print without end.
    pub floods: bool,
    pub failures: bool,
    /// Daemons that reject most dispatches.
    pub refusals: bool,
    pub ends_without_receipt: bool,
    pub cancels: bool,
    pub retries: bool,
    pub pauses: bool,
    /// Operators release, fail and complete tasks by force, and repeat that.
    pub forced_operations: bool,
    pub drains: bool,
    /// Workers' disks are full for a while.
    pub full_disks: bool,
    /// Finished tasks and absent daemons are removed during the run.
    pub retention: bool,
    pub inputs: bool,
    /// People answer inputs that are closed or already answered.
    pub late_answers: bool,
    pub conversations: bool,
    /// Tasks require files, and workers do not always leave them.
    pub contracts: bool,
    /// Agents without a daemon have leases themselves.
    pub lease_holding_agents: bool,
    /// They are suspended, die, renew late, lose answers and use tokens of others.
    pub careless_agents: bool,
    /// Workers and people report progress, write checkpoints, block and resume.
    pub goals: bool,
    pub grace_ms: u64,
    pub delay_ms: u64,
    pub max_open: usize,
    /// Unacknowledged output that a daemon buffers per attempt.
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
