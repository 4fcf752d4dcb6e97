//! The `baton` command line: parses, connects, calls, prints. Every command is one file in `commands/`, and thin: decisions
//! about tasks live in the relay, decisions about processes in the daemon.

mod again;
mod answers;
mod bench;
mod client;
mod clock;
mod commands;
mod console;
mod data;
mod discovery;
#[cfg(test)]
mod documents;
mod duration;
mod errors;
pub mod exit;
mod follow;
mod hints;
mod input_view;
mod inspect;
mod logging;
mod open_files;
mod output_reader;
mod pairs;
mod progress;
mod prompting;
mod rules;
mod sanitize;
#[cfg(test)]
mod scripted_relay;
mod servers;
mod size;
mod stop;
mod style;
mod submission;
mod table;
mod task_flags;
mod task_view;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;
use crate::console::Console;
use crate::errors::CliError;
use crate::exit::Exit;
use crate::style::Tone;

pub use crate::servers::Clocks;

/// Baton hands work to AI agents on your machines, and knows at every moment who holds it.
#[derive(Debug, Parser)]
#[command(name = "baton", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 the task did not complete, or the relay refused; 2 usage error or \
relay unreachable; 3 the task was canceled; 4 the task needs attention; 130 interrupted with Ctrl-C.";

/// Runs one command line to its exit code.
pub fn main() -> ExitCode {
    main_with(Clocks::default())
}

/// The same on other clocks than the system's, for executables that tests run. `baton` itself has no switch for it.
pub fn main_with(clocks: Clocks) -> ExitCode {
    // First of all: a shim must stay small, and own every descriptor that is open.
    if let Some(code) = baton_daemon::shim::main_if_asked(&clocks.daemon) {
        return code;
    }
    match Cli::try_parse() {
        Ok(cli) => run(cli.command, &clocks).into(),
        Err(error) => {
            // Help goes to stdout and may meet a closed pipe, which is no failure.
            drop(error.print());
            if error.use_stderr() {
                Exit::Usage.into()
            } else {
                Exit::Done.into()
            }
        }
    }
}

fn run(command: Command, clocks: &Clocks) -> Exit {
    let console = Console::default();
    let result = runtime(&command)
        .map_err(|error| CliError::local("start the runtime", error))
        .and_then(|runtime| runtime.block_on(command.run(&console, clocks)));
    match result {
        Ok(exit) => exit,
        Err(CliError::OutputClosed) => Exit::Done,
        Err(error) => {
            let word = console.note_style().paint(Tone::Bad, "error:");
            console.note(&format!("{word} {error}"));
            error.exit()
        }
    }
}

/// Servers and load use all cores; a client asks one question and needs no threads.
fn runtime(command: &Command) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = if command.is_server() {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.enable_all().build()
}
