//! A program that is nothing but a shim.

use std::process::ExitCode;

use baton_daemon::Clock;

fn main() -> ExitCode {
    baton_daemon::shim::main_if_asked(&Clock::boot()).unwrap_or(ExitCode::FAILURE)
}
