//! Runs seeds until one fails or all are done.
//!
//! `baton-sim --seeds 100000`, `baton-sim --seed 42`; `baton-sim --trace 42` prints the trace
//! of one seed. `baton-sim mutants`, in a build with the feature `mutants`, activates each
//! mutant of the cores and fails if one of them is not detected.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool"
)]

mod mutant_table;
mod seed_progress;
mod sim_args;

use std::process::ExitCode;

use baton_sim::{Counts, run_seed, trace_seed};

use seed_progress::SeedProgress;
use sim_args::{SimArgs, SimCommand};

fn main() -> ExitCode {
    let args = match SimArgs::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(why) => {
            eprintln!("{why}\n\n{}", sim_args::USAGE);
            return ExitCode::from(2);
        }
    };
    // Violated promises are panics; they are reported as results.
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(name) = &args.mutant
        && let Err(why) = mutant_table::activate_by_name(name)
    {
        eprintln!("{why}");
        return ExitCode::from(2);
    }
    let good = match args.command {
        SimCommand::TraceSeed(seed) => {
            trace_seed(seed).iter().for_each(|line| println!("{line}"));
            true
        }
        SimCommand::SearchMutants => {
            mutant_table::search_all(args.seed_count, args.mutant.as_deref())
        }
        SimCommand::RunSeeds => run_seeds(&args),
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_seeds(args: &SimArgs) -> bool {
    let (mut total, mut failed) = (Counts::default(), 0);
    let mut progress = SeedProgress::new(args.seed_count);
    for seed in args.first_seed..args.first_seed + args.seed_count {
        match run_seed(seed) {
            Ok(counts) => total += &counts,
            Err(failure) if args.continue_after_failure => {
                failed += 1;
                progress.clear_bar();
                let first = failure.message.lines().next().unwrap_or_default();
                println!("seed {seed}: {first}");
            }
            Err(failure) => {
                progress.clear_bar();
                println!("{failure}\nfull trace: baton-sim --trace {seed}");
                return false;
            }
        }
        progress.advance(total.steps, failed);
    }
    progress.clear_bar();
    for (name, count) in total.each() {
        println!("{name:>17} {count}");
    }
    println!("{}, {failed} failed", progress.summary(total.steps));
    failed == 0
}
