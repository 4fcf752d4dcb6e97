//! A program that is nothing but a shim. Called with `BENT_CLOCK`, its clock is ahead by what the file `ahead` in its
//! directory says: milliseconds that the machine was asleep, or a word that makes no sense, which breaks it.

use std::process::ExitCode;

use baton_daemon::Clock;

fn main() -> ExitCode {
    let clock = if std::env::var_os("BENT_CLOCK").is_some() {
        Clock::offset(ahead_ms, || 0)
    } else {
        Clock::boot()
    };
    baton_daemon::shim::main_if_asked(&clock).unwrap_or(ExitCode::FAILURE)
}

fn ahead_ms() -> u64 {
    let text = std::fs::read_to_string("ahead").unwrap_or_else(|_| "0".into());
    text.trim().parse().expect("a number of milliseconds")
}
