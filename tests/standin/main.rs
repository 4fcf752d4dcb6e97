//! The child program of the tests: behaves as its arguments say, in their order, and never busy-waits.
//!
//! `print N` lines, `tick N MS` (lines with a pause after each), `flood BYTES`, `fail-once FILE`, `count FILE`, `env`, `read` (all of stdin, echoed), `note-term FILE`,
//! `ignore-term`, `grandchild` (in a session of its own), `orphan` (the same, double-forked), `nap MS`, `pause` (until
//! killed), `exit CODE`, `live SOCKET N MS` (tells who it is and each of N lines before it prints it, and holds the
//! connection as long as it lives). Grandchildren hold stdout open. Without `read`, stdin is never read.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};

use rustix::event::poll;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut stop = Stop::Die;
    while let Some(verb) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match verb.as_str() {
            "print" => print_lines(number(&value())),
            "tick" => tick(number(&value()), number(&value())),
            "flood" => flood(number(&value())),
            "count" => append(
                &value(),
                &std::env::var("BATON_ATTEMPT_ID").unwrap_or_default(),
            ),
            "fail-once" => {
                if first_time(&value()) {
                    return ExitCode::from(9);
                }
            }
            "env" => print_environment(),
            "read" => echo(),
            "note-term" => stop = Stop::Note(value()),
            "ignore-term" => stop = Stop::Ignore,
            "grandchild" => spawn(&["in-session", "pause"]),
            "orphan" => spawn(&["in-session", "leave-behind"]),
            "in-session" => drop(rustix::process::setsid()),
            "leave-behind" => {
                spawn(&["ignore-term", "pause"]);
                return ExitCode::SUCCESS;
            }
            "live" => live(&value(), number(&value()), number(&value())),
            "nap" => nap(number(&value())),
            "pause" => return pause(&stop),
            "exit" => return ExitCode::from(u8::try_from(number(&value())).unwrap_or(1)),
            other => {
                say(&format!("standin knows no {other:?}"));
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::SUCCESS
}

/// What TERM does to a pausing child.
enum Stop {
    Die,
    Ignore,
    /// Writes the time at which it came, then ends.
    Note(String),
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A closed pipe is the reader's choice.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn print_lines(count: u64) {
    (1..=count).for_each(|line| say(&format!("line {line}")));
}

fn tick(count: u64, ms: u64) {
    for line in 1..=count {
        say(&format!("line {line}"));
        nap(ms);
    }
}

/// Whoever listens learns of its end from the kernel: the connection is never closed by it.
fn live(socket: &str, count: u64, ms: u64) {
    let attempt = std::env::var("BATON_ATTEMPT_ID").unwrap_or_default();
    let told = UnixStream::connect(socket);
    let mut told = told.expect("the test listens as long as anybody lives");
    let mut tell = |line: &str| told.write_all(format!("{line}\n").as_bytes());
    tell(&attempt).expect("the test listens");
    for line in 1..=count {
        let line = format!("{attempt} {line}");
        tell(&line).expect("the test listens");
        say(&line);
        nap(ms);
    }
    std::mem::forget(told);
}

fn flood(bytes: u64) {
    let mut out = std::io::stdout().lock();
    let line = [b'x'; 1023];
    for _ in 0..bytes / 1024 {
        if out
            .write_all(&line)
            .and_then(|()| out.write_all(b"\n"))
            .is_err()
        {
            return;
        }
    }
}

fn print_environment() {
    let mut all: Vec<String> = std::env::vars().map(|(k, v)| format!("{k}={v}")).collect();
    all.sort();
    all.iter().for_each(|line| say(line));
}

fn echo() {
    let mut text = String::new();
    let _ = std::io::stdin().read_to_string(&mut text);
    say(&text);
}

/// One short write with O_APPEND: lines of several children never mix.
fn append(file: &str, line: &str) {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let mut opened = opened.expect("the test names a file that can be written");
    opened
        .write_all(format!("{line}\n").as_bytes())
        .expect("the test names a file that can be written");
}

fn first_time(file: &str) -> bool {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)
        .is_ok()
}

fn spawn(arguments: &[&str]) {
    let program = std::env::current_exe().expect("a program knows its path");
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn();
    drop(child.expect("a child can be started"));
}

fn nap(ms: u64) {
    let span = Timespec {
        tv_sec: i64::try_from(ms / 1_000).unwrap_or(0),
        tv_nsec: i64::try_from(ms % 1_000 * 1_000_000).unwrap_or(0),
    };
    // Nothing to wait for but the time: a stand-in for work.
    let _ = poll(&mut [], Some(&span));
}

fn pause(stop: &Stop) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be started");
    runtime.block_on(async {
        match stop {
            Stop::Die => std::future::pending().await,
            Stop::Ignore => {
                let _handler = signal(SignalKind::terminate()).expect("TERM can be caught");
                say("pausing");
                std::future::pending().await
            }
            Stop::Note(file) => {
                let mut term = signal(SignalKind::terminate()).expect("TERM can be caught");
                say("pausing");
                term.recv().await;
                let now = clock_gettime(ClockId::Realtime);
                append(
                    file,
                    &(now.tv_sec * 1_000 + now.tv_nsec / 1_000_000).to_string(),
                );
                ExitCode::SUCCESS
            }
        }
    })
}
