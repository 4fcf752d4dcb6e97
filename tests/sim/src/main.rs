//! Runs seeds until one fails or all are done: `baton-sim --seeds 10000`, `baton-sim --seed 42`; `baton-sim --trace 42`
//! tells everything that happened under one.

use std::process::ExitCode;
use std::time::Instant;

use baton_sim::{Counts, run, trace};

struct Args {
    seeds: u64,
    from: u64,
    all: bool,
    trace: Option<u64>,
}

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool"
)]
#[expect(
    clippy::disallowed_methods,
    reason = "the rate is of real time; the simulation has none"
)]
fn main() -> ExitCode {
    let args = args();
    std::panic::set_hook(Box::new(|_| {}));
    if let Some(seed) = args.trace {
        trace(seed).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let (began, mut total, mut failed) = (Instant::now(), Counts::default(), 0u64);
    for seed in args.from..args.from + args.seeds {
        match run(seed) {
            Ok(counts) => total += &counts,
            Err(failure) => {
                failed += 1;
                if args.all {
                    println!("seed {seed}: {}", first_line(&failure.what));
                    continue;
                }
                println!("{failure}");
                return ExitCode::FAILURE;
            }
        }
        if seed % 500 == 499 {
            let seconds = began.elapsed().as_secs_f64();
            eprintln!(
                "{} seeds, {:.0} steps/s",
                seed + 1 - args.from,
                total.steps as f64 / seconds
            );
        }
    }
    for (name, count) in total.each() {
        println!("{name:>16} {count}");
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{} seeds in {seconds:.1} s, {:.0} steps/s, {failed} failed",
        args.seeds,
        total.steps as f64 / seconds
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// `--seeds N`, `--from S`, `--seed S` (just this one), `--all` (go on after failures), `--trace S`.
fn args() -> Args {
    let mut args = Args {
        seeds: 1_000,
        from: 0,
        all: false,
        trace: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        match word.as_str() {
            "--seeds" => args.seeds = number(),
            "--from" => args.from = number(),
            "--seed" => (args.from, args.seeds) = (number(), 1),
            "--all" => args.all = true,
            "--trace" => args.trace = Some(number()),
            _ => {}
        }
    }
    args
}
