//! The figures that a shim promises, of the executable that people install: present within 5 ms of its start, under 3 MiB of
//! memory of its own. The allocator and everything else that is linked into it count; so does a large prompt that has passed through.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use baton_daemon::Clock;
use baton_daemon::shim::framing::{Decoder, encode};
use baton_daemon::shim::{ARGUMENT, ENVIRONMENT, HIGHEST_VERSION, LOWEST_VERSION};
use baton_proto::worker::{FromShim, Greeting, Launch, Lease, Stdin, ToShim, from_shim, to_shim};
use bytes::BytesMut;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const STARTS: usize = 100;
/// A debug build is several times as large, and most of a start is the kernel mapping the executable.
const START: Duration = Duration::from_millis(if cfg!(debug_assertions) { 15 } else { 5 });
const OWN_KIB: u64 = 3 * 1024;

struct Shim {
    process: Child,
    stream: UnixStream,
    decoder: Decoder,
    _dir: TempDir,
}

impl Shim {
    /// Started as a daemon starts it, and greeted.
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (stream, theirs) = UnixStream::pair().expect("a socket pair");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a read timeout");
        let process = Command::new(env!("CARGO_BIN_EXE_baton"))
            .arg(ARGUMENT)
            .current_dir(dir.path())
            .env_clear()
            .envs(ENVIRONMENT)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("the executable starts");
        let mut shim = Self {
            process,
            stream,
            decoder: Decoder::default(),
            _dir: dir,
        };
        shim.say(to_shim::Message::Greeting(Greeting {
            lowest_version: LOWEST_VERSION,
            highest_version: HIGHEST_VERSION,
            instance_id: String::new(),
        }));
        shim.until(|message| matches!(message, from_shim::Message::Presence(_)));
        shim
    }

    fn say(&mut self, message: to_shim::Message) {
        let mut out = BytesMut::new();
        let message = ToShim {
            message: Some(message),
        };
        encode(&message, &mut out).expect("a message of legal size");
        self.stream.write_all(&out).expect("the shim listens");
    }

    fn until(&mut self, wanted: impl Fn(&from_shim::Message) -> bool) {
        loop {
            let message = self.decoder.take::<FromShim>().expect("the protocol");
            match message.and_then(|message| message.message) {
                Some(message) if wanted(&message) => return,
                Some(_) => {}
                None => {
                    let mut bytes = [0; 4096];
                    match self.stream.read(&mut bytes) {
                        Ok(length) if length > 0 => self.decoder.feed(&bytes[..length]),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        other => panic!("the shim says no more: {other:?}"),
                    }
                }
            }
        }
    }

    /// Pages that no other process shares and no file holds.
    fn own_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the shim is there");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        number
            .and_then(|number| number.trim().parse().ok())
            .expect("RssAnon in kB")
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What machines that are busy with other things get on top.
fn slack() -> Duration {
    let widened = std::env::var("BATON_TIMING_SLACK_MS").ok();
    let ms = widened.map(|ms| ms.parse().expect("BATON_TIMING_SLACK_MS is a number"));
    Duration::from_millis(ms.unwrap_or(0))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a measurement from outside the program"
)]
fn start_time() -> Duration {
    let begun = Instant::now();
    let _shim = Shim::start();
    begun.elapsed()
}

/// Whatever else the machine does can only add to a start, so the quickest of many is what the shim itself takes.
#[test]
fn a_shim_of_the_real_executable_is_present_at_once() {
    let quickest = (0..STARTS).map(|_| start_time()).min().expect("starts");
    println!("from start to presence: {quickest:?}");
    assert!(quickest < START + slack(), "{quickest:?}");
}

#[test]
fn a_shim_of_the_real_executable_has_less_than_three_mebibytes_of_its_own() {
    let mut shim = Shim::start();
    let data = vec![b'x'; 1024 * 1024].into();
    let prompt = Stdin {
        id: 1,
        data,
        close: true,
    };
    shim.say(to_shim::Message::Stdin(prompt));
    let in_an_hour = Clock::boot()
        .now()
        .after(Duration::from_secs(3600))
        .as_millis();
    shim.say(to_shim::Message::Launch(Launch {
        attempt_id: "figures".into(),
        program: "/bin/sh".into(),
        args: vec![
            "-c".into(),
            "cat >/dev/null; echo read; exec sleep 600".into(),
        ],
        cwd: "/".into(),
        lease: Some(Lease {
            term_at_ms: in_an_hour,
            kill_at_ms: in_an_hour,
            limit_ms: in_an_hour,
            granted_ms: 0,
        }),
        ..Launch::default()
    }));
    shim.until(|message| matches!(message, from_shim::Message::Grown(_)));
    let own = shim.own_kib();
    println!("memory of its own: {own} KiB");
    assert!(own < OWN_KIB, "{own} KiB");
}
