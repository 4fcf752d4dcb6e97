//! A daemon for these tests: what it does with a shim. All reads have one deadline that only a
//! hang reaches.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use baton_daemon::shim::framing::{MessageDecoder, encode};
use baton_daemon::shim::{
    REPORT_FILE, SHIM_ARGUMENT, SHIM_ENVIRONMENT, SOCKET_FILE, SPOOL_DIR, read_report,
};
use baton_daemon::spool::{ChildPipe, ReadLimit, SpoolChunk, SpoolReader};
use baton_daemon::{BootTime, Clock};
use baton_proto::v1::LeaseToken;
use baton_proto::worker::{
    Consumed, FromShim, Greeting, Launch, Lease, Presence, Report, Started, Stdin, StdinDone, Stop,
    ToShim, Variable, from_shim, to_shim,
};
use bytes::BytesMut;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
pub(crate) const ATTEMPT: &str = "0190a5b2-0000-7000-8000-000000000001";
pub(crate) const TOKEN: &[u8] = b"a-lease-token-of-thirty-two-byte";

/// A shim process and its directory.
pub(crate) struct ShimFixture {
    dir: TempDir,
    /// The directory as this process sees it, if that differs from the shim's view.
    view: Option<OwnedFd>,
    process: Child,
    pub(crate) wire: ShimWire,
}

impl ShimFixture {
    /// Started and greeted, not launched.
    pub(crate) fn start() -> Self {
        let mut shim = Self::start_silent(|_| {});
        shim.wire.greet();
        shim
    }

    /// Started and not yet greeted; `prepare` may change the command.
    pub(crate) fn start_silent(prepare: impl FnOnce(&mut Command)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (test_end, shim_end) = UnixStream::pair().expect("a socket pair");
        let mut command = Command::new(env!("CARGO_BIN_EXE_shim-under-test"));
        command
            .args([SHIM_ARGUMENT, ATTEMPT])
            .current_dir(dir.path())
            .env_clear()
            .envs(SHIM_ENVIRONMENT);
        prepare(&mut command);
        command
            .stdin(Stdio::from(OwnedFd::from(shim_end)))
            .stdout(Stdio::null());
        let process = command.spawn().expect("the shim can be started");
        Self {
            dir,
            view: None,
            process,
            wire: ShimWire::new(test_end),
        }
    }

    /// The same through another program, which must end by executing its arguments.
    pub(crate) fn start_through(script: &str) -> Self {
        Self::start_silent(|command| {
            let program = command.get_program().to_owned();
            let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            let dir = command.get_current_dir().map(ToOwned::to_owned);
            *command = Command::new("/bin/sh");
            command.args(["-c", script]).arg(program).args(args);
            command.current_dir(dir.expect("a directory")).env_clear();
        })
    }

    /// From now on accesses the directory as the shim sees it.
    pub(crate) fn share_view(&mut self) {
        let seen = format!("/proc/{}/root{}", self.pid(), self.dir.path().display());
        let seen = std::fs::File::open(seen).expect("the shim's directory");
        self.view = Some(seen.into());
    }

    /// Runs a shell script under a lease of ten minutes.
    pub(crate) fn run(script: &str) -> Self {
        let mut shim = Self::start();
        shim.launch(shell(script));
        shim
    }

    pub(crate) fn launch(&mut self, launch: Launch) -> Started {
        self.wire.send(to_shim::Message::Launch(launch));
        self.wire.receive_until(|message| match message {
            from_shim::Message::Started(started) => Some(started),
            _ => None,
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match &self.view {
            Some(view) => format!("/proc/self/fd/{}/{name}", view.as_raw_fd()).into(),
            None => self.dir.path().join(name),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid()).expect("a process id");
        kill_process(pid, signal).expect("the shim is there");
    }

    /// Simulates a suspend of this length, for shims with `BENT_CLOCK`.
    pub(crate) fn advance_clock(&self, ahead: &str) {
        let draft = self.path("ahead.new");
        std::fs::write(&draft, ahead).expect("a small file");
        std::fs::rename(draft, self.path("ahead")).expect("a small file");
    }

    /// A second connection, as a restarted daemon makes it.
    pub(crate) fn connect(&self) -> ShimWire {
        ShimWire::new(UnixStream::connect(self.path(SOCKET_FILE)).expect("the shim listens"))
    }

    /// The daemon disconnects without a message.
    pub(crate) fn disconnect(&mut self) {
        let (unused, _) = UnixStream::pair().expect("a socket pair");
        self.wire = ShimWire::new(unused);
    }

    /// The report that the daemon receives; the same must be on the disk, and the shim gone.
    pub(crate) fn report(&mut self) -> Report {
        let received = self.wire.receive_until(|message| match message {
            from_shim::Message::Report(report) => Some(report),
            _ => None,
        });
        assert_eq!(self.report_on_disk(), Some(received.clone()));
        assert!(self.wait_for_exit().success());
        received
    }

    /// Waits until the shim has exited without a message.
    pub(crate) fn wait_for_exit(&mut self) -> std::process::ExitStatus {
        self.process.wait().expect("the shim is our child")
    }

    pub(crate) fn report_on_disk(&self) -> Option<Report> {
        read_report(&self.path(REPORT_FILE)).expect("the report can be read")
    }

    pub(crate) fn transcript(&self, position: u64) -> FollowedTranscript {
        FollowedTranscript {
            reader: SpoolReader::open(self.path(SPOOL_DIR), position),
            text: Vec::new(),
        }
    }

    /// All output of both pipes, after the end.
    pub(crate) fn whole_text(&self) -> String {
        let mut transcript = self.transcript(0);
        transcript.read(ReadLimit::LastWholeRecord);
        String::from_utf8_lossy(&transcript.text).into_owned()
    }
}

impl Drop for ShimFixture {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The transcript as far as it was read.
pub(crate) struct FollowedTranscript {
    reader: SpoolReader,
    pub(crate) text: Vec<u8>,
}

impl FollowedTranscript {
    pub(crate) fn read(&mut self, upto: ReadLimit) -> Vec<SpoolChunk> {
        let mut chunks = Vec::new();
        while let Some(chunk) = self.reader.next(upto).expect("a transcript without damage") {
            self.text.extend_from_slice(&chunk.bytes);
            chunks.push(chunk);
        }
        chunks
    }

    pub(crate) fn position(&self) -> u64 {
        self.reader.position()
    }

    /// Reads until the child has written a complete line, and returns it.
    pub(crate) fn line(&mut self, wire: &mut ShimWire) -> String {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return String::from_utf8_lossy(&line[..end]).into_owned();
            }
            let end = wire.grown();
            self.read(ReadLimit::Position(end));
        }
    }

    /// A line with process ids.
    pub(crate) fn pids(&mut self, wire: &mut ShimWire) -> Vec<i32> {
        let line = self.line(wire);
        line.split_whitespace()
            .map(|part| part.parse().expect("a process id"))
            .collect()
    }
}

pub(crate) fn text_of(chunks: &[SpoolChunk], kind: ChildPipe) -> String {
    let bytes: Vec<u8> = chunks
        .iter()
        .filter(|chunk| chunk.kind == kind)
        .flat_map(|chunk| chunk.bytes.to_vec())
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One connection to a shim.
pub(crate) struct ShimWire {
    stream: UnixStream,
    decoder: MessageDecoder,
}

impl ShimWire {
    fn new(stream: UnixStream) -> Self {
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        Self {
            stream,
            decoder: MessageDecoder::default(),
        }
    }

    pub(crate) fn send(&mut self, message: to_shim::Message) {
        let message = ToShim {
            message: Some(message),
        };
        let mut out = BytesMut::new();
        encode(&message, &mut out).expect("a short message");
        self.send_raw(&out);
    }

    /// The missing answer reveals a shim that is gone.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next message; `None` when the shim has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<from_shim::Message> {
        loop {
            if let Some(message) = self
                .decoder
                .next_message::<FromShim>()
                .expect("the protocol")
            {
                return Some(message.message.expect("an arm that this version knows"));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(length) => self.decoder.feed(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                // Stopping and continuing this process interrupts the read.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("no message from the shim: {error}"),
            }
        }
    }

    /// The first message that `pick` accepts; others are skipped.
    pub(crate) fn receive_until<T>(
        &mut self,
        mut pick: impl FnMut(from_shim::Message) -> Option<T>,
    ) -> T {
        loop {
            let message = self.receive().expect("the shim closed the connection");
            let shown = format!("{message:?}");
            if let Some(picked) = pick(message) {
                return picked;
            }
            assert!(!shown.starts_with("Report"), "ended too early: {shown}");
        }
    }

    pub(crate) fn greet(&mut self) -> Presence {
        self.send(greeting(1, 1));
        match self.receive() {
            Some(from_shim::Message::Presence(presence)) => presence,
            other => panic!("unexpected {other:?}"),
        }
    }

    pub(crate) fn stdin_done(&mut self) -> StdinDone {
        self.receive_until(|message| match message {
            from_shim::Message::StdinDone(done) => Some(done),
            _ => None,
        })
    }

    pub(crate) fn grown(&mut self) -> u64 {
        self.receive_until(|message| match message {
            from_shim::Message::Grown(grown) => Some(grown.end),
            _ => None,
        })
    }

    pub(crate) fn stdin(&mut self, id: u64, data: &str, close: bool) {
        let data = data.as_bytes().to_vec().into();
        self.send(to_shim::Message::Stdin(Stdin { id, data, close }));
    }

    pub(crate) fn stop(&mut self, kill_in: Duration) {
        let kill_at_ms = now().after(kill_in).as_millis();
        self.send(to_shim::Message::Stop(Stop { kill_at_ms }));
    }

    pub(crate) fn consumed(&mut self, position: u64) {
        self.send(to_shim::Message::Consumed(Consumed { position }));
    }

    pub(crate) fn lease(&mut self, lease: Lease) {
        self.send(to_shim::Message::Lease(lease));
    }
}

pub(crate) fn now() -> BootTime {
    Clock::boot().now()
}

pub(crate) fn greeting(lowest_version: u32, highest_version: u32) -> to_shim::Message {
    to_shim::Message::Greeting(Greeting {
        lowest_version,
        highest_version,
        instance_id: "test".into(),
    })
}

pub(crate) fn lease(term_in: Duration, kill_in: Duration) -> Lease {
    let at = |wait| now().after(wait).as_millis();
    Lease {
        term_at_ms: at(term_in),
        kill_at_ms: at(kill_in),
        limit_ms: at(kill_in + Duration::from_millis(100)),
        granted_ms: 1_000,
    }
}

pub(crate) fn shell(script: &str) -> Launch {
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let variable = |name: &str, value: &str| Variable {
        name: name.as_bytes().to_vec().into(),
        value: value.as_bytes().to_vec().into(),
    };
    Launch {
        attempt_id: ATTEMPT.into(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.as_bytes().to_vec().into()],
        cwd: "/".into(),
        environment: vec![
            variable("PATH", "/usr/local/bin:/usr/bin:/bin"),
            variable("BATON_ATTEMPT_ID", ATTEMPT),
        ],
        lease: Some(lease(minutes(10), minutes(11))),
        token: Some(LeaseToken {
            value: TOKEN.to_vec().into(),
        }),
        cleanup_term_ms: 1_000,
        control_group: Vec::new().into(),
    }
}

/// Dead, or a zombie.
pub(crate) fn is_dead(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| {
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_none_or(|state| state.starts_with(['Z', 'X']))
    })
}

/// Polls until the process is dead: its end sends no event to this test.
pub(crate) fn wait_until_dead(pid: i32) {
    let start = now();
    while !is_dead(pid) {
        assert!(
            start.until(now()) < TEST_TIMEOUT,
            "process {pid} is still alive"
        );
        std::thread::yield_now();
    }
}

/// A named pipe to block a child: reading from it ends when the test writes to it.
pub(crate) fn gate() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let gate = dir.path().join("gate");
    let made = Command::new("mkfifo").arg(&gate).status();
    assert!(made.is_ok_and(|made| made.success()), "mkfifo");
    (dir, gate)
}

/// All files below a directory, to check what must not be there.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => files(&path),
            path if path.is_file() => vec![path],
            _ => Vec::new(),
        })
        .collect()
}
