//! The command line.

pub(crate) const USAGE: &str = "\
baton-sim [--seeds N] [--from S] [--all]   run N seeds from S on, 1000 from 0; --all continues after a failure
baton-sim --seed S                         run this seed
baton-sim --trace S                        print the trace of this seed
baton-sim mutants [--seeds N]              search each mutant of the cores, in at most N seeds
          --mutant NAME                    activate this mutant, with any of the above";

/// Number of seeds within which each mutant must be detected. The rarest one needs some
/// hundreds.
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
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            command: SimCommand::RunSeeds,
            seed_count: 0,
            first_seed: 0,
            continue_after_failure: false,
            mutant: None,
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "mutants" => args.command = SimCommand::SearchMutants,
                "--all" => args.continue_after_failure = true,
                "--seeds" => args.seed_count = parse_number(&argument, arguments.next())?,
                "--from" => args.first_seed = parse_number(&argument, arguments.next())?,
                "--seed" => {
                    (args.first_seed, args.seed_count) =
                        (parse_number(&argument, arguments.next())?, 1)
                }
                "--trace" => {
                    args.command = SimCommand::TraceSeed(parse_number(&argument, arguments.next())?)
                }
                "--mutant" => args.mutant = Some(arguments.next().ok_or("--mutant needs a name")?),
                _ => return Err(format!("unknown argument {argument:?}")),
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

fn parse_number(option: &str, argument: Option<String>) -> Result<u64, String> {
    let number = argument.and_then(|argument| argument.replace('_', "").parse().ok());
    number.ok_or_else(|| format!("{option} needs a number"))
}
