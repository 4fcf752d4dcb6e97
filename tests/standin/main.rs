//! The child program of the tests: behaves as its arguments say, in their order, and never busy-waits.
//!
//! `speak WIRE` makes it a coding agent (`claude`, `app-server`, `exec` or `acp`): it plays the script that
//! `STANDIN_SCRIPT` holds, or the prompt where there is none, and takes what a daemon gives the real program as further
//! arguments. `script.rs` says what a script can say. Without it:
//!
//! `print N` lines, `tick N MS` (lines with a pause after each), `flood BYTES`, `fail-once FILE`, `count FILE`, `env`, `read` (all of stdin, echoed), `note-term FILE`,
//! `ignore-term`, `grandchild` (in a session of its own), `orphan` (the same, double-forked), `nap MS`, `pause` (until
//! killed), `exit CODE`, `live SOCKET N MS` (tells who it is and each of N lines before it prints it, and holds the
//! connection as long as it lives). Grandchildren hold stdout open. Without `read`, stdin is never read.

mod acp;
mod app_server;
mod claude;
mod exec;
mod handed;
mod pipes;
mod play;
mod script;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use play::Wire;
use rustix::event::poll;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::Value;
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
            "ignore-term" => {
                ignore_term();
                stop = Stop::Ignore;
            }
            "grandchild" => spawn(&["in-session", "pause"]),
            "orphan" => spawn(&["in-session", "leave-behind"]),
            "in-session" => drop(rustix::process::setsid()),
            "leave-behind" => {
                spawn(&["ignore-term", "pause"]);
                return ExitCode::SUCCESS;
            }
            "live" => live(&value(), number(&value()), number(&value())),
            "nap" => nap(number(&value())),
            "--version" => say(concat!("standin ", env!("CARGO_PKG_VERSION"))),
            "pause" => return pause(&stop),
            "speak" => return speak(&value(), &words.collect::<Vec<_>>()),
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

fn speak(wire: &str, arguments: &[String]) -> ExitCode {
    let script = std::env::var("STANDIN_SCRIPT").ok();
    let script = script.as_deref();
    let mut wire: Box<dyn Wire> = match wire {
        "claude" => Box::new(claude::Claude::new(arguments, script)),
        "app-server" => Box::new(app_server::AppServer::new(script)),
        "exec" => Box::new(exec::Exec::new(arguments, script)),
        "acp" => Box::new(acp::Acp::new(script)),
        other => {
            say(&format!("standin speaks no {other:?}"));
            return ExitCode::from(2);
        }
    };
    play::play(&mut *wire, script, handed::from_arguments(arguments))
}

/// The value of `--name=value` or `--name value`.
fn argument(arguments: &[String], name: &str) -> Option<String> {
    let joined = arguments.iter().find_map(|word| {
        let rest = word.strip_prefix(name)?;
        rest.strip_prefix('=').map(str::to_owned)
    });
    let apart = || {
        let at = arguments.iter().position(|word| word == name)?;
        arguments.get(at + 1).cloned()
    };
    joined.or_else(apart)
}

/// Text at a path of a message; empty when there is none.
fn text<'a>(message: &'a Value, path: &str) -> &'a str {
    let found = message.pointer(path).and_then(Value::as_str);
    found.unwrap_or_default()
}

/// In the middle, between two characters.
fn halves(text: &str) -> [&str; 2] {
    text.split_at(text.floor_char_boundary(text.len() / 2))
        .into()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// From now on TERM does nothing.
fn ignore_term() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be started");
    let inside = runtime.enter();
    let handler = signal(SignalKind::terminate()).expect("TERM can be caught");
    drop(inside);
    // For as long as the process lives.
    std::mem::forget((runtime, handler));
}

/// Until it is killed. Signals that it catches change nothing.
fn stay() -> ! {
    loop {
        let _ = poll(&mut [], None);
    }
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
