//! Looks for a seed that shows a breakage of the core.

use baton_core::mutants::{Mutant, activate};

use crate::run;

#[derive(Debug)]
pub enum Hunt {
    /// After so many seeds, by this broken promise.
    Found {
        seeds: u64,
        by: String,
    },
    Survived,
    /// The core as it is breaks a promise under this seed: nothing can be learned from it.
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
