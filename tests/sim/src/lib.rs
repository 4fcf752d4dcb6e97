//! A deterministic simulation of the real cores: one thread, one seed, a virtual clock, and all
//! faults around them.
//!
//! Clients, links, disks and processes are small models; every decision is made by the real
//! core of the relay or of the daemon. Each seed enables its own faults, runs a storm of them
//! and then a healing phase, and every promise is checked at every step. A seed replays
//! exactly.

mod agents;
mod checks;
mod clients;
mod daemon;
mod faults;
#[cfg(feature = "mutants")]
pub mod mutant_search;
mod options;
mod random;
mod relay;
mod report;
mod simulation;
mod stream;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use options::SimulationOptions;
pub use report::history_writer::record_history;
pub use report::run_counts::Counts;
use simulation::Simulation;

/// Lines of trace that a failure shows.
const TRACE_LINES_SHOWN: usize = 60;

/// A seed that violated a promise.
#[derive(Debug)]
pub struct SeedFailure {
    pub seed: u64,
    pub message: String,
    pub options: SimulationOptions,
    pub trace: Vec<String>,
}

impl std::fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.message)?;
        writeln!(f, "{:?}", self.options)?;
        let from = self.trace.len().saturating_sub(TRACE_LINES_SHOWN);
        self.trace[from..]
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Runs one seed to its end. A failed seed is run again with its trace on, which changes
/// nothing else.
pub fn run_seed(seed: u64) -> Result<Counts, Box<SeedFailure>> {
    let options = SimulationOptions::from_seed(seed);
    let mut world = Simulation::new(seed, options.clone(), false);
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run())) else {
        return Ok(world.counts);
    };
    let what = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    Err(Box::new(SeedFailure {
        seed,
        message: what.unwrap_or_default(),
        options,
        trace: trace_seed(seed),
    }))
}

/// The trace of this seed, up to its end or its failure.
pub fn trace_seed(seed: u64) -> Vec<String> {
    let mut world = Simulation::new(seed, SimulationOptions::from_seed(seed), true);
    let end = catch_unwind(AssertUnwindSafe(|| world.run()));
    if end.is_err() {
        world.add_trace(|| "here it broke".into());
    }
    world.trace
}
