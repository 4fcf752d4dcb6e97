//! Searches for a seed that detects a mutant of one of the cores.

use std::fmt;

use baton_core::mutants as relay;
use baton_daemon_core::mutants as worker;

use crate::run_seed;

/// One mutant of the relay's or the daemon's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreMutant {
    Relay(relay::Mutant),
    Worker(worker::Mutant),
}

impl CoreMutant {
    pub fn all() -> impl Iterator<Item = Self> {
        let relay = relay::Mutant::ALL.iter().copied().map(Self::Relay);
        relay.chain(worker::Mutant::ALL.iter().copied().map(Self::Worker))
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|mutant| mutant.to_string() == name)
    }

    /// What the mutant changes.
    pub fn description(self) -> &'static str {
        match self {
            Self::Relay(mutant) => mutant.what(),
            Self::Worker(mutant) => mutant.what(),
        }
    }
}

impl fmt::Display for CoreMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relay(mutant) => write!(f, "{mutant:?}"),
            Self::Worker(mutant) => write!(f, "{mutant:?}"),
        }
    }
}

/// Activates this mutant on this thread, or deactivates all.
pub fn activate(mutant: Option<CoreMutant>) {
    relay::activate(match mutant {
        Some(CoreMutant::Relay(mutant)) => Some(mutant),
        Some(CoreMutant::Worker(_)) | None => None,
    });
    worker::activate(match mutant {
        Some(CoreMutant::Worker(mutant)) => Some(mutant),
        Some(CoreMutant::Relay(_)) | None => None,
    });
}

#[derive(Debug)]
pub enum MutantSearchResult {
    /// Detected by this seed number, with this violated promise.
    Detected {
        seeds_needed: u64,
        broken_promise: String,
    },
    Survived,
    /// This seed violates a promise without any mutant, so the search proves nothing.
    FailsWithoutMutant {
        seed: u64,
    },
}

/// Runs seeds with this mutant until one fails.
pub fn search_mutant(mutant: CoreMutant, seeds: u64) -> MutantSearchResult {
    activate(Some(mutant));
    let failure = (0..seeds).find_map(|seed| run_seed(seed).err());
    activate(None);
    match failure {
        Some(failure) if run_seed(failure.seed).is_err() => {
            MutantSearchResult::FailsWithoutMutant { seed: failure.seed }
        }
        Some(failure) => MutantSearchResult::Detected {
            seeds_needed: failure.seed + 1,
            broken_promise: failure
                .message
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned(),
        },
        None => MutantSearchResult::Survived,
    }
}
