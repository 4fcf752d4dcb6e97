//! Settings of the relay that decisions depend on. They are fixed for one run.

use crate::ids::{Incarnation, RelayEpoch};

#[derive(Clone, Debug)]
pub struct Config {
    pub incarnation: Incarnation,
    pub epoch: RelayEpoch,
    /// Longest time between heartbeats; a short lease ttl shortens it (`heartbeat_ms_for`).
    pub heartbeat_ms: u64,
    pub accept_ms: u64,
    /// Minimum time added to a lease before it counts as expired. A long lease adds a
    /// thousandth of its ttl.
    pub grace_ms: u64,
    /// Added to profile deadlines, so that a daemon that runs the same timers reports first.
    pub slack_ms: u64,
    /// Used when a submission sets none.
    pub total_ms: u64,
    pub queue_ms: u64,
    /// Time between TERM and KILL when the profile sets none.
    pub cleanup_term_ms: u64,
    /// Largest lease ttl that a task may ask for.
    pub max_lease_ms: u64,
    /// Longest lease extension that a daemon may request before a planned restart.
    pub max_extension_ms: u64,
    /// Limit on open (not terminal) tasks of all tenants together.
    pub max_open_tasks: usize,
    /// Limit on the bytes of prompts, arguments and records that open tasks keep in memory.
    pub max_open_bytes: u64,
    /// The share of `max_open_bytes` that one tenant may use.
    pub max_open_bytes_per_tenant: u64,
    pub max_open_tasks_per_tenant: usize,
    /// Limits on open tool calls and open inputs of one attempt.
    pub max_tools: usize,
    pub max_inputs: usize,
    /// A task ends after this many offers.
    pub max_dispatches: u32,
    /// Number of different daemons lost while running one task before it parks as poison.
    pub poison_losses: usize,
    /// Failures in a row after which a daemon is set aside, and for how long.
    pub sick_failures: u32,
    pub sick_ms: u64,
    /// Limit on stored daemons of one credential. Daemons that were absent for long are
    /// forgotten to make room for new ones.
    pub max_daemons_per_token: usize,
    /// How long a daemon is set aside after it refuses work because of its machine. The first
    /// refusal costs `unfit_ms`; each further one doubles it up to `unfit_max_ms`.
    pub unfit_ms: u64,
    pub unfit_max_ms: u64,
    /// How long a daemon that rejected a task is excluded from it.
    pub reject_backoff_ms: u64,
    /// A loop that stalled longer than this credits the leases of connected sessions.
    pub stall_ms: u64,
    /// Consumed budgets of hard deadlines are written at least this often.
    pub budget_write_ms: u64,
    /// After an accepted loss or an import: how long tasks loaded at boot are not placed. Their
    /// newest leases may be missing from the relay's records.
    pub inherited_suspension_ms: u64,
    /// How long after `lost` a result of the last attempt may still be adopted.
    pub adopt_late_ms: u64,
}

impl Config {
    /// The defaults documented in the README.
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

    /// Grace added to the limit of a lease before it counts as expired.
    pub fn grace_ms_for(&self, ttl_ms: u64) -> u64 {
        self.grace_ms.max(ttl_ms / 1_000)
    }

    /// The longest time that a grant can last, including grace. After it, no earlier lease can
    /// still be valid.
    pub fn longest_grant_ms(&self) -> u64 {
        let granted_ms = self.max_lease_ms.max(self.max_extension_ms);
        granted_ms + self.grace_ms_for(granted_ms)
    }

    /// The heartbeat interval for a daemon whose shortest lease has this ttl.
    pub fn heartbeat_ms_for(&self, shortest_ttl_ms: u64) -> u64 {
        self.heartbeat_ms.min(shortest_ttl_ms / 3).max(1)
    }
}
