//! The command line.

pub(crate) const USAGE: &str = "\
baton-sim [--seeds N] [--from S] [--all]   run N seeds from S on, 1000 from 0; --all goes on after a failure
baton-sim --seed S                         run this seed
baton-sim --trace S                        tell everything that happens under this seed
baton-sim mutants [--seeds N]              break the core on purpose, in each way N times at most
          --mutant NAME                    break it in this way, with any of the above";

/// Seeds that each mutant has to be found in. The rarest of them needs some hundreds.
const MUTANT_SEEDS: u64 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimCommand {
    RunSeeds,
    TraceSeed(u64),
    SearchMutants,
}

#[derive(Debug)]
pub(crate) struct SimArgs {
    pub(crate) command: SimCommand,
    pub(crate) seed_count: u64,
    pub(crate) first_seed: u64,
    pub(crate) continue_after_failure: bool,
    pub(crate) mutant: Option<String>,
}

impl SimArgs {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            command: SimCommand::RunSeeds,
            seed_count: 0,
            first_seed: 0,
            continue_after_failure: false,
            mutant: None,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "mutants" => args.command = SimCommand::SearchMutants,
                "--all" => args.continue_after_failure = true,
                "--seeds" => args.seed_count = parse_number(&word, words.next())?,
                "--from" => args.first_seed = parse_number(&word, words.next())?,
                "--seed" => {
                    (args.first_seed, args.seed_count) = (parse_number(&word, words.next())?, 1)
                }
                "--trace" => {
                    args.command = SimCommand::TraceSeed(parse_number(&word, words.next())?)
                }
                "--mutant" => args.mutant = Some(words.next().ok_or("--mutant needs a name")?),
                _ => return Err(format!("what is {word:?}?")),
            }
        }
        if args.seed_count == 0 {
            args.seed_count = match args.command {
                SimCommand::SearchMutants => MUTANT_SEEDS,
                SimCommand::RunSeeds | SimCommand::TraceSeed(_) => 1_000,
            };
        }
        Ok(args)
    }
}

fn parse_number(option: &str, word: Option<String>) -> Result<u64, String> {
    let number = word.and_then(|word| word.replace('_', "").parse().ok());
    number.ok_or_else(|| format!("{option} needs a number"))
}
