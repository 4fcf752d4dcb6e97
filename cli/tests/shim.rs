//! The figures that a shim promises, of the executable that people install: present within 5 ms of its start, under 3 MiB of
//! memory of its own. The allocator and everything else that is linked into it count; so does a large prompt that has passed through.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use baton_daemon::Clock;
use baton_daemon::shim::framing::{MessageDecoder, encode};
use baton_daemon::shim::{HIGHEST_VERSION, LOWEST_VERSION, SHIM_ARGUMENT, SHIM_ENVIRONMENT};
use baton_proto::worker::{FromShim, Greeting, Launch, Lease, Stdin, ToShim, from_shim, to_shim};
use bytes::BytesMut;
use tempfile::TempDir;

const READ_TIMEOUT: Duration = Duration::from_secs(60);
const START_SAMPLES: usize = 100;
/// A debug build is several times as large, and most of a start is the kernel mapping the executable.
const MAX_START_TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 15 } else { 5 });
const MAX_PRIVATE_KIB: u64 = 3 * 1024;

struct ShimProcess {
    process: Child,
    stream: UnixStream,
    decoder: MessageDecoder,
    _dir: TempDir,
}

impl ShimProcess {
    /// Started as a daemon starts it, and greeted.
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (stream, theirs) = UnixStream::pair().expect("a socket pair");
        stream
            .set_read_timeout(Some(READ_TIMEOUT))
            .expect("a read timeout");
        let process = Command::new(env!("CARGO_BIN_EXE_baton"))
            .arg(SHIM_ARGUMENT)
            .current_dir(dir.path())
            .env_clear()
            .envs(SHIM_ENVIRONMENT)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("the executable starts");
        let mut shim = Self {
            process,
            stream,
            decoder: MessageDecoder::default(),
            _dir: dir,
        };
        shim.send(to_shim::Message::Greeting(Greeting {
            lowest_version: LOWEST_VERSION,
            highest_version: HIGHEST_VERSION,
            instance_id: String::new(),
        }));
        shim.wait_for(|message| matches!(message, from_shim::Message::Presence(_)));
        shim
    }

    fn send(&mut self, message: to_shim::Message) {
        let mut out = BytesMut::new();
        let message = ToShim {
            message: Some(message),
        };
        encode(&message, &mut out).expect("a message of legal size");
        self.stream.write_all(&out).expect("the shim listens");
    }

    fn wait_for(&mut self, wanted: impl Fn(&from_shim::Message) -> bool) {
        loop {
            let message = self
                .decoder
                .next_message::<FromShim>()
                .expect("the protocol");
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
}

/// Pages that no other process shares and no file holds.
fn private_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.expect("the shim is there");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number
        .and_then(|number| number.trim().parse().ok())
        .expect("RssAnon in kB")
}

impl Drop for ShimProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What machines that are busy with other things get on top.
fn timing_slack() -> Duration {
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
    let _shim = ShimProcess::start();
    begun.elapsed()
}

/// Whatever else the machine does can only add to a start, so the quickest of many is what the shim itself takes.
#[test]
fn a_shim_of_the_real_executable_is_present_at_once() {
    let quickest = (0..START_SAMPLES)
        .map(|_| start_time())
        .min()
        .expect("starts");
    println!("from start to presence: {quickest:?}");
    assert!(quickest < MAX_START_TIME + timing_slack(), "{quickest:?}");
}

#[test]
fn a_shim_of_the_real_executable_has_less_than_three_mebibytes_of_its_own() {
    let mut shim = ShimProcess::start();
    let data = vec![b'x'; 1024 * 1024].into();
    let prompt = Stdin {
        id: 1,
        data,
        close: true,
    };
    shim.send(to_shim::Message::Stdin(prompt));
    let in_an_hour = Clock::boot()
        .now()
        .after(Duration::from_secs(3600))
        .as_millis();
    shim.send(to_shim::Message::Launch(Launch {
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
    shim.wait_for(|message| matches!(message, from_shim::Message::Grown(_)));
    let own = private_kib(shim.process.id());
    println!("memory of its own: {own} KiB");
    assert!(own < MAX_PRIVATE_KIB, "{own} KiB");
}

fn baton(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", data)
        .env("BATON_DATA", data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The first line that a pipe holds.
fn first_line(pipe: impl Read) -> String {
    let mut line = String::new();
    let read = BufReader::new(pipe).read_line(&mut line);
    read.expect("the process says something");
    line
}

/// Children of this process that were started as shims.
fn shims_below(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("this machine has /proc");
    let pids = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name may hold anything, so fields are counted after its closing parenthesis.
        let mut fields = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest)
            .split(' ');
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fields.nth(2) == Some(&parent.to_string())
            && words.split(|byte| *byte == 0).nth(1) == Some(SHIM_ARGUMENT.as_bytes())
    })
    .collect()
}

/// The daemon starts it, with all that a shim needs to stay small.
#[test]
fn a_shim_that_the_daemon_starts_has_less_than_three_mebibytes_of_its_own() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path();
    let mut up = baton(data, &["up", "--listen", "127.0.0.1:0"])
        .spawn()
        .expect("the executable starts");
    let listening = first_line(up.stderr.take().expect("stderr is piped"));
    assert!(listening.contains("listening"), "{listening}");
    let script = ["sh", "-c", "echo up; exec sleep 600"];
    let submit = [&["submit", "--follow", "--"], &script[..]].concat();
    let mut follow = baton(data, &submit).spawn().expect("the executable starts");
    assert_eq!(
        first_line(follow.stdout.take().expect("stdout is piped")),
        "up\n"
    );
    let shims = shims_below(up.id());
    let own: Vec<u64> = shims.iter().copied().map(private_kib).collect();
    for shim in shims {
        // Its child dies with it.
        let killed = Command::new("kill")
            .args(["-KILL", &shim.to_string()])
            .status();
        assert!(killed.expect("kill is there").success());
    }
    for process in [&mut follow, &mut up] {
        process.kill().expect("it runs");
        process.wait().expect("a child can be waited for");
    }
    println!("memory of its own, under a daemon: {own:?} KiB");
    assert!(
        matches!(own[..], [own] if own < MAX_PRIVATE_KIB),
        "{own:?} KiB"
    );
}
