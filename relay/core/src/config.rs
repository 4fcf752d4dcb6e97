//! The relay's own settings that decisions depend on. Fixed for one run.

use crate::ids::{Incarnation, RelayEpoch};

#[derive(Clone, Debug)]
pub struct Config {
    pub incarnation: Incarnation,
    pub epoch: RelayEpoch,
    /// Longest pause between heartbeats; a short ttl shortens it (`heartbeat_for`).
    pub heartbeat_ms: u64,
    pub accept_ms: u64,
    /// Least time added to a lease before it counts as expired; long leases add a thousandth of their ttl.
    pub grace_ms: u64,
    /// Added to profile deadlines, so that a daemon that runs the same timers reports first.
    pub slack_ms: u64,
    /// Used where a submission sets none.
    pub total_ms: u64,
    pub queue_ms: u64,
    /// Time a daemon gets between TERM and KILL where the profile names none.
    pub cleanup_term_ms: u64,
    /// Largest lease ttl that a task may ask for.
    pub max_lease_ms: u64,
    /// Longest hold that a daemon may ask for before a restart on purpose.
    pub max_extension_ms: u64,
    /// Open (not terminal) tasks, over all tenants and for one.
    pub max_open_tasks: usize,
    /// Bytes of prompts, arguments and records that open tasks may keep in memory.
    pub max_open_bytes: u64,
    /// Of these, how many are one tenant's at most.
    pub max_open_bytes_per_tenant: u64,
    pub max_open_tasks_per_tenant: usize,
    /// Open tool calls and open inputs of one attempt.
    pub max_tools: usize,
    pub max_inputs: usize,
    /// After this many offers a task ends.
    pub max_dispatches: u32,
    /// Different daemons lost under one task before it parks as poison.
    pub poison_losses: usize,
    /// Failures in a row before a daemon is set aside, and for how long.
    pub sick_failures: u32,
    pub sick_ms: u64,
    /// Daemons that one credential may have on record; those away for long make room for new ones.
    pub max_daemons_per_token: usize,
    /// How long a daemon is set aside that refuses work because of its machine: the first time, doubled each time that it
    /// refuses again, at most.
    pub unfit_ms: u64,
    pub unfit_max_ms: u64,
    /// How long a daemon that rejected a task is passed over for it.
    pub reject_backoff_ms: u64,
    /// A loop that was away longer than this credits the leases of connected sessions.
    pub stall_ms: u64,
    /// Consumed budgets of hard deadlines are written at least this often.
    pub budget_write_ms: u64,
    /// After an accepted loss or an import: how long tasks found at boot are not placed, for they may have been leased
    /// later than the relay knows.
    pub inherited_suspension_ms: u64,
    /// How long after `lost` a result of the last attempt may still be adopted.
    pub adopt_late_ms: u64,
}

impl Config {
    /// The defaults that README documents.
    pub fn new(incarnation: Incarnation, epoch: RelayEpoch) -> Self {
        Self {
            incarnation,
            epoch,
            heartbeat_ms: 5_000,
            accept_ms: 10_000,
            grace_ms: 5_000,
            slack_ms: 2_000,
            total_ms: 2 * 60 * 60 * 1_000,
            queue_ms: 24 * 60 * 60 * 1_000,
            cleanup_term_ms: 2_000,
            max_lease_ms: baton_validation::limits::LEASE_TTL_MAX_MS,
            max_extension_ms: 10 * 60 * 1_000,
            max_open_tasks: 100_000,
            max_open_bytes: 1 << 30,
            max_open_bytes_per_tenant: 1 << 29,
            max_open_tasks_per_tenant: 50_000,
            max_tools: 256,
            max_inputs: 256,
            max_dispatches: 20,
            poison_losses: 2,
            sick_failures: 5,
            sick_ms: 60_000,
            max_daemons_per_token: 20_000,
            unfit_ms: 1_000,
            unfit_max_ms: 60_000,
            reject_backoff_ms: 5_000,
            stall_ms: 1_000,
            budget_write_ms: 30_000,
            inherited_suspension_ms: 0,
            adopt_late_ms: 24 * 60 * 60 * 1_000,
        }
    }

    /// What the relay adds to a lease's limit before it counts as expired.
    pub fn grace_ms_for(&self, ttl_ms: u64) -> u64 {
        self.grace_ms.max(ttl_ms / 1_000)
    }

    /// The longest that a grant can last, grace included: after that nothing leased before can still run.
    pub fn longest_grant_ms(&self) -> u64 {
        let granted_ms = self.max_lease_ms.max(self.max_extension_ms);
        granted_ms + self.grace_ms_for(granted_ms)
    }

    /// How often a daemon must renew a lease of this ttl.
    pub fn heartbeat_ms_for(&self, shortest_ttl_ms: u64) -> u64 {
        self.heartbeat_ms.min(shortest_ttl_ms / 3).max(1)
    }
}
