//! The executable under test as processes: relays that are killed and come back, daemons, and single commands.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::bent_boot::BOOT_FILE;
use crate::bent_clock::CLOCK_FILE;
use crate::client::Client;
use crate::lifetimes::signal;
use crate::patience::within;
use crate::ports::quiet_port;
use crate::relay::read_token;

/// The executable, with an environment that holds nothing of the developer's.
#[derive(Clone, Copy, Debug)]
pub struct Baton {
    program: &'static str,
    /// Holds what a test adds to the system's clocks.
    clock: Option<&'static Path>,
    /// Holds the boot id in place of the kernel's.
    boot: Option<&'static Path>,
    /// Takes all that its processes log.
    log: Option<&'static Path>,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// The only line of stdout as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(self.stdout.trim())
            .unwrap_or_else(|error| panic!("stdout is one JSON object ({error}): {self:?}"))
    }
}

impl Baton {
    pub const fn new(program: &'static str) -> Self {
        Self {
            program,
            clock: None,
            boot: None,
            log: None,
        }
    }

    /// Its processes log all that there is, to the finest level, and a file keeps it.
    pub fn logging_to(self, file: PathBuf) -> Self {
        let file: &'static PathBuf = Box::leak(Box::new(file));
        Self {
            log: Some(file),
            ..self
        }
    }

    pub const fn program(self) -> &'static str {
        self.program
    }

    pub(crate) fn on_boot(self, file: PathBuf) -> Self {
        let file: &'static PathBuf = Box::leak(Box::new(file));
        Self {
            boot: Some(file),
            ..self
        }
    }

    /// Lives as long as the tests do, so that it can be copied like the others.
    pub(crate) fn on_clock(self, file: PathBuf) -> Self {
        let file: &'static PathBuf = Box::leak(Box::new(file));
        Self {
            clock: Some(file),
            ..self
        }
    }

    pub fn command(self, data: &Path) -> Command {
        self.wrapped(data, &[])
    }

    /// Started by way of another program.
    pub fn wrapped(self, data: &Path, wrapper: &[&str]) -> Command {
        let mut words = wrapper.iter().copied().chain([self.program]);
        let mut command = Command::new(words.next().unwrap_or(self.program));
        command
            .args(words)
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs(self.clock.map(|file| (CLOCK_FILE, file)))
            .envs(self.boot.map(|file| (BOOT_FILE, file)))
            .env("HOME", data)
            .env("BATON_DATA", data)
            .env("RUST_LOG", self.level())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn level(self) -> String {
        let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
        self.log.map_or(wanted, |_| "trace".to_owned())
    }

    /// Runs one command to its end.
    pub async fn run(self, data: &Path, arguments: &[&str]) -> Said {
        let output = self.command(data).args(arguments).output();
        let output = within(&format!("baton {arguments:?} to end"), output).await;
        let output = output.expect("the executable can be started");
        Said {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A relay as a process. It can be killed by force and started again on the same data and port.
#[derive(Debug)]
pub struct RelayProcess {
    baton: Baton,
    child: Child,
    listen: String,
    /// More of its command line, the same at each start.
    arguments: Vec<String>,
    admin: Client,
    data: PathBuf,
    /// Removed with it, unless somebody else has it.
    _dir: Option<TempDir>,
    /// By way of which it is started.
    wrapper: Vec<String>,
}

impl RelayProcess {
    pub async fn start(baton: Baton) -> Self {
        Self::start_with(baton, &[]).await
    }

    pub async fn start_with(baton: Baton, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        Self::start_on(baton, dir, arguments).await
    }

    /// On a directory that may hold data already.
    pub async fn start_on(baton: Baton, dir: TempDir, arguments: &[&str]) -> Self {
        let data = dir.path().to_owned();
        let mut relay = Self::start_by(baton, &[], (&data, &data), arguments).await;
        relay._dir = Some(dir);
        relay
    }

    /// By way of another program, on a directory that outlives it; the test sees that directory at another place.
    pub async fn start_by(
        baton: Baton,
        wrapper: &[String],
        (data, seen): (&Path, &Path),
        arguments: &[&str],
    ) -> Self {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let listen = format!("127.0.0.1:{}", quiet_port());
        let child = spawn_relay(baton, data, &words(wrapper), &listen, &arguments).await;
        let admin = Client::new(&format!("http://{listen}"), &read_token(seen));
        Self {
            baton,
            child,
            listen,
            arguments,
            admin,
            data: data.to_owned(),
            _dir: None,
            wrapper: wrapper.to_owned(),
        }
    }

    pub fn admin(&self) -> &Client {
        &self.admin
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the relay runs")
    }

    /// kill -9; returns when the process is gone.
    pub async fn kill(&mut self) {
        self.child.start_kill().expect("the relay runs");
        let status = within("the killed relay to be gone", self.child.wait()).await;
        status.expect("a child can be waited for");
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let status = within("the relay to end by itself", self.child.wait()).await;
        status.expect("a child can be waited for")
    }

    /// Starts it again where it was.
    pub async fn revive(&mut self) {
        let (data, wrapper) = (&self.data, words(&self.wrapper));
        self.child = spawn_relay(self.baton, data, &wrapper, &self.listen, &self.arguments).await;
    }

    /// The same with more on its command line, this once.
    pub async fn revive_with(&mut self, more: &[&str]) {
        let more = more.iter().map(|word| (*word).to_owned());
        let arguments: Vec<String> = self.arguments.iter().cloned().chain(more).collect();
        let wrapper = words(&self.wrapper);
        self.child = spawn_relay(self.baton, &self.data, &wrapper, &self.listen, &arguments).await;
    }

    /// A start that the relay is expected to refuse.
    pub async fn refuses_to_start(&self) -> Said {
        let arguments = ["relay", "--listen", &self.listen];
        self.baton.run(&self.data, &arguments).await
    }

    pub async fn terminate(&mut self) -> ExitStatus {
        terminate(&mut self.child).await
    }
}

fn words(wrapper: &[String]) -> Vec<&str> {
    wrapper.iter().map(String::as_str).collect()
}

/// By way of another program if there is one.
pub(crate) async fn spawn_relay(
    baton: Baton,
    data: &Path,
    wrapper: &[&str],
    listen: &str,
    arguments: &[String],
) -> Child {
    let mut command = baton.wrapped(data, wrapper);
    let child = command
        .args(["relay", "--listen", listen])
        .args(arguments)
        .spawn();
    let mut child = child.expect("the executable can be started");
    await_line(&mut child, "listening on", baton.log).await;
    child
}

/// Reads stderr until a line holds `text`, then keeps reading so that the pipe never fills.
async fn await_line(child: &mut Child, text: &str, log: Option<&'static Path>) {
    let stderr = child.stderr.take().expect("stderr is piped");
    let mut lines = BufReader::new(stderr).lines();
    let mut said = Vec::new();
    let found = async {
        while let Ok(Some(line)) = lines.next_line().await {
            let found = line.contains(text);
            keep(log, &line);
            said.push(line);
            if found {
                return true;
            }
        }
        false
    };
    if !within(&format!("a line with {text:?}"), found).await {
        panic!("the process ended early: {said:#?}");
    }
    tokio::spawn(drain(lines.into_inner(), log));
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(drain(stdout, log));
    }
}

/// Whoever looks for a fault sets `BATON_TEST_LOG` and gets what the processes say.
async fn drain(pipe: impl AsyncRead + Unpin, log: Option<&'static Path>) {
    let shown = std::env::var_os("BATON_TEST_LOG").is_some();
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        keep(log, &line);
        if shown {
            show(&line);
        }
    }
}

/// Lines of several processes may share a file: each is one write.
fn keep(log: Option<&Path>, line: &str) {
    if let Some(log) = log {
        let mut file = File::options().create(true).append(true).open(log);
        let kept = file.as_mut().map(|file| writeln!(file, "{line}"));
        // The test may be over, and its directory gone.
        drop(kept);
    }
}

#[expect(clippy::print_stderr, reason = "only where somebody asked for it")]
fn show(line: &str) {
    eprintln!("{line}");
}

/// A daemon as a process that may run any command.
#[derive(Debug)]
pub struct DaemonProcess {
    child: Child,
    pub data: PathBuf,
}

impl DaemonProcess {
    /// Files go under `dir`, which outlives the daemon. What it runs ends with it when it is stopped.
    pub async fn start(baton: Baton, dir: &Path, name: &str, url: &str, token: &str) -> Self {
        Self::start_with(baton, dir, name, (url, token), &[]).await
    }

    /// With more on its command line, which may take the place of what is usual.
    pub async fn start_with(
        baton: Baton,
        dir: &Path,
        name: &str,
        (url, token): (&str, &str),
        more: &[&str],
    ) -> Self {
        Self::start_under(baton, dir, name, (url, token), &[], more).await
    }

    /// The same by way of another program, which becomes it.
    pub async fn start_under(
        baton: Baton,
        dir: &Path,
        name: &str,
        (url, token): (&str, &str),
        wrapper: &[&str],
        more: &[&str],
    ) -> Self {
        let data = dir.join(name);
        std::fs::create_dir_all(&data).expect("a directory can be made");
        let token_file = data.join("credential");
        std::fs::write(&token_file, token).expect("a file can be written");
        let usual = [["--slots", "4"], ["--drain", "5s"], ["--hold", "0s"]];
        let usual = usual.iter().filter(|[flag, _]| !more.contains(flag));
        Self::start_in(baton, &data, wrapper, |command| {
            command
                .args(["daemon", "--relay", url, "--name", name])
                .args(usual.flatten())
                .args(["--allow-command", "--token-file"])
                .arg(&token_file)
                .args(more);
        })
        .await
    }

    /// With its directory and its command line, by way of another program if there is one.
    pub(crate) async fn start_in(
        baton: Baton,
        data: &Path,
        wrapper: &[&str],
        arguments: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = baton.wrapped(data, wrapper);
        arguments(&mut command);
        let child = command.current_dir(data).spawn();
        let mut child = child.expect("the executable can be started");
        await_line(&mut child, "baton daemon", baton.log).await;
        let data = data.to_owned();
        Self { child, data }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the daemon runs")
    }

    /// Whether it has nothing left to tell of any attempt: the relay has acknowledged all of it.
    pub fn is_settled(&self) -> bool {
        let kept = std::fs::read_dir(self.data.join("attempts"));
        kept.is_ok_and(|mut kept| kept.next().is_none())
    }

    pub async fn terminate(&mut self) -> ExitStatus {
        terminate(&mut self.child).await
    }

    pub async fn kill(&mut self) {
        self.child.start_kill().expect("the daemon runs");
        let status = within("the killed daemon to be gone", self.child.wait()).await;
        status.expect("a child can be waited for");
    }
}

async fn terminate(child: &mut Child) -> ExitStatus {
    signal(child.id().expect("the process runs"), Signal::TERM);
    let status = within("the process to end after TERM", child.wait()).await;
    status.expect("a child can be waited for")
}
