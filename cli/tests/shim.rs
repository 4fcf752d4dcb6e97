//! Measures the shim of the released executable: ready within 5 ms after its start, less than 3
//! MiB of private memory. This includes the allocator, everything else that is linked in, and a
//! large prompt that was passed on.

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
/// A debug build is several times as large, and most of the start time is spent mapping the
/// executable.
const MAX_START_TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 15 } else { 5 });
const MAX_PRIVATE_KIB: u64 = 3 * 1024;

struct ShimProcess {
    process: Child,
    stream: UnixStream,
    decoder: MessageDecoder,
    _dir: TempDir,
}

impl ShimProcess {
    /// Starts a shim as a daemon does, and exchanges greetings.
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (stream, shim_end) = UnixStream::pair().expect("a socket pair");
        stream
            .set_read_timeout(Some(READ_TIMEOUT))
            .expect("a read timeout");
        let process = Command::new(env!("CARGO_BIN_EXE_baton"))
            .arg(SHIM_ARGUMENT)
            .current_dir(dir.path())
            .env_clear()
            .envs(SHIM_ENVIRONMENT)
            .stdin(OwnedFd::from(shim_end))
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
        self.stream.write_all(&out).expect("the shim is running");
    }

    fn wait_for(&mut self, matches: impl Fn(&from_shim::Message) -> bool) {
        loop {
            let message = self
                .decoder
                .next_message::<FromShim>()
                .expect("the protocol");
            match message.and_then(|message| message.message) {
                Some(message) if matches(&message) => return,
                Some(_) => {}
                None => {
                    let mut bytes = [0; 4096];
                    match self.stream.read(&mut bytes) {
                        Ok(length) if length > 0 => self.decoder.feed(&bytes[..length]),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        other => panic!("the shim sent no further message: {other:?}"),
                    }
                }
            }
        }
    }
}

/// Anonymous memory: pages that are not shared and not backed by a file.
fn private_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.expect("the shim is running");
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

/// Extra time on busy machines.
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

/// Other load can only slow a start down, so the fastest of many starts is the shim's own time.
#[test]
fn a_shim_of_the_real_executable_starts_within_its_limit() {
    let quickest = (0..START_SAMPLES)
        .map(|_| start_time())
        .min()
        .expect("starts");
    println!("from start to presence: {quickest:?}");
    assert!(quickest < MAX_START_TIME + timing_slack(), "{quickest:?}");
}

#[test]
fn a_shim_of_the_real_executable_uses_less_than_three_mebibytes() {
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
    println!("private memory: {own} KiB");
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

/// The first line from a pipe.
fn first_line(pipe: impl Read) -> String {
    let mut line = String::new();
    let read = BufReader::new(pipe).read_line(&mut line);
    read.expect("the process prints a line");
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
        // The name may contain any character, so fields are counted after its closing parenthesis.
        let mut fields = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest)
            .split(' ');
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        fields.nth(2) == Some(&parent.to_string())
            && arguments.split(|byte| *byte == 0).nth(1) == Some(SHIM_ARGUMENT.as_bytes())
    })
    .collect()
}

/// Here the daemon starts the shim, with the environment that keeps it small.
#[test]
fn a_shim_that_a_daemon_starts_uses_less_than_three_mebibytes() {
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
        // The shim's child dies with it.
        let killed = Command::new("kill")
            .args(["-KILL", &shim.to_string()])
            .status();
        assert!(killed.expect("kill is there").success());
    }
    for process in [&mut follow, &mut up] {
        process.kill().expect("it runs");
        process.wait().expect("a child can be waited for");
    }
    println!("private memory under a daemon: {own:?} KiB");
    assert!(
        matches!(own[..], [own] if own < MAX_PRIVATE_KIB),
        "{own:?} KiB"
    );
}
