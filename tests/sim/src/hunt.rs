//! Looks for a seed that shows a breakage of one of the cores.

use std::fmt;

use baton_core::mutants as relay;
use baton_daemon_core::mutants as worker;

use crate::run;

/// One breakage, of what the relay or of what a worker decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    Relay(relay::Mutant),
    Worker(worker::Mutant),
}

impl Mutant {
    pub fn all() -> impl Iterator<Item = Self> {
        let relay = relay::Mutant::ALL.iter().copied().map(Self::Relay);
        relay.chain(worker::Mutant::ALL.iter().copied().map(Self::Worker))
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|mutant| mutant.to_string() == name)
    }

    /// What is broken.
    pub fn what(self) -> &'static str {
        match self {
            Self::Relay(mutant) => mutant.what(),
            Self::Worker(mutant) => mutant.what(),
        }
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relay(mutant) => write!(f, "{mutant:?}"),
            Self::Worker(mutant) => write!(f, "{mutant:?}"),
        }
    }
}

/// Breaks this thread's world in this way, or mends it.
pub fn activate(mutant: Option<Mutant>) {
    relay::activate(match mutant {
        Some(Mutant::Relay(mutant)) => Some(mutant),
        Some(Mutant::Worker(_)) | None => None,
    });
    worker::activate(match mutant {
        Some(Mutant::Worker(mutant)) => Some(mutant),
        Some(Mutant::Relay(_)) | None => None,
    });
}

#[derive(Debug)]
pub enum Hunt {
    /// After so many seeds, by this broken promise.
    Found {
        seeds: u64,
        by: String,
    },
    Survived,
    /// Without any breakage a promise is broken under this seed: nothing can be learned from it.
    Blameless {
        seed: u64,
    },
}

/// Runs seeds under this breakage until one fails.
pub fn hunt(mutant: Mutant, seeds: u64) -> Hunt {
    activate(Some(mutant));
    let failure = (0..seeds).find_map(|seed| run(seed).err());
    activate(None);
    match failure {
        Some(failure) if run(failure.seed).is_err() => Hunt::Blameless { seed: failure.seed },
        Some(failure) => Hunt::Found {
            seeds: failure.seed + 1,
            by: failure.what.lines().next().unwrap_or_default().to_owned(),
        },
        None => Hunt::Survived,
    }
}
