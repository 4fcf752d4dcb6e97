//! Workspaces: shared ones let in one attempt at a time, worktrees run side by side, nothing leads out of a root, and
//! what an attempt left is in its record.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use baton_daemon::read_config;
use baton_proto::v1::{
    Attempt, AttemptState, LifecyclePhase, Role, Task, TaskEventKind, TaskSpec, TaskState,
    WorkspaceMode, WorkspaceSpec,
};
use baton_tests::{
    DaemonProcess, EmbeddedDaemon, EmbeddedRelay, RelayProcess, TestClient, attempt_processes,
    attempt_shim, command_task, join_all, poll_until, send_signal, wait_until_marked_gone,
    with_retry_on_loss,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::BATON;

/// A relay, and a directory with a repository that is the root `repo`.
struct WorkspacesFixture {
    client: TestClient,
    relay: EmbeddedRelay,
    dir: TempDir,
}

fn run_program(program: &str, directory: &Path, words: &[&str]) -> String {
    let output = Command::new(program)
        .args(words)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git is on this machine");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(
        output.status.success(),
        "{words:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn run_git(directory: &Path, words: &[&str]) -> String {
    let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"];
    run_program("git", directory, &[&identity, words].concat())
}

fn create_repository(directory: &Path) -> PathBuf {
    let repo = directory.join("repo");
    std::fs::create_dir(&repo).expect("a directory can be made");
    run_git(&repo, &["init", "--quiet"]);
    std::fs::write(repo.join("file"), "first\n").expect("a file can be written");
    run_git(&repo, &["add", "."]);
    run_git(&repo, &["commit", "--quiet", "-m", "first"]);
    repo.canonicalize().expect("it is there")
}

/// `daemon.toml` with one root.
fn write_config(directory: &Path, more: &str) -> PathBuf {
    let path = directory.join("daemon.toml");
    let repo = directory.join("repo");
    let text = format!("[roots.repo]\npath = \"{}\"\n{more}", repo.display());
    std::fs::write(&path, text).expect("a file can be written");
    path
}

impl WorkspacesFixture {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        create_repository(dir.path());
        let relay = EmbeddedRelay::start().await;
        Self {
            client: relay.admin().clone(),
            relay,
            dir,
        }
    }

    fn repo(&self) -> PathBuf {
        self.dir
            .path()
            .join("repo")
            .canonicalize()
            .expect("it is there")
    }

    async fn start_daemon(&self, more: &str) -> EmbeddedDaemon {
        let token = self.relay.daemon_token().await;
        let file = read_config(&write_config(self.dir.path(), more)).expect("a good file");
        EmbeddedDaemon::start_with(self.relay.url(), &token, |config| {
            config.roots = file.roots;
        })
        .await
    }

    async fn run_to_end(&self, spec: TaskSpec) -> Task {
        let task = self.client.submit(spec).await;
        wait_for_end(&self.client, &task).await
    }
}

async fn wait_for_end(client: &TestClient, task: &Task) -> Task {
    client.watch(&task.task_id).await.collect_to_end().await;
    client.get(&task.task_id).await
}

fn workspace_spec(root: &str, mode: WorkspaceMode) -> Option<WorkspaceSpec> {
    Some(WorkspaceSpec {
        root: root.to_owned(),
        mode: mode.into(),
        keep: None,
    })
}

fn shell_task(text: &str, mode: WorkspaceMode) -> TaskSpec {
    TaskSpec {
        workspace: workspace_spec("repo", mode),
        ..command_task("sh", &["-c", text], "workspaces")
    }
}

fn newest_attempt(task: &Task) -> &Attempt {
    task.attempts.last().expect("a task has an attempt")
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_in_one_shared_workspace_run_one_after_the_other_and_none_pays_for_waiting() {
    const TASK_COUNT: usize = 5;
    let stage = WorkspacesFixture::start().await;
    let _daemon = stage.start_daemon("").await;
    let log = stage.dir.path().join("log");
    let text = format!(
        "echo in >> '{0}'; sleep 0.3; echo out >> '{0}'",
        log.display()
    );
    let spec = || shell_task(&text, WorkspaceMode::Shared);
    let tasks = join_all((0..TASK_COUNT).map(|_| stage.client.submit(spec()))).await;
    let done = join_all(tasks.iter().map(|task| wait_for_end(&stage.client, task))).await;
    let log = std::fs::read_to_string(log).expect("they ran");
    assert_eq!(log, "in\nout\n".repeat(TASK_COUNT), "never two at a time");
    let mut refused = 0;
    for task in &done {
        assert_eq!(task.state(), TaskState::Completed, "{task:#?}");
        let (last, earlier) = task.attempts.split_last().expect("an attempt");
        assert_eq!(last.state(), AttemptState::Completed);
        for attempt in earlier {
            assert_eq!(attempt.failure_code, "workspace_busy", "{attempt:#?}");
            assert!(
                attempt.message.contains("in use by attempt"),
                "{attempt:#?}"
            );
            refused += 1;
        }
        let left = last.workspace.as_ref().expect("where it ran");
        assert_eq!(left.path, stage.repo().display().to_string());
        assert_eq!(left.mode(), WorkspaceMode::Shared);
        assert_eq!(
            left.head_commit,
            run_git(&stage.repo(), &["rev-parse", "HEAD"])
        );
        assert_eq!((left.dirty_digest.as_str(), left.changed_files), ("", 0));
    }
    assert!(refused > 0, "nobody met anybody, so nothing was shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn worktrees_run_side_by_side_and_leave_a_branch_each() {
    let stage = WorkspacesFixture::start().await;
    let daemon = stage.start_daemon("mode = \"worktree\"\n").await;
    let (repo, meet) = (stage.repo(), stage.dir.path().join("meet"));
    std::fs::create_dir(&meet).expect("a directory can be made");
    // Each waits until the other is there too, so they end only if they run at the same time.
    let text = format!(
        "touch '{0}'/$BATON_ATTEMPT_ID; while [ $(ls '{0}' | wc -l) -lt 2 ]; do sleep 0.02; done\n\
         echo $BATON_ATTEMPT_ID > file\n\
         git -c user.name=T -c user.email=t@example.com commit --quiet -am second",
        meet.display()
    );
    let spec = || shell_task(&text, WorkspaceMode::Unspecified);
    let tasks = [
        stage.client.submit(spec()).await,
        stage.client.submit(spec()).await,
    ];
    let base = run_git(&repo, &["rev-parse", "HEAD"]);
    let mut heads = Vec::new();
    for task in &tasks {
        let task = wait_for_end(&stage.client, task).await;
        assert_eq!(task.state(), TaskState::Completed, "{task:#?}");
        let attempt = newest_attempt(&task);
        let left = attempt.workspace.as_ref().expect("where it ran");
        assert_eq!(left.mode(), WorkspaceMode::Worktree);
        assert_eq!(left.branch, format!("baton/{}", attempt.attempt_id));
        assert_eq!(left.base_commit, base);
        assert_eq!(
            left.head_commit,
            run_git(&repo, &["rev-parse", &left.branch])
        );
        let kept = run_git(&repo, &["show", &format!("{}:file", left.branch)]);
        assert_eq!(kept, attempt.attempt_id, "its own work is on its branch");
        assert!(
            !left.kept && !Path::new(&left.path).exists(),
            "all of it is"
        );
        heads.push(left.head_commit.clone());
    }
    assert!(heads[0] != heads[1] && !heads.contains(&base));
    let text = std::fs::read_to_string(repo.join("file")).expect("it is there");
    assert_eq!(text, "first\n", "the root was not touched");

    // What is not committed would be lost, so it stays; what changed nothing leaves nothing.
    let dirty = stage
        .run_to_end(shell_task(
            "echo new > new; echo changed > file",
            WorkspaceMode::Worktree,
        ))
        .await;
    let left = newest_attempt(&dirty)
        .workspace
        .clone()
        .expect("where it ran");
    assert!(left.kept && left.changed_files == 2, "{left:?}");
    assert!(left.dirty_digest.starts_with("sha256:"), "{left:?}");
    let new = std::fs::read_to_string(Path::new(&left.path).join("new"));
    assert_eq!(new.expect("it stays"), "new\n");
    let clean = stage
        .run_to_end(shell_task("true", WorkspaceMode::Worktree))
        .await;
    let left = newest_attempt(&clean)
        .workspace
        .clone()
        .expect("where it ran");
    assert!(!left.kept && !Path::new(&left.path).exists(), "{left:?}");
    let branches = run_git(&repo, &["branch", "--list", "baton/*"]);
    assert_eq!(branches.lines().count(), 3, "{branches}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scratch_directory_is_new_for_each_attempt_and_goes_when_it_is_empty_or_unwanted() {
    let stage = WorkspacesFixture::start().await;
    let _daemon = stage.start_daemon("").await;
    let spec = shell_task("ls -A; echo work > left", WorkspaceMode::Scratch);
    let first = stage.run_to_end(spec.clone()).await;
    let second = stage.run_to_end(spec.clone()).await;
    let places =
        [&first, &second].map(|task| newest_attempt(task).workspace.clone().expect("a place"));
    assert_ne!(places[0].path, places[1].path);
    for (task, place) in [&first, &second].into_iter().zip(&places) {
        assert!(
            stage
                .client
                .read_output_to_end(&task.task_id)
                .await
                .is_empty(),
            "it was new"
        );
        assert!(place.kept && Path::new(&place.path).join("left").exists());
        assert!(
            place.path.ends_with(&newest_attempt(task).attempt_id),
            "named by its id"
        );
    }
    let mut unwanted = spec;
    unwanted.workspace = Some(WorkspaceSpec {
        keep: Some(false),
        ..unwanted.workspace.unwrap_or_default()
    });
    for spec in [unwanted, shell_task("true", WorkspaceMode::Scratch)] {
        let task = stage.run_to_end(spec).await;
        let place = newest_attempt(&task).workspace.clone().expect("a place");
        assert!(!place.kept && !Path::new(&place.path).exists(), "{place:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_working_directory_outside_its_root_is_refused_and_one_inside_is_not() {
    let stage = WorkspacesFixture::start().await;
    let _daemon = stage.start_daemon("").await;
    let repo = stage.repo();
    std::fs::create_dir_all(repo.join("inner/most")).expect("a directory can be made");
    std::os::unix::fs::symlink("/", repo.join("out")).expect("a link can be made");
    let at = |cwd: &str| TaskSpec {
        cwd: cwd.to_owned(),
        ..shell_task("pwd", WorkspaceMode::Shared)
    };
    let absolute = repo.join("inner").display().to_string();
    for (cwd, place) in [("inner/most", "inner/most"), (absolute.as_str(), "inner")] {
        let task = stage.run_to_end(at(cwd)).await;
        let said = stage.client.read_output_to_end(&task.task_id).await;
        let expected = format!("{}\n", repo.join(place).display());
        assert_eq!(String::from_utf8_lossy(&said), expected, "{cwd}");
    }
    for cwd in ["..", "inner/../..", "out", "out/tmp", "/", "/tmp"] {
        let task = stage.run_to_end(at(cwd)).await;
        assert_eq!(task.state(), TaskState::Failed, "{cwd}");
        let attempt = newest_attempt(&task);
        assert_eq!(attempt.failure_code, "bad_cwd", "{cwd}");
        assert!(attempt.message.contains("outside its root"), "{attempt:#?}");
        assert_eq!(task.attempts.len(), 1, "asking again would not help");
    }
    // Without a workspace the daemon's work directory is the root.
    let task = stage
        .run_to_end(TaskSpec {
            cwd: "/".to_owned(),
            ..command_task("pwd", &[], "workspaces")
        })
        .await;
    assert_eq!(newest_attempt(&task).failure_code, "bad_cwd");
}

/// The lock of the repository, as another daemon on the machine would have left it.
fn write_lock(repo: &Path, pid: u32, start_time: u64) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a kernel");
    let record = serde_json::json!({
        "pid": pid,
        "start_time": start_time,
        "boot_id": boot.trim(),
        "attempt_id": "019a0000-0000-7000-8000-000000000001",
        "task_id": "019a0000-0000-7000-8000-000000000002",
        "daemon": "neighbour",
    });
    std::fs::write(lock_file(repo), record.to_string()).expect("a file can be written");
}

fn lock_file(repo: &Path) -> PathBuf {
    repo.join(".git/baton-lock")
}

/// Field 22 of its stat line.
fn start_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit(')').next().expect("a stat line");
    let field = fields.split_whitespace().nth(19).expect("a start time");
    field.parse().expect("a number")
}

fn spawn_sleeper() -> Child {
    let child = Command::new("sleep").arg("600").spawn();
    child.expect("sleep is on this machine")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recycled_pid_is_not_the_holder_and_a_living_one_is_waited_for() {
    let stage = WorkspacesFixture::start().await;
    let _daemon = stage.start_daemon("").await;
    let mut holder = spawn_sleeper();
    let began = start_time(holder.id());
    write_lock(&stage.repo(), holder.id(), began - 1);
    let task = stage
        .run_to_end(shell_task("true", WorkspaceMode::Shared))
        .await;
    assert_eq!(task.state(), TaskState::Completed, "the pid was given away");
    assert_eq!(task.attempts.len(), 1);
    let lock = std::fs::read_to_string(lock_file(&stage.repo())).expect("it stays");
    assert_eq!(lock, "", "and nobody holds it");

    write_lock(&stage.repo(), holder.id(), began);
    let task = stage
        .client
        .submit(shell_task("true", WorkspaceMode::Shared))
        .await;
    let mut watch = stage.client.watch(&task.task_id).await;
    let waits = watch.wait_for_event("it to wait", |event| {
        event.kind() == TaskEventKind::Phase && event.phase() == LifecyclePhase::Queued
    });
    let waits = waits.await;
    for word in ["neighbour", "019a0000-0000-7000-8000-000000000001"] {
        assert!(waits.message.contains(word), "{waits:?}");
    }
    holder.kill().expect("it runs");
    holder.wait().expect("it was ours");
    let task = wait_for_end(&stage.client, &task).await;
    assert_eq!(task.state(), TaskState::Completed);
    assert_eq!(task.attempts.len(), 1, "waiting cost it nothing");
}

/// Ends the shim that the lock names, and in place of a daemon what it leaves.
fn kill_shim(repo: &Path) {
    let lock: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(lock_file(repo)).expect("the lock stays"))
            .expect("and says whose it is");
    let shim = u32::try_from(lock["pid"].as_u64().expect("a pid")).expect("a pid");
    let attempt_id = lock["attempt_id"].as_str().expect("an attempt");
    let known = attempt_shim(attempt_id).expect("it outlives its daemon");
    assert_eq!(shim, known.pid, "the lock is the shim's");
    send_signal(shim, Signal::KILL);
    // Its child goes with it; whoever else is left is ended here in place of a daemon, unless it is quicker.
    for process in attempt_processes(attempt_id) {
        if let Some(pid) = Pid::from_raw(process.pid.cast_signed()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The relay knows that it runs, so that its end is a loss and no deadline of the start.
async fn wait_until_prompted(client: &TestClient, task: &Task) {
    let mut watch = client.watch(&task.task_id).await;
    watch
        .wait_for_event("the prompt's phase", |event| {
            event.state() == AttemptState::Prompted || event.state() == AttemptState::Streaming
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_outlives_a_killed_daemon_with_its_attempt_and_falls_when_both_are_killed() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, token) = client.create_token("", Role::Daemon).await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let repo = create_repository(dir.path());
    let file = write_config(dir.path(), "").display().to_string();
    let start = |name: &'static str| {
        let (url, token, file) = (client.url().to_owned(), token.clone(), file.clone());
        let dir = dir.path().to_owned();
        async move {
            let more = ["--config", &*file];
            DaemonProcess::start_with(BATON, &dir, name, (&url, &token), &more).await
        }
    };
    let mut daemon = start("first").await;
    let log = dir.path().join("log");
    let text = format!(
        "echo in >> '{0}'; while [ ! -e '{1}' ]; do sleep 0.05; done; echo out >> '{0}'",
        log.display(),
        dir.path().join("go").display()
    );
    let long = |mark| TaskSpec {
        workspace: workspace_spec("repo", WorkspaceMode::Shared),
        ..command_task("sh", &["-c", &text], mark)
    };
    let first = client.submit(long("held")).await;
    let runs = || std::fs::read_to_string(&log).is_ok_and(|log| log.starts_with("in"));
    poll_until("the first to run", || runs().then_some(())).await;

    // Its shim holds the lock: the next daemon takes the attempt over, and nobody else comes in.
    daemon.kill().await;
    let mut daemon = start("first").await;
    let second = client.submit(long("next")).await;
    let mut watch = client.watch(&second.task_id).await;
    watch
        .wait_for_event("it to be refused", |event| {
            event.kind() == TaskEventKind::Rejected
        })
        .await;
    assert_eq!(std::fs::read_to_string(&log).expect("it runs"), "in\n");
    std::fs::write(dir.path().join("go"), "").expect("a file can be written");
    for task in [&first, &second] {
        let task = wait_for_end(&client, task).await;
        assert_eq!(task.state(), TaskState::Completed, "{task:#?}");
    }
    let log_text = std::fs::read_to_string(&log).expect("they ran");
    assert_eq!(log_text, "in\nout\nin\nout\n");

    // Daemon and shim both killed by force: another daemon of the machine takes the lock over.
    std::fs::remove_file(dir.path().join("go")).expect("it is there");
    std::fs::remove_file(&log).expect("it is there");
    let lost = client
        .submit(with_retry_on_loss(
            long("lost"),
            std::time::Duration::from_secs(5),
        ))
        .await;
    poll_until("the third to run", || runs().then_some(())).await;
    wait_until_prompted(&client, &lost).await;
    daemon.kill().await;
    kill_shim(&repo);
    wait_until_marked_gone("lost").await;
    let _other = start("second").await;
    std::fs::write(dir.path().join("go"), "").expect("a file can be written");
    let lost = wait_for_end(&client, &lost).await;
    assert_eq!(lost.state(), TaskState::Completed, "{lost:#?}");
    let (last, earlier) = lost.attempts.split_last().expect("an attempt");
    assert_eq!(last.daemon_name, "second");
    let found = earlier[0]
        .workspace
        .as_ref()
        .expect("where the lost run was");
    assert_eq!(found.path, repo.display().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_a_daemon_that_has_its_workspace() {
    let stage = WorkspacesFixture::start().await;
    let token = stage.relay.daemon_token().await;
    let _without = EmbeddedDaemon::start(stage.relay.url(), &token).await;
    let task = stage
        .client
        .submit(shell_task("true", WorkspaceMode::Shared))
        .await;
    let waiting = stage.client.get(&task.task_id).await;
    assert_eq!(waiting.state(), TaskState::Queued, "{waiting:#?}");
    let _with = stage.start_daemon("").await;
    let done = wait_for_end(&stage.client, &task).await;
    assert_eq!(done.state(), TaskState::Completed);
    assert_eq!(done.attempts.len(), 1, "it was never offered elsewhere");
}
