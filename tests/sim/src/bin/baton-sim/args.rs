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
pub(crate) enum What {
    Seeds,
    Trace(u64),
    Mutants,
}

#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) what: What,
    pub(crate) seeds: u64,
    pub(crate) from: u64,
    pub(crate) all: bool,
    pub(crate) mutant: Option<String>,
}

impl Args {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            what: What::Seeds,
            seeds: 0,
            from: 0,
            all: false,
            mutant: None,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "mutants" => args.what = What::Mutants,
                "--all" => args.all = true,
                "--seeds" => args.seeds = number(&word, words.next())?,
                "--from" => args.from = number(&word, words.next())?,
                "--seed" => (args.from, args.seeds) = (number(&word, words.next())?, 1),
                "--trace" => args.what = What::Trace(number(&word, words.next())?),
                "--mutant" => args.mutant = Some(words.next().ok_or("--mutant needs a name")?),
                _ => return Err(format!("what is {word:?}?")),
            }
        }
        if args.seeds == 0 {
            args.seeds = match args.what {
                What::Mutants => MUTANT_SEEDS,
                What::Seeds | What::Trace(_) => 1_000,
            };
        }
        Ok(args)
    }
}

fn number(option: &str, word: Option<String>) -> Result<u64, String> {
    let number = word.and_then(|word| word.replace('_', "").parse().ok());
    number.ok_or_else(|| format!("{option} needs a number"))
}
