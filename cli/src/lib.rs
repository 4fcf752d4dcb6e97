//! The `baton` command line: parses flags, connects, calls and prints. Every command is a short
//! file in `commands/`. The relay decides about tasks, the daemon about processes.

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

/// Baton dispatches tasks to AI agents on your machines and tracks who holds each of them.
#[derive(Debug, Parser)]
#[command(name = "baton", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct CliArguments {
    #[command(subcommand)]
    command: CliCommand,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 the task did not complete, or the relay refused the request; 2 usage \
error or relay unreachable; 3 the task was canceled; 4 the task needs attention; 130 interrupted with Ctrl-C.";

/// Runs one command line and returns its exit code.
pub fn main() -> ExitCode {
    main_with(ServerClocks::default())
}

/// Like [`main`] with other clocks than the system's, for the executables of tests. `baton` itself
/// has no switch for it.
pub fn main_with(clocks: ServerClocks) -> ExitCode {
    // This comes first: a shim must stay small and must own every open descriptor.
    if let Some(code) = baton_daemon::shim::run_if_requested(&clocks.daemon) {
        return code;
    }
    // The allocator would use pages of 2 MiB, which doubles the memory of a relay with many idle
    // connections and makes none measurably faster. A kernel without this switch has no such pages.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    match parse_command_line() {
        Ok((cli, relay)) => run(cli.command, relay.as_ref(), &clocks).into(),
        Err(error) => {
            // Help is printed to stdout; a closed pipe is not an error.
            drop(error.print());
            if error.use_stderr() {
                CommandExit::Usage.into()
            } else {
                CommandExit::Done.into()
            }
        }
    }
}

/// Parses the command line. Also returns the connection flags, for error texts.
fn parse_command_line() -> Result<(CliArguments, Option<ConnectionArgs>), clap::Error> {
    let matches = with_verb_help(CliArguments::command()).try_get_matches()?;
    Ok((
        CliArguments::from_arg_matches(&matches)?,
        ConnectionArgs::from_matches(&matches),
    ))
}

/// Sets the help lines of the verb table, without their full stop: clap removes it from all others.
fn with_verb_help(command: clap::Command) -> clap::Command {
    let verbs = VERBS.iter().filter_map(|verb| Some((verb.command?, verb)));
    verbs.fold(command, |command, (name, verb)| {
        command.mut_subcommand(name, |one| one.about(verb.help.trim_end_matches('.')))
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
            let label = console.note_style().paint(TextTone::Bad, "error:");
            console.note(&format!("{label} {error}"));
            error.exit()
        }
    }
}

fn run_command(
    command: CliCommand,
    console: &CliConsole,
    clocks: &ServerClocks,
) -> Result<CommandExit, CliError> {
    let runtime = build_runtime(&command)
        .map_err(|error| CliError::local("cannot start the async runtime", error))?;
    let reads_stdin = command.reads_stdin();
    let result = runtime.block_on(command.run(console, clocks));
    if reads_stdin {
        // The thread that reads stdin cannot be stopped, and stdin may stay open forever.
        runtime.shutdown_background();
    }
    result
}

/// Servers and benches use all cores; other commands need only one thread.
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
    fn every_command_has_a_help_line_and_verbs_use_their_table() {
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
                verb.help.strip_suffix('.')
            );
            shown += 1;
        }
        assert!(shown >= 18);
    }
}
