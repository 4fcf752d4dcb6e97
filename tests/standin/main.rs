//! The child program of the tests: it executes its arguments in order and never busy-waits.
//!
//! `speak WIRE` makes it a coding agent (`claude`, `app-server`, `exec` or `acp`). It plays the
//! script in `STANDIN_SCRIPT`, or the prompt without it, and accepts the arguments that a
//! daemon gives to the real program. `script.rs` describes scripts. The other arguments:
//!
//! `print N` lines, `tick N MS` (lines with a pause after each), `flood BYTES`, `fail-once
//! FILE`, `count FILE`, `env`, `read` (all of stdin, echoed), `note-term FILE`, `ignore-term`,
//! `grandchild` (in a new session), `orphan` (the same, double-forked), `nap MS`, `pause`
//! (until killed), `exit CODE`, `live SOCKET N MS` (sends its attempt id and each of N lines to
//! the socket before it prints them, and keeps the connection open until it dies).
//! Grandchildren keep stdout open. Without `read`, stdin is never read.

mod script;
mod script_player;
mod stdio_pipes;
mod tool_server;
mod wires;

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::poll;
use rustix::time::{ClockId, Timespec, clock_gettime};
use script_player::AgentWireProtocol;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut stop = TermReaction::Die;
    while let Some(verb) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match verb.as_str() {
            "print" => print_lines(parse_number(&value())),
            "tick" => print_lines_slowly(parse_number(&value()), parse_number(&value())),
            "flood" => print_bytes(parse_number(&value())),
            "count" => append_line(
                &value(),
                &std::env::var("BATON_ATTEMPT_ID").unwrap_or_default(),
            ),
            "fail-once" => {
                if create_marker_file(&value()) {
                    return ExitCode::from(9);
                }
            }
            "env" => print_environment(),
            "read" => echo_stdin(),
            "note-term" => stop = TermReaction::Note(value()),
            "ignore-term" => {
                ignore_term();
                stop = TermReaction::Ignore;
            }
            "grandchild" => spawn_self(&["in-session", "pause"]),
            "orphan" => spawn_self(&["in-session", "leave-behind"]),
            "in-session" => drop(rustix::process::setsid()),
            "leave-behind" => {
                spawn_self(&["ignore-term", "pause"]);
                return ExitCode::SUCCESS;
            }
            "live" => report_to_socket(&value(), parse_number(&value()), parse_number(&value())),
            "nap" => sleep_ms(parse_number(&value())),
            "--version" => print_line(concat!("standin ", env!("CARGO_PKG_VERSION"))),
            "pause" => return wait_for_term(&stop),
            "speak" => return run_agent(&value(), &arguments.collect::<Vec<_>>()),
            "exit" => return ExitCode::from(u8::try_from(parse_number(&value())).unwrap_or(1)),
            other => {
                print_line(&format!("standin: unknown argument {other:?}"));
                return ExitCode::from(2);
            }
        }
    }
    ExitCode::SUCCESS
}

/// Effect of TERM on a pausing child.
enum TermReaction {
    Die,
    Ignore,
    /// Writes the time of the signal to the file, then exits.
    Note(String),
}

fn run_agent(wire: &str, arguments: &[String]) -> ExitCode {
    let script = std::env::var("STANDIN_SCRIPT").ok();
    let script = script.as_deref();
    let mut wire: Box<dyn AgentWireProtocol> = match wire {
        "claude" => Box::new(wires::claude::ClaudeWire::new(arguments, script)),
        "app-server" => Box::new(wires::codex_app_server::CodexAppServerWire::new(script)),
        "exec" => Box::new(wires::codex_exec::CodexExecWire::new(arguments, script)),
        "acp" => Box::new(wires::acp::AcpWire::new(script)),
        other => {
            print_line(&format!("standin: unknown protocol {other:?}"));
            return ExitCode::from(2);
        }
    };
    script_player::play_script(
        &mut *wire,
        script,
        tool_server::server_from_arguments(arguments),
    )
}

/// The value of `--name=value` or `--name value`.
fn argument_value(arguments: &[String], name: &str) -> Option<String> {
    let joined = arguments.iter().find_map(|argument| {
        let rest = argument.strip_prefix(name)?;
        rest.strip_prefix('=').map(str::to_owned)
    });
    let apart = || {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    joined.or_else(apart)
}

/// Text at a path of a message; empty if absent.
fn text_at<'a>(message: &'a Value, path: &str) -> &'a str {
    let found = message.pointer(path).and_then(Value::as_str);
    found.unwrap_or_default()
}

/// Splits in the middle, at a character boundary.
fn split_in_half(text: &str) -> [&str; 2] {
    text.split_at(text.floor_char_boundary(text.len() / 2))
        .into()
}

fn duration_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// From now on TERM has no effect.
fn ignore_term() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be started");
    let inside = runtime.enter();
    let handler = signal(SignalKind::terminate()).expect("TERM can be caught");
    drop(inside);
    // Kept for the life of the process.
    std::mem::forget((runtime, handler));
}

/// Blocks until the process is killed. Signals with a handler have no effect.
fn block_forever() -> ! {
    loop {
        let _ = poll(&mut [], None);
    }
}

fn parse_number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    // The reader may have closed the pipe.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn print_lines(count: u64) {
    (1..=count).for_each(|line| print_line(&format!("line {line}")));
}

fn print_lines_slowly(count: u64, ms: u64) {
    for line in 1..=count {
        print_line(&format!("line {line}"));
        sleep_ms(ms);
    }
}

/// The connection is never closed explicitly: the kernel closes it when the process dies.
fn report_to_socket(socket: &str, count: u64, ms: u64) {
    let attempt = std::env::var("BATON_ATTEMPT_ID").unwrap_or_default();
    let stream = UnixStream::connect(socket);
    let mut stream = stream.expect("the test listens while children run");
    let mut send_line = |line: &str| stream.write_all(format!("{line}\n").as_bytes());
    send_line(&attempt).expect("the test listens");
    for line in 1..=count {
        let line = format!("{attempt} {line}");
        send_line(&line).expect("the test listens");
        print_line(&line);
        sleep_ms(ms);
    }
    std::mem::forget(stream);
}

fn print_bytes(bytes: u64) {
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
    all.iter().for_each(|line| print_line(line));
}

fn echo_stdin() {
    let mut text = String::new();
    let _ = std::io::stdin().read_to_string(&mut text);
    print_line(&text);
}

/// One short write with O_APPEND, so that lines of several children never mix.
fn append_line(file: &str, line: &str) {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let mut opened = opened.expect("the test names a file that can be written");
    opened
        .write_all(format!("{line}\n").as_bytes())
        .expect("the test names a file that can be written");
}

fn create_marker_file(file: &str) -> bool {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)
        .is_ok()
}

fn spawn_self(arguments: &[&str]) {
    let program = std::env::current_exe().expect("the path of the executable is known");
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .spawn();
    drop(child.expect("a child can be started"));
}

fn sleep_ms(ms: u64) {
    let span = Timespec {
        tv_sec: i64::try_from(ms / 1_000).unwrap_or(0),
        tv_nsec: i64::try_from(ms % 1_000 * 1_000_000).unwrap_or(0),
    };
    // The wait simulates work; there is no event to wait for.
    let _ = poll(&mut [], Some(&span));
}

fn wait_for_term(stop: &TermReaction) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be started");
    runtime.block_on(async {
        match stop {
            TermReaction::Die => std::future::pending().await,
            TermReaction::Ignore => {
                let _handler = signal(SignalKind::terminate()).expect("TERM can be caught");
                print_line("pausing");
                std::future::pending().await
            }
            TermReaction::Note(file) => {
                let mut term = signal(SignalKind::terminate()).expect("TERM can be caught");
                print_line("pausing");
                term.recv().await;
                let now = clock_gettime(ClockId::Realtime);
                append_line(
                    file,
                    &(now.tv_sec * 1_000 + now.tv_nsec / 1_000_000).to_string(),
                );
                ExitCode::SUCCESS
            }
        }
    })
}
