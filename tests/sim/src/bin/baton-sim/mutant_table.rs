//! The test of the test: a table of all breakages, how many seeds each needed, and what gave it away.

#[cfg(feature = "mutants")]
pub(crate) use with::{choose, hunt_all};
#[cfg(not(feature = "mutants"))]
pub(crate) use without::{choose, hunt_all};

#[cfg(feature = "mutants")]
mod with {
    use baton_sim::mutant_search::{CoreMutant, MutantSearchResult, activate, search_mutant};

    /// How much of a failure the table shows.
    const SHOWN: usize = 70;

    /// Breaks the cores of this thread for whatever is run next.
    pub(crate) fn choose(name: &str) -> Result<(), String> {
        let mutant =
            CoreMutant::from_name(name).ok_or_else(|| format!("there is no mutant {name:?}"))?;
        activate(Some(mutant));
        Ok(())
    }

    /// False if one of them survives, or if a seed fails that no mutant is to blame for.
    pub(crate) fn hunt_all(seeds: u64, only: Option<&str>) -> bool {
        let only = only.map(CoreMutant::from_name);
        let chosen = CoreMutant::all().filter(|mutant| only.is_none_or(|one| one == Some(*mutant)));
        let (mut hunted, mut bad) = (0, 0);
        println!("{:<24} {:>5}  given away by", "mutant", "seeds");
        for mutant in chosen {
            hunted += 1;
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
        println!("{hunted} mutants, {bad} not found within {seeds} seeds");
        bad == 0
    }
}

#[cfg(not(feature = "mutants"))]
mod without {
    const WHY: &str = "this build has no mutants; with them: \
                       cargo run --release -p baton-sim --features mutants -- mutants";

    pub(crate) fn choose(_name: &str) -> Result<(), String> {
        Err(WHY.to_owned())
    }

    pub(crate) fn hunt_all(_seeds: u64, _only: Option<&str>) -> bool {
        eprintln!("{WHY}");
        false
    }
}
