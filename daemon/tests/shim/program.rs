//! A program that only runs a shim. With `BENT_CLOCK` its clock is ahead by the contents of the
//! file `ahead` in its directory: milliseconds of a suspend, or an invalid text that makes it
//! panic.
//!
//! Called as `knock SOCKET` it is another process instead: it sends a greeting to the shim that
//! listens there, and succeeds if it gets an answer.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use baton_daemon::Clock;
use baton_daemon::shim::framing::encode;
use baton_daemon::shim::{HIGHEST_VERSION, LOWEST_VERSION};
use baton_proto::worker::{Greeting, ToShim, to_shim};
use bytes::BytesMut;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [word, socket] = &arguments[..]
        && word == "knock"
    {
        let is_heard = try_greeting(socket).unwrap_or(false);
        return ExitCode::from(u8::from(!is_heard));
    }
    let clock = if std::env::var_os("BENT_CLOCK").is_some() {
        Clock::offset(ahead_ms, || 0)
    } else {
        Clock::boot()
    };
    baton_daemon::shim::run_if_requested(&clock).unwrap_or(ExitCode::FAILURE)
}

fn ahead_ms() -> u64 {
    let text = std::fs::read_to_string("ahead").unwrap_or_else(|_| "0".into());
    text.trim().parse().expect("a number of milliseconds")
}

fn try_greeting(socket: &OsString) -> io::Result<bool> {
    let mut stream = UnixStream::connect(socket)?;
    let greeting = ToShim {
        message: Some(to_shim::Message::Greeting(Greeting {
            lowest_version: LOWEST_VERSION,
            highest_version: HIGHEST_VERSION,
            instance_id: "stranger".into(),
        })),
    };
    let mut out = BytesMut::new();
    encode(&greeting, &mut out).map_err(io::Error::other)?;
    stream.write_all(&out)?;
    Ok(stream.read(&mut [0; 64])? > 0)
}
