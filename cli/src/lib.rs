//! The `baton` command line: parses, connects, calls, prints. Every command is one file in `commands/`, and thin: decisions
//! about tasks live in the relay, decisions about processes in the daemon.

mod args;
mod client;
mod clock;
#[cfg(test)]
mod command_reference;
mod commands;
#[cfg(test)]
mod commands_in_documents;
pub mod error;
mod follow;
mod mcp;
mod render;
mod server;

use std::process::ExitCode;

use baton_proto::verbs::VERBS;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::client::discovery::ConnectionArgs;
use crate::commands::CliCommand;
use crate::error::cli_error::CliError;
use crate::error::exit_code::CommandExit;
use crate::render::console::CliConsole;
use crate::render::style::TextTone;

pub use crate::server::start::ServerClocks;

/// Baton hands work to AI agents on your machines, and knows at every moment who holds it.
#[derive(Debug, Parser)]
#[command(name = "baton", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct CliArguments {
    #[command(subcommand)]
    command: CliCommand,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 the task did not complete, or the relay refused; 2 usage error or \
relay unreachable; 3 the task was canceled; 4 the task needs attention; 130 interrupted with Ctrl-C.";

/// Runs one command line to its exit code.
pub fn main() -> ExitCode {
    main_with(ServerClocks::default())
}

/// The same on other clocks than the system's, for executables that tests run. `baton` itself has no switch for it.
pub fn main_with(clocks: ServerClocks) -> ExitCode {
    // First of all: a shim must stay small, and own every descriptor that is open.
    if let Some(code) = baton_daemon::shim::run_if_requested(&clocks.daemon) {
        return code;
    }
    // The allocator asks for pages of 2 MiB, which makes a relay with many idle connections twice as large and none measurably
    // faster. Where the kernel knows no such switch there is nothing to switch off.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    match parse_command_line() {
        Ok((cli, relay)) => run(cli.command, relay.as_ref(), &clocks).into(),
        Err(error) => {
            // Help goes to stdout and may meet a closed pipe, which is no failure.
            drop(error.print());
            if error.use_stderr() {
                CommandExit::Usage.into()
            } else {
                CommandExit::Done.into()
            }
        }
    }
}

/// The command line, with the help of the verbs' own table, and which relay it is about.
fn parse_command_line() -> Result<(CliArguments, Option<ConnectionArgs>), clap::Error> {
    let matches = with_verb_help(CliArguments::command()).try_get_matches()?;
    Ok((
        CliArguments::from_arg_matches(&matches)?,
        ConnectionArgs::from_matches(&matches),
    ))
}

fn with_verb_help(command: clap::Command) -> clap::Command {
    let verbs = VERBS.iter().filter_map(|verb| Some((verb.command?, verb)));
    verbs.fold(command, |command, (name, verb)| {
        command.mut_subcommand(name, |one| one.about(verb.help))
    })
}

fn run(command: CliCommand, relay: Option<&ConnectionArgs>, clocks: &ServerClocks) -> CommandExit {
    let console = CliConsole::default();
    match run_command(command, &console, clocks) {
        Ok(exit) => exit,
        Err(CliError::OutputClosed) => CommandExit::Done,
        Err(error) => {
            let error = match relay {
                Some(relay) => error.with_relay_context(relay),
                None => error,
            };
            let word = console.note_style().paint(TextTone::Bad, "error:");
            console.note(&format!("{word} {error}"));
            error.exit()
        }
    }
}

fn run_command(
    command: CliCommand,
    console: &CliConsole,
    clocks: &ServerClocks,
) -> Result<CommandExit, CliError> {
    let runtime =
        build_runtime(&command).map_err(|error| CliError::local("start the runtime", error))?;
    let reads_stdin = command.reads_stdin();
    let result = runtime.block_on(command.run(console, clocks));
    if reads_stdin {
        // The thread that reads it cannot be called off, and the other end may stay open for ever.
        runtime.shutdown_background();
    }
    result
}

/// Servers and load use all cores; a client asks one question and needs no threads.
fn build_runtime(command: &CliCommand) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = if command.is_server() {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_its_help_line_and_the_verbs_have_that_of_their_table() {
        let command = with_verb_help(CliArguments::command());
        command.clone().debug_assert();
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let about = one.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.is_empty(), "{}", one.get_name());
        }
        let mut shown = 0;
        for (name, verb) in VERBS.iter().filter_map(|verb| Some((verb.command?, verb))) {
            let one = command.find_subcommand(name).expect(name);
            assert_eq!(
                one.get_about().map(ToString::to_string).as_deref(),
                Some(verb.help)
            );
            shown += 1;
        }
        assert!(shown >= 18);
    }
}
