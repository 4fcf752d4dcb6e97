//! The test of the tests: a table of all mutants, the seeds that each needed, and the violated
//! promise.

#[cfg(feature = "mutants")]
pub(crate) use with::{activate_by_name, search_all};
#[cfg(not(feature = "mutants"))]
pub(crate) use without::{activate_by_name, search_all};

#[cfg(feature = "mutants")]
mod with {
    use baton_sim::mutant_search::{CoreMutant, MutantSearchResult, activate, search_mutant};

    /// Characters of a failure that the table shows.
    const SHOWN: usize = 70;

    /// Activates a mutant on this thread for the following run.
    pub(crate) fn activate_by_name(name: &str) -> Result<(), String> {
        let mutant =
            CoreMutant::from_name(name).ok_or_else(|| format!("no such mutant: {name:?}"))?;
        activate(Some(mutant));
        Ok(())
    }

    /// False if one of them survives, or if a seed fails without a mutant.
    pub(crate) fn search_all(seeds: u64, only: Option<&str>) -> bool {
        let only = only.map(CoreMutant::from_name);
        let chosen = CoreMutant::all().filter(|mutant| only.is_none_or(|one| one == Some(*mutant)));
        let (mut searched, mut bad) = (0, 0);
        println!("{:<24} {:>5}  detected by", "mutant", "seeds");
        for mutant in chosen {
            searched += 1;
            let name = mutant.to_string();
            match search_mutant(mutant, seeds) {
                MutantSearchResult::Detected {
                    seeds_needed: seeds,
                    broken_promise: by,
                } => {
                    let by: String = by.chars().take(SHOWN).collect();
                    println!("{name:<24} {seeds:>5}  {by}");
                }
                MutantSearchResult::Survived => {
                    bad += 1;
                    println!("{name:<24}     -  SURVIVED: {}", mutant.description());
                }
                MutantSearchResult::FailsWithoutMutant { seed } => {
                    bad += 1;
                    println!("{name:<24}     -  seed {seed} fails without any mutant");
                }
            }
        }
        println!("{searched} mutants, {bad} not detected within {seeds} seeds");
        bad == 0
    }
}

#[cfg(not(feature = "mutants"))]
mod without {
    const WHY: &str = "this build has no mutants; with them: \
                       cargo run --release -p baton-sim --features mutants -- mutants";

    pub(crate) fn activate_by_name(_name: &str) -> Result<(), String> {
        Err(WHY.to_owned())
    }

    pub(crate) fn search_all(_seeds: u64, _only: Option<&str>) -> bool {
        eprintln!("{WHY}");
        false
    }
}
