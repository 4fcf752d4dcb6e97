//! `baton bench`: runs the load generator of baton-bench against a relay on this machine.

use std::path::PathBuf;
use std::time::Duration;

use baton_bench::environment::{BenchTarget, default_parent};
use baton_bench::error::BenchError;
use baton_bench::load::LoadShape;
use baton_bench::measure::report::BenchReport;
use baton_bench::progress::BenchProgress;
use baton_bench::{compare, output, recover, storm, tasks, watch};
use clap::{Args, Subcommand};

use crate::args::duration;
use crate::error::cli_error::{CliError, ErrorText};
use crate::error::exit_code::CommandExit;
use crate::render::bench_view;
use crate::render::console::CliConsole;
use crate::server::{open_files, stop_signals};

/// The relay runs in its own process with a fresh data directory. Simulated daemons connect to it
/// over loopback gRPC and start no processes. A figure counts only work that the relay has stored
/// durably, and the counts of both sides are compared.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Durable tasks from submit to completion: first as many as the relay accepts, then at a
    /// fixed rate.
    Tasks(BenchTasksArgs),
    /// Output of attempts, stored by the relay and received by every client that follows it.
    Output(BenchOutputArgs),
    /// A fleet whose connections all drop and reconnect at once, some with running attempts.
    Storm(BenchStormArgs),
    /// Submits with an empty and a full store, disk space per finished task, and the time to
    /// recover from a kill.
    Recover(BenchRecoverArgs),
    /// Many watchers of many tasks, alone and beside slow readers.
    Watch(BenchWatchArgs),
    /// Two builds in one interleaved run: A B A B, with median and range of every figure.
    Compare(BenchCompareArgs),
}

/// Where to measure, which relay, and the output format.
#[derive(Args, Debug)]
struct BenchTargetArgs {
    /// Directory on a real disk in which the relay's data directory is created and removed again.
    /// The default is the directory for temporary files, or the current directory if that is in
    /// memory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Measure the relay of another baton executable.
    #[arg(long, value_name = "FILE")]
    relay_program: Option<PathBuf>,

    /// Print the figures as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BenchTasksArgs {
    /// Length of each of the two phases, in seconds.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Client connections.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,

    /// Maximum of concurrent calls on each connection. The default is 64, or 1 with --batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: Option<u16>,

    /// Submit this many tasks in one call (SubmitMany).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=500))]
    batch: Option<u16>,

    /// Simulated daemons.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    daemons: u16,

    /// Slots of each daemon.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,

    /// Maximum of open tasks that the relay admits, so that submits cannot starve completions.
    /// The default is twice the number of slots, or enough for all concurrent calls with --batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_open: Option<u32>,

    /// Tasks per second in the second phase. The default is half of the rate of the first phase.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    #[command(flatten)]
    target: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchOutputArgs {
    /// Attempts that write at the same time, each on its own daemon.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    writers: u16,

    /// Lines of 256 bytes that each attempt writes. The relay stores at most 64 MiB of an attempt.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=262_000))]
    lines: u64,

    /// Lines of one chunk. A daemon sends chunks of 64 KiB when its agent writes much output.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=256))]
    chunk_lines: u16,

    /// Clients that follow the output of all attempts.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    watchers: u16,

    /// Rounds, each with new attempts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    #[command(flatten)]
    target: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchStormArgs {
    /// Daemons, each on its own TCP connection.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(2..=20_000))]
    daemons: u16,

    /// How many of the daemons hold an attempt. The default is a tenth.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    holders: Option<u16>,

    /// Lease of their attempts.
    #[arg(long, value_name = "DURATION", default_value = "120s", value_parser = duration::parse)]
    lease: Duration,

    /// All daemons must be back within this time.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse)]
    limit: Duration,

    #[command(flatten)]
    target: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchRecoverArgs {
    /// Finished tasks in the store when the latency is measured again.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    finished: u64,

    /// Live tasks in the store when the relay is killed.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    live: u64,

    /// Submits per second while the latency is measured.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,

    /// Length of each latency measurement, in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Disk space for the relay's finished tasks. A size that is too small for them shows the
    /// cost of retention.
    #[arg(long, value_name = "SIZE", default_value = "100GiB")]
    retain_bytes: String,

    #[command(flatten)]
    target: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchWatchArgs {
    /// Watched tasks.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=4096))]
    tasks: u16,

    /// Watchers of each task.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=4000))]
    watchers: u16,

    /// Tool calls of each task; each call makes two events.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
    calls: u64,

    /// Time between two calls.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration::parse)]
    every: Duration,

    #[command(flatten)]
    target: BenchTargetArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchCompareArgs {
    /// Executable of the first build.
    #[arg(long, value_name = "FILE")]
    a: PathBuf,

    /// Executable of the second build.
    #[arg(long, value_name = "FILE")]
    b: PathBuf,

    /// Runs of each build.
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

/// An interrupt drops the bench, which kills its relay and removes its directory.
pub(crate) async fn run(
    command: BenchCommand,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    let stop = stop_signals::cancel_on_signals()?;
    tokio::select! {
        result = run_bench(command, console) => result,
        () = stop.cancelled() => Ok(CommandExit::Interrupted),
    }
}

async fn run_bench(command: BenchCommand, console: &CliConsole) -> Result<CommandExit, CliError> {
    let (json, report) = match command {
        BenchCommand::Tasks(args) => {
            let (json, target, plan) = args.into_plan()?;
            (json, tasks::run(&target, &plan, console).await?)
        }
        BenchCommand::Output(args) => {
            let (json, target, plan) = args.into_plan()?;
            (json, output::run(&target, &plan, console).await?)
        }
        BenchCommand::Storm(args) => {
            let (json, target, plan) = args.into_plan()?;
            raise_open_file_limit(&plan)?;
            (json, storm::run(&target, &plan, console).await?)
        }
        BenchCommand::Recover(args) => {
            let (json, target, plan) = args.into_plan()?;
            (json, recover::run(&target, &plan, console).await?)
        }
        BenchCommand::Watch(args) => {
            let (json, target, plan) = args.into_plan()?;
            (json, watch::run(&target, &plan, console).await?)
        }
        BenchCommand::Compare(args) => return compare(args, console).await,
    };
    print_report(&report, json, console)
}

/// For this process and, inherited, for the relay.
fn raise_open_file_limit(plan: &storm::StormBenchPlan) -> Result<(), CliError> {
    open_files::raise_limit_for(plan.connections() as u64).map_err(|error| {
        let hint = "raise the limit (`ulimit -Hn`), or measure with fewer daemons";
        CliError::usage(error.to_string(), hint)
    })
}

impl BenchProgress for CliConsole {
    fn is_terminal(&self) -> bool {
        self.stderr_is_terminal()
    }

    fn status(&self, line: &str) {
        self.replace_status_line(line);
    }

    fn note(&self, text: &str) {
        CliConsole::note(self, text);
    }
}

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Usage { what, hint } => CliError::usage(what, hint),
            BenchError::Unreachable { url, why } => CliError::Unreachable(ErrorText {
                what: format!("cannot connect to the relay at {url}"),
                why,
                hint: "the bench started this relay itself; repeat it with fewer connections"
                    .to_owned(),
            }),
            BenchError::Status(status) => status.into(),
            BenchError::Local { what, why } => CliError::local(what, why),
        }
    }
}

fn own_executable() -> Result<PathBuf, CliError> {
    std::env::current_exe()
        .map_err(|error| CliError::local("cannot find the path of this executable", error))
}

fn print_report(
    report: &BenchReport,
    json: bool,
    console: &CliConsole,
) -> Result<CommandExit, CliError> {
    if json {
        console.json(&report.json())?;
    } else {
        for line in bench_view::report_lines(report) {
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
        baton: own_executable()?,
        a: args.a,
        b: args.b,
        rounds: args.rounds.into(),
        arguments: args.bench,
    };
    let comparison = compare::run(&plan, console).await?;
    if args.json {
        console.json(&comparison.json())?;
    } else {
        for line in bench_view::comparison_lines(&comparison) {
            console.line(&line)?;
        }
    }
    Ok(CommandExit::Done)
}

impl BenchTargetArgs {
    fn into_target(self) -> Result<(bool, BenchTarget), CliError> {
        let target = BenchTarget {
            parent: self.data.unwrap_or_else(default_parent),
            program: self.relay_program.map_or_else(own_executable, Ok)?,
        };
        Ok((self.json, target))
    }
}

impl BenchTasksArgs {
    fn into_plan(self) -> Result<(bool, BenchTarget, tasks::TasksBenchPlan), CliError> {
        let (json, target) = self.target.into_target()?;
        let batch = self.batch.map(usize::from);
        let default_in_flight = if batch.is_some() { 1 } else { 64 };
        let shape = LoadShape {
            in_flight: self.in_flight.unwrap_or(default_in_flight).into(),
            batch,
        };
        let batched = batch.unwrap_or(0) * shape.in_flight * usize::from(self.connections);
        let twice_the_slots = 2 * u32::from(self.daemons) * self.slots;
        let default_max_open = twice_the_slots.max(u32::try_from(batched).unwrap_or(u32::MAX));
        let plan = tasks::TasksBenchPlan {
            window: Duration::from_secs(self.seconds),
            connections: self.connections.into(),
            shape,
            daemons: self.daemons.into(),
            slots: self.slots,
            max_open: self.max_open.unwrap_or(default_max_open),
            rate: self.rate,
        };
        Ok((json, target, plan))
    }
}

impl BenchOutputArgs {
    fn into_plan(self) -> Result<(bool, BenchTarget, output::OutputBenchPlan), CliError> {
        let (json, target) = self.target.into_target()?;
        let plan = output::OutputBenchPlan {
            writers: self.writers.into(),
            lines: self.lines,
            chunk_lines: self.chunk_lines.into(),
            watchers: self.watchers.into(),
            rounds: self.rounds.into(),
        };
        Ok((json, target, plan))
    }
}

impl BenchStormArgs {
    fn into_plan(self) -> Result<(bool, BenchTarget, storm::StormBenchPlan), CliError> {
        let (json, target) = self.target.into_target()?;
        let holders = self.holders.unwrap_or(self.daemons.div_ceil(10));
        let plan = storm::StormBenchPlan {
            daemons: self.daemons.into(),
            holders: holders.min(self.daemons).into(),
            lease: self.lease,
            limit: self.limit,
        };
        Ok((json, target, plan))
    }
}

impl BenchRecoverArgs {
    fn into_plan(self) -> Result<(bool, BenchTarget, recover::RecoverBenchPlan), CliError> {
        let (json, target) = self.target.into_target()?;
        let plan = recover::RecoverBenchPlan {
            finished: self.finished,
            live: self.live,
            rate: self.rate,
            window: Duration::from_secs(self.seconds),
            retain_bytes: self.retain_bytes,
        };
        Ok((json, target, plan))
    }
}

impl BenchWatchArgs {
    fn into_plan(self) -> Result<(bool, BenchTarget, watch::WatchBenchPlan), CliError> {
        let (json, target) = self.target.into_target()?;
        let plan = watch::WatchBenchPlan {
            tasks: self.tasks.into(),
            watchers_per_task: self.watchers.into(),
            calls: self.calls,
            every: self.every,
        };
        Ok((json, target, plan))
    }
}

#[cfg(test)]
mod tests {
    use crate::client::discovery;
    use crate::commands::server::relay;

    /// The load generator reads what a relay process prints and stores, and does not depend on it.
    #[test]
    fn the_load_generator_expects_what_a_relay_prints_and_stores() {
        assert_eq!(baton_bench::measure::LISTENING_ON, relay::LISTENING_ON);
        assert_eq!(
            baton_bench::measure::ADMIN_TOKEN_FILE,
            discovery::ADMIN_TOKEN_FILE
        );
        assert_eq!(
            discovery::ADMIN_TOKEN_FILE,
            baton_relay::auth::bootstrap::ADMIN_TOKEN_FILE
        );
    }
}
