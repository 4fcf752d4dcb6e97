//! Runs seeds until one fails or all are done.
//!
//! `baton-sim --seeds 100000`, `baton-sim --seed 42`; `baton-sim --trace 42` tells everything that happened under one.
//! `baton-sim mutants`, in a build of the feature `mutants`, breaks the core in each way that has a name and fails if one
//! of them is not found.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool"
)]

mod args;
mod mutants;
mod progress;

use std::process::ExitCode;

use baton_sim::{Counts, run, trace};

use args::{Args, What};
use progress::Progress;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(why) => {
            eprintln!("{why}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    // Broken promises are panics; they are told as results.
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(name) = &args.mutant
        && let Err(why) = mutants::choose(name)
    {
        eprintln!("{why}");
        return ExitCode::from(2);
    }
    let good = match args.what {
        What::Trace(seed) => {
            trace(seed).iter().for_each(|line| println!("{line}"));
            true
        }
        What::Mutants => mutants::hunt_all(args.seeds, args.mutant.as_deref()),
        What::Seeds => run_seeds(&args),
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run_seeds(args: &Args) -> bool {
    let (mut total, mut failed) = (Counts::default(), 0);
    let mut progress = Progress::new(args.seeds);
    for seed in args.from..args.from + args.seeds {
        match run(seed) {
            Ok(counts) => total += &counts,
            Err(failure) if args.all => {
                failed += 1;
                progress.interrupt();
                let first = failure.what.lines().next().unwrap_or_default();
                println!("seed {seed}: {first}");
            }
            Err(failure) => {
                progress.interrupt();
                println!("{failure}\nagain, in full: baton-sim --trace {seed}");
                return false;
            }
        }
        progress.advance(total.steps, failed);
    }
    progress.interrupt();
    for (name, count) in total.each() {
        println!("{name:>17} {count}");
    }
    println!("{}, {failed} failed", progress.summary(total.steps));
    failed == 0
}
