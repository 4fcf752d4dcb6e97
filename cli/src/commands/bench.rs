//! `baton bench`: figures from this machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::duration;
use crate::bench::load::LoadShape;
use crate::bench::report::BenchReport;
use crate::bench::site::{BenchTarget, default_parent};
use crate::bench::{compare, output, recover, storm, tasks, watch};
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::server::stop_signals;

/// The relay runs in a process of its own with a fresh data directory; simulated daemons speak to it over loopback gRPC without
/// starting processes. Every figure counts what the relay has made durable, and what was counted on both sides is compared.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Durable tasks from submit to completion: first as many as the relay takes, then at a fixed rate.
    Tasks(BenchTasksArgs),
    /// Output of attempts, stored and received by everybody who follows it.
    Output(BenchOutputArgs),
    /// A fleet whose connections all drop and return at once, some with attempts.
    Storm(BenchStormArgs),
    /// Submits with an empty and a full store, disk per finished task, and the time from a kill to serving again.
    Recover(BenchRecoverArgs),
    /// Many watchers of many tasks, also beside some that hardly read.
    Watch(BenchWatchArgs),
    /// Two builds in one interleaved run: A B A B, medians and spread of every figure.
    Compare(BenchCompareArgs),
}

/// Where to measure what, and how to tell.
#[derive(Args, Debug)]
struct BenchTargetArgs {
    /// Directory, on a real disk, in which the relay's data directory is made and removed again. Without it, the
    /// directory for temporary files is used, or the current one if that is in memory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Measure the relay of this executable instead of this one's.
    #[arg(long, value_name = "FILE")]
    relay_program: Option<PathBuf>,

    /// Print the figures as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BenchTasksArgs {
    /// Length of each of the two phases.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Client connections.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,

    /// Calls in flight on each connection at most. The default is 64, or 1 with --batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: Option<u16>,

    /// Submit this many tasks in one call, by SubmitMany.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=500))]
    batch: Option<u16>,

    /// Simulated daemons.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    daemons: u16,

    /// Slots of each daemon.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,

    /// Open tasks that the relay admits at most: what is above it waits, so that submits cannot starve completions. The
    /// default is twice what the daemons can hold, and room for every call in flight with --batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_open: Option<u32>,

    /// Tasks a second in the second phase. Without it, half of what the first phase reached.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    #[command(flatten)]
    place: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchOutputArgs {
    /// Attempts that write at the same time, each on a daemon of its own.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    writers: u16,

    /// Lines of 256 bytes that each of them writes. The relay stores 64 MiB of an attempt.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=262_000))]
    lines: u64,

    /// Lines of one chunk. A daemon whose agent floods it sends chunks of 64 KiB.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=256))]
    chunk_lines: u16,

    /// Clients that follow the output of all of them.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    watchers: u16,

    /// Rounds, each with new attempts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    #[command(flatten)]
    place: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchStormArgs {
    /// Daemons, each on a TCP connection of its own.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(2..=20_000))]
    daemons: u16,

    /// Of them, how many hold an attempt. The default is a tenth.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    holders: Option<u16>,

    /// Lease of those attempts.
    #[arg(long, value_name = "DURATION", default_value = "120s", value_parser = duration::parse)]
    lease: Duration,

    /// All must be back within this.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    limit: Duration,

    #[command(flatten)]
    place: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchRecoverArgs {
    /// Finished tasks that are stored before the second look.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    finished: u64,

    /// Live tasks that are stored when the relay is killed.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    live: u64,

    /// Submits a second while latencies are taken.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,

    /// How long latencies are taken, each time.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// What the relay may keep on its disk. Less than the finished tasks take shows what retention does.
    #[arg(long, value_name = "SIZE", default_value = "100GiB")]
    retain_bytes: String,

    #[command(flatten)]
    place: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchWatchArgs {
    /// Tasks that are watched.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=4096))]
    tasks: u16,

    /// Watchers of each of them.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=4000))]
    watchers: u16,

    /// Tool calls of each task; each is two events.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
    calls: u64,

    /// Between two calls.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration::parse)]
    every: Duration,

    #[command(flatten)]
    place: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchCompareArgs {
    /// The first build's executable.
    #[arg(long, value_name = "FILE")]
    a: PathBuf,

    /// The second build's executable.
    #[arg(long, value_name = "FILE")]
    b: PathBuf,

    /// Runs of each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// Print the figures as one JSON object.
    #[arg(long)]
    json: bool,

    /// The bench and its flags, for example: tasks --seconds 5.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "BENCH"
    )]
    bench: Vec<String>,
}

/// A bench that is interrupted takes its relay and its directory with it.
pub(crate) async fn run(
    command: BenchCommand,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let stop = stop_signals::cancel_on_signals()?;
    tokio::select! {
        told = run_bench(command, console) => told,
        () = stop.cancelled() => Ok(CommandExit::Interrupted),
    }
}

async fn run_bench(command: BenchCommand, console: &CliConsole) -> Result<CommandExit, CliError> {
    let (json, report) = match command {
        BenchCommand::Tasks(args) => {
            let (json, place, plan) = args.into_plan();
            (json, tasks::run(&place, &plan, console).await?)
        }
        BenchCommand::Output(args) => {
            let (json, place, plan) = args.into_plan();
            (json, output::run(&place, &plan, console).await?)
        }
        BenchCommand::Storm(args) => {
            let (json, place, plan) = args.into_plan();
            (json, storm::run(&place, &plan, console).await?)
        }
        BenchCommand::Recover(args) => {
            let (json, place, plan) = args.into_plan();
            (json, recover::run(&place, &plan, console).await?)
        }
        BenchCommand::Watch(args) => {
            let (json, place, plan) = args.into_plan();
            (json, watch::run(&place, &plan, console).await?)
        }
        BenchCommand::Compare(args) => return compare(args, console).await,
    };
    print_report(&report, json, console)
}

fn print_report(
    report: &BenchReport,
    json: bool,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    if json {
        console.json(&report.json())?;
    } else {
        for line in report.lines() {
            console.line(&line)?;
        }
    }
    Ok(if report.all_checks_passed() {
        CommandExit::Done
    } else {
        CommandExit::NotCompleted
    })
}

async fn compare(args: BenchCompareArgs, console: &CliConsole) -> Result<CommandExit, CliError> {
    let plan = compare::CompareBenchPlan {
        a: args.a,
        b: args.b,
        rounds: args.rounds.into(),
        arguments: args.bench,
    };
    let comparison = compare::run(&plan, console).await?;
    if args.json {
        console.json(&comparison.json())?;
    } else {
        for line in comparison.lines() {
            console.line(&line)?;
        }
    }
    Ok(CommandExit::Done)
}

impl BenchTargetArgs {
    fn into_target(self) -> (bool, BenchTarget) {
        let place = BenchTarget {
            parent: self.data.unwrap_or_else(default_parent),
            program: self.relay_program,
        };
        (self.json, place)
    }
}

impl BenchTasksArgs {
    fn into_plan(self) -> (bool, BenchTarget, tasks::TasksBenchPlan) {
        let (json, place) = self.place.into_target();
        let batch = self.batch.map(usize::from);
        let usual = if batch.is_some() { 1 } else { 64 };
        let shape = LoadShape {
            in_flight: self.in_flight.unwrap_or(usual).into(),
            batch,
        };
        let asked = batch.unwrap_or(0) * shape.in_flight * usize::from(self.connections);
        let held = 2 * u32::from(self.daemons) * self.slots;
        let room = held.max(u32::try_from(asked).unwrap_or(u32::MAX));
        let plan = tasks::TasksBenchPlan {
            window: Duration::from_secs(self.seconds),
            connections: self.connections.into(),
            shape,
            daemons: self.daemons.into(),
            slots: self.slots,
            max_open: self.max_open.unwrap_or(room),
            rate: self.rate,
        };
        (json, place, plan)
    }
}

impl BenchOutputArgs {
    fn into_plan(self) -> (bool, BenchTarget, output::OutputBenchPlan) {
        let (json, place) = self.place.into_target();
        let plan = output::OutputBenchPlan {
            writers: self.writers.into(),
            lines: self.lines,
            chunk_lines: self.chunk_lines.into(),
            watchers: self.watchers.into(),
            rounds: self.rounds.into(),
        };
        (json, place, plan)
    }
}

impl BenchStormArgs {
    fn into_plan(self) -> (bool, BenchTarget, storm::StormBenchPlan) {
        let (json, place) = self.place.into_target();
        let holders = self.holders.unwrap_or(self.daemons.div_ceil(10));
        let plan = storm::StormBenchPlan {
            daemons: self.daemons.into(),
            holders: holders.min(self.daemons).into(),
            lease: self.lease,
            limit: self.limit,
        };
        (json, place, plan)
    }
}

impl BenchRecoverArgs {
    fn into_plan(self) -> (bool, BenchTarget, recover::RecoverBenchPlan) {
        let (json, place) = self.place.into_target();
        let plan = recover::RecoverBenchPlan {
            finished: self.finished,
            live: self.live,
            rate: self.rate,
            window: Duration::from_secs(self.seconds),
            retain_bytes: self.retain_bytes,
        };
        (json, place, plan)
    }
}

impl BenchWatchArgs {
    fn into_plan(self) -> (bool, BenchTarget, watch::WatchBenchPlan) {
        let (json, place) = self.place.into_target();
        let plan = watch::WatchBenchPlan {
            tasks: self.tasks.into(),
            watchers_per_task: self.watchers.into(),
            calls: self.calls,
            every: self.every,
        };
        (json, place, plan)
    }
}
