//! `baton bench`: figures from this machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::bench::{self, Plan};
use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Durable tasks from submit to completion: first as many as the relay takes, then at half that rate.
    Tasks(TasksArgs),
}

/// The relay runs in a process of its own with a fresh data directory; simulated daemons complete tasks over loopback gRPC
/// without starting processes. Every figure counts what the relay has made durable.
#[derive(Args, Debug)]
pub(crate) struct TasksArgs {
    /// Length of each of the two phases.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Client connections.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,

    /// Submits in flight on each connection at most.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    in_flight: u16,

    /// Simulated daemons.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    daemons: u16,

    /// Slots of each daemon.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    slots: u32,

    /// Open tasks that the relay admits at most: what is above it waits, so that submits cannot starve completions. The
    /// default is twice what the daemons can hold.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_open: Option<u32>,

    /// Submits a second in the second phase. Without it, half of what the first phase reached.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// Directory, on a real disk, in which the relay's data directory is made and removed again. Without it, the
    /// directory for temporary files is used, or the current one if that is in memory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Print the figures as one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: BenchCommand, console: &Console) -> Result<Exit, CliError> {
    let BenchCommand::Tasks(args) = command;
    let json = args.json;
    let report = bench::tasks(&args.into(), console).await?;
    if json {
        console.json(&report.json())?;
    } else {
        for line in report.lines() {
            console.line(&line)?;
        }
    }
    Ok(Exit::Done)
}

impl From<TasksArgs> for Plan {
    fn from(args: TasksArgs) -> Self {
        Plan {
            window: Duration::from_secs(args.seconds),
            connections: args.connections.into(),
            in_flight: args.in_flight.into(),
            daemons: args.daemons.into(),
            slots: args.slots,
            max_open: args
                .max_open
                .unwrap_or(2 * u32::from(args.daemons) * args.slots),
            rate: args.rate,
            parent: args.data.unwrap_or_else(bench::default_parent),
        }
    }
}
