//! The executable under test as processes: relays that are killed and restarted, daemons, and
//! single commands.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::client::test_client::TestClient;
use crate::host::process_lifetime::send_signal;
use crate::host::test_boot_id::BOOT_FILE;
use crate::host::test_clock::CLOCK_FILE;
use crate::network::ports::unused_port;
use crate::servers::embedded_relay::read_admin_token;
use crate::wait::wait_within;

/// The executable, with an environment that is independent of the developer's.
#[derive(Clone, Copy, Debug)]
pub struct BatonExecutable {
    program: &'static str,
    /// Contains the offsets that a test adds to the system's clocks.
    clock_file: Option<&'static Path>,
    /// Contains the boot id that replaces the kernel's.
    boot_id_file: Option<&'static Path>,
    /// Receives the log of all its processes.
    log_file: Option<&'static Path>,
}

/// Output and exit code of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// The only line of stdout as JSON.
    pub fn stdout_json(&self) -> Value {
        serde_json::from_str(self.stdout.trim())
            .unwrap_or_else(|error| panic!("stdout is one JSON object ({error}): {self:?}"))
    }
}

impl BatonExecutable {
    pub const fn new(program: &'static str) -> Self {
        Self {
            program,
            clock_file: None,
            boot_id_file: None,
            log_file: None,
        }
    }

    /// Its processes log at the finest level to this file.
    pub fn logging_to(self, file: PathBuf) -> Self {
        let file: &'static PathBuf = Box::leak(Box::new(file));
        Self {
            log_file: Some(file),
            ..self
        }
    }

    pub const fn program(self) -> &'static str {
        self.program
    }

    pub(crate) fn with_boot_id_file(self, file: PathBuf) -> Self {
        let file: &'static PathBuf = Box::leak(Box::new(file));
        Self {
            boot_id_file: Some(file),
            ..self
        }
    }

    /// The path is leaked so that the struct stays `Copy`.
    pub(crate) fn with_clock_file(self, file: PathBuf) -> Self {
        let file: &'static PathBuf = Box::leak(Box::new(file));
        Self {
            clock_file: Some(file),
            ..self
        }
    }

    pub fn command(self, data: &Path) -> Command {
        self.command_with_prefix(data, &[])
    }

    /// Started through a wrapper program.
    pub fn command_with_prefix(self, data: &Path, wrapper: &[&str]) -> Command {
        let mut arguments = wrapper.iter().copied().chain([self.program]);
        let mut command = Command::new(arguments.next().unwrap_or(self.program));
        command
            .args(arguments)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs(self.clock_file.map(|file| (CLOCK_FILE, file)))
            .envs(self.boot_id_file.map(|file| (BOOT_FILE, file)))
            .env("HOME", data)
            .env("BATON_DATA", data)
            .env("RUST_LOG", self.log_level())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn log_level(self) -> String {
        let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
        self.log_file.map_or(wanted, |_| "trace".to_owned())
    }

    /// Runs one command to its end.
    pub async fn run(self, data: &Path, arguments: &[&str]) -> CommandOutput {
        let output = self.command(data).args(arguments).output();
        let output = wait_within(&format!("baton {arguments:?} to end"), output).await;
        let output = output.expect("the executable can be started");
        CommandOutput {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A relay as a process. It can be killed by force and started again on the same data and port.
#[derive(Debug)]
pub struct RelayProcess {
    baton: BatonExecutable,
    child: Child,
    listen: String,
    /// Additional arguments, the same at each start.
    arguments: Vec<String>,
    admin: TestClient,
    data: PathBuf,
    /// Removed with the relay, unless the test owns the directory.
    _dir: Option<TempDir>,
    /// The wrapper program and its arguments.
    command_prefix: Vec<String>,
}

impl RelayProcess {
    pub async fn start(baton: BatonExecutable) -> Self {
        Self::start_with(baton, &[]).await
    }

    pub async fn start_with(baton: BatonExecutable, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        Self::start_on(baton, dir, arguments).await
    }

    /// On a directory that may contain data already.
    pub async fn start_on(baton: BatonExecutable, dir: TempDir, arguments: &[&str]) -> Self {
        let data = dir.path().to_owned();
        let mut relay = Self::start_with_prefix(baton, &[], (&data, &data), arguments).await;
        relay._dir = Some(dir);
        relay
    }

    /// Through a wrapper program, on a directory that outlives the relay. The test reaches that
    /// directory by another path (`seen`).
    pub async fn start_with_prefix(
        baton: BatonExecutable,
        wrapper: &[String],
        (data, seen): (&Path, &Path),
        arguments: &[&str],
    ) -> Self {
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        let listen = format!("127.0.0.1:{}", unused_port());
        let child = spawn_relay(baton, data, &as_str_slice(wrapper), &listen, &arguments).await;
        let admin = TestClient::new(&format!("http://{listen}"), &read_admin_token(seen));
        Self {
            baton,
            child,
            listen,
            arguments,
            admin,
            data: data.to_owned(),
            _dir: None,
            command_prefix: wrapper.to_owned(),
        }
    }

    pub fn admin(&self) -> &TestClient {
        &self.admin
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the relay runs")
    }

    /// kill -9; returns when the process has ended.
    pub async fn kill(&mut self) {
        self.child.start_kill().expect("the relay runs");
        let status = wait_within("the killed relay to end", self.child.wait()).await;
        status.expect("a child can be waited for");
    }

    /// Waits until it exits by itself.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        let status = wait_within("the relay to end by itself", self.child.wait()).await;
        status.expect("a child can be waited for")
    }

    /// Starts it again with the same address and data.
    pub async fn start_again(&mut self) {
        let (data, wrapper) = (&self.data, as_str_slice(&self.command_prefix));
        self.child = spawn_relay(self.baton, data, &wrapper, &self.listen, &self.arguments).await;
    }

    /// Starts it again with additional arguments for this start only.
    pub async fn start_again_with(&mut self, more: &[&str]) {
        let more = more.iter().map(|argument| (*argument).to_owned());
        let arguments: Vec<String> = self.arguments.iter().cloned().chain(more).collect();
        let wrapper = as_str_slice(&self.command_prefix);
        self.child = spawn_relay(self.baton, &self.data, &wrapper, &self.listen, &arguments).await;
    }

    /// A start that the relay is expected to refuse.
    pub async fn try_start_again(&self) -> CommandOutput {
        let arguments = ["relay", "--listen", &self.listen];
        self.baton.run(&self.data, &arguments).await
    }

    pub async fn terminate(&mut self) -> ExitStatus {
        terminate(&mut self.child).await
    }
}

fn as_str_slice(wrapper: &[String]) -> Vec<&str> {
    wrapper.iter().map(String::as_str).collect()
}

/// Through a wrapper program, if there is one.
pub(crate) async fn spawn_relay(
    baton: BatonExecutable,
    data: &Path,
    wrapper: &[&str],
    listen: &str,
    arguments: &[String],
) -> Child {
    let mut command = baton.command_with_prefix(data, wrapper);
    let child = command
        .args(["relay", "--listen", listen])
        .args(arguments)
        .spawn();
    let mut child = child.expect("the executable can be started");
    wait_for_log_line(&mut child, "listening on", baton.log_file).await;
    child
}

/// Reads stderr until a line contains `text`, then keeps reading so that the pipe never fills.
async fn wait_for_log_line(child: &mut Child, text: &str, log: Option<&'static Path>) {
    let stderr = child.stderr.take().expect("stderr is piped");
    let mut lines = BufReader::new(stderr).lines();
    let mut log_lines = Vec::new();
    let found = async {
        while let Ok(Some(line)) = lines.next_line().await {
            let found = line.contains(text);
            append_to_log(log, &line);
            log_lines.push(line);
            if found {
                return true;
            }
        }
        false
    };
    if !wait_within(&format!("a line with {text:?}"), found).await {
        panic!("the process ended early: {log_lines:#?}");
    }
    tokio::spawn(drain_pipe(lines.into_inner(), log));
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(drain_pipe(stdout, log));
    }
}

/// For debugging: with `BATON_TEST_LOG` set, the processes' log is printed.
async fn drain_pipe(pipe: impl AsyncRead + Unpin, log: Option<&'static Path>) {
    let shown = std::env::var_os("BATON_TEST_LOG").is_some();
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        append_to_log(log, &line);
        if shown {
            print_line(&line);
        }
    }
}

/// Several processes may share a file, so each line is one write.
fn append_to_log(log: Option<&Path>, line: &str) {
    if let Some(log) = log {
        let mut file = File::options().create(true).append(true).open(log);
        let written = file.as_mut().map(|file| writeln!(file, "{line}"));
        // The test may have ended and removed its directory.
        drop(written);
    }
}

#[expect(clippy::print_stderr, reason = "only if BATON_TEST_LOG is set")]
fn print_line(line: &str) {
    eprintln!("{line}");
}

/// A daemon as a process that accepts any command.
#[derive(Debug)]
pub struct DaemonProcess {
    child: Child,
    pub data: PathBuf,
}

impl DaemonProcess {
    /// Its files are under `dir`, which outlives the daemon. Its processes end with it when it
    /// is stopped.
    pub async fn start(
        baton: BatonExecutable,
        dir: &Path,
        name: &str,
        url: &str,
        token: &str,
    ) -> Self {
        Self::start_with(baton, dir, name, (url, token), &[]).await
    }

    /// With additional arguments, which may override the defaults.
    pub async fn start_with(
        baton: BatonExecutable,
        dir: &Path,
        name: &str,
        (url, token): (&str, &str),
        more: &[&str],
    ) -> Self {
        Self::start_with_prefix(baton, dir, name, (url, token), &[], more).await
    }

    /// The same through a wrapper program that executes it.
    pub async fn start_with_prefix(
        baton: BatonExecutable,
        dir: &Path,
        name: &str,
        (url, token): (&str, &str),
        wrapper: &[&str],
        more: &[&str],
    ) -> Self {
        let data = dir.join(name);
        std::fs::create_dir_all(&data).expect("a directory can be created");
        let token_file = data.join("credential");
        std::fs::write(&token_file, token).expect("a file can be written");
        let usual = [["--slots", "4"], ["--drain", "5s"], ["--hold", "0s"]];
        let usual = usual.iter().filter(|[flag, _]| !more.contains(flag));
        Self::start_in_directory(baton, &data, wrapper, |command| {
            command
                .args(["daemon", "--relay", url, "--name", name])
                .args(usual.flatten())
                .args(["--allow-command", "--token-file"])
                .arg(&token_file)
                .args(more);
        })
        .await
    }

    /// With its directory and arguments, through a wrapper program if there is one.
    pub(crate) async fn start_in_directory(
        baton: BatonExecutable,
        data: &Path,
        wrapper: &[&str],
        arguments: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = baton.command_with_prefix(data, wrapper);
        arguments(&mut command);
        let child = command.current_dir(data).spawn();
        let mut child = child.expect("the executable can be started");
        wait_for_log_line(&mut child, "baton daemon", baton.log_file).await;
        let data = data.to_owned();
        Self { child, data }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the daemon runs")
    }

    /// Whether its outbox is empty: the relay has acknowledged every frame of every attempt.
    pub fn has_empty_outbox(&self) -> bool {
        let attempt_dirs = std::fs::read_dir(self.data.join("attempts"));
        attempt_dirs.is_ok_and(|mut attempt_dirs| attempt_dirs.next().is_none())
    }

    pub async fn terminate(&mut self) -> ExitStatus {
        terminate(&mut self.child).await
    }

    pub async fn kill(&mut self) {
        self.child.start_kill().expect("the daemon runs");
        let status = wait_within("the killed daemon to end", self.child.wait()).await;
        status.expect("a child can be waited for");
    }
}

async fn terminate(child: &mut Child) -> ExitStatus {
    send_signal(child.id().expect("the process runs"), Signal::TERM);
    let status = wait_within("the process to end after TERM", child.wait()).await;
    status.expect("a child can be waited for")
}
