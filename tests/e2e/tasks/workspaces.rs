//! Workspaces: a shared one admits one attempt at a time, worktrees run in parallel, no path
//! leaves its root, and the attempt's record shows what it left. The lock file is tested in
//! `workspace_locks`.

use std::path::{Path, PathBuf};
use std::process::Command;

use baton_daemon::read_config;
use baton_proto::v1::{
    Attempt, AttemptState, Task, TaskSpec, TaskState, WorkspaceMode, WorkspaceReport, WorkspaceSpec,
};
use baton_tests::{EmbeddedDaemon, EmbeddedRelay, TestClient, command_task, join_all};
use tempfile::TempDir;

/// A relay, and a directory with a git repository as root `repo`.
pub(super) struct WorkspacesFixture {
    pub(super) client: TestClient,
    relay: EmbeddedRelay,
    dir: TempDir,
}

fn run_program(program: &str, directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("the program is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn run_git(directory: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"];
    run_program("git", directory, &[&identity, arguments].concat())
}

pub(super) fn create_repository(directory: &Path) -> PathBuf {
    let repo = directory.join("repo");
    std::fs::create_dir(&repo).expect("a directory can be made");
    run_git(&repo, &["init", "--quiet"]);
    std::fs::write(repo.join("file"), "first\n").expect("a file can be written");
    run_git(&repo, &["add", "."]);
    run_git(&repo, &["commit", "--quiet", "-m", "first"]);
    repo.canonicalize().expect("the repository exists")
}

/// `daemon.toml` with one root.
pub(super) fn write_config(directory: &Path, more: &str) -> PathBuf {
    let path = directory.join("daemon.toml");
    let repo = directory.join("repo");
    let text = format!("[roots.repo]\npath = \"{}\"\n{more}", repo.display());
    std::fs::write(&path, text).expect("a file can be written");
    path
}

impl WorkspacesFixture {
    pub(super) async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        create_repository(dir.path());
        let relay = EmbeddedRelay::start().await;
        Self {
            client: relay.admin().clone(),
            relay,
            dir,
        }
    }

    pub(super) fn repo(&self) -> PathBuf {
        self.dir
            .path()
            .join("repo")
            .canonicalize()
            .expect("the repository exists")
    }

    pub(super) async fn start_daemon(&self, more: &str) -> EmbeddedDaemon {
        let token = self.relay.daemon_token().await;
        let file =
            read_config(&write_config(self.dir.path(), more)).expect("a valid configuration");
        EmbeddedDaemon::start_with(self.relay.url(), &token, |config| {
            config.roots = file.roots;
        })
        .await
    }

    pub(super) async fn run_to_end(&self, spec: TaskSpec) -> Task {
        self.client.run_to_end(spec).await
    }
}

pub(super) fn workspace_spec(root: &str, mode: WorkspaceMode) -> Option<WorkspaceSpec> {
    Some(WorkspaceSpec {
        root: root.to_owned(),
        mode: mode.into(),
        keep: None,
    })
}

pub(super) fn shell_task(text: &str, mode: WorkspaceMode) -> TaskSpec {
    TaskSpec {
        workspace: workspace_spec("repo", mode),
        ..command_task("sh", &["-c", text], "workspaces")
    }
}

fn newest_attempt(task: &Task) -> &Attempt {
    task.attempts.last().expect("a task has an attempt")
}

fn recorded_workspace(task: &Task) -> &WorkspaceReport {
    let recorded = newest_attempt(task).workspace.as_ref();
    recorded.expect("the attempt records its workspace")
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_in_a_shared_workspace_run_one_at_a_time_without_penalty() {
    const TASK_COUNT: usize = 5;
    let fixture = WorkspacesFixture::start().await;
    let _daemon = fixture.start_daemon("").await;
    let log = fixture.dir.path().join("log");
    let text = format!(
        "echo in >> '{0}'; sleep 0.3; echo out >> '{0}'",
        log.display()
    );
    let spec = || shell_task(&text, WorkspaceMode::Shared);
    let tasks = join_all((0..TASK_COUNT).map(|_| fixture.client.submit(spec()))).await;
    let done = join_all(
        tasks
            .iter()
            .map(|task| fixture.client.wait_for_end(&task.task_id)),
    )
    .await;
    let log = std::fs::read_to_string(log).expect("the tasks ran");
    assert_eq!(
        log,
        "in\nout\n".repeat(TASK_COUNT),
        "two attempts ran at the same time"
    );
    let mut refused = 0;
    for task in &done {
        assert_eq!(task.state(), TaskState::Completed, "{task:#?}");
        let (last, earlier) = task.attempts.split_last().expect("the task has an attempt");
        assert_eq!(last.state(), AttemptState::Completed);
        for attempt in earlier {
            assert_eq!(attempt.failure_code, "workspace_busy", "{attempt:#?}");
            assert!(
                attempt.message.contains("in use by attempt"),
                "{attempt:#?}"
            );
            refused += 1;
        }
        let workspace = last
            .workspace
            .as_ref()
            .expect("the attempt records its workspace");
        assert_eq!(workspace.path, fixture.repo().display().to_string());
        assert_eq!(workspace.mode(), WorkspaceMode::Shared);
        assert_eq!(
            workspace.head_commit,
            run_git(&fixture.repo(), &["rev-parse", "HEAD"])
        );
        assert_eq!(
            (workspace.dirty_digest.as_str(), workspace.changed_files),
            ("", 0)
        );
    }
    assert!(
        refused > 0,
        "no two tasks wanted the workspace at the same time, so the test proved nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn worktrees_run_in_parallel_and_leave_a_branch_each() {
    let fixture = WorkspacesFixture::start().await;
    let daemon = fixture.start_daemon("mode = \"worktree\"\n").await;
    let (repo, meet) = (fixture.repo(), fixture.dir.path().join("meet"));
    std::fs::create_dir(&meet).expect("a directory can be made");
    // Each waits for the other, so they end only if they run at the same time.
    let text = format!(
        "touch '{0}'/$BATON_ATTEMPT_ID; while [ $(ls '{0}' | wc -l) -lt 2 ]; do sleep 0.02; done\n\
         echo $BATON_ATTEMPT_ID > file\n\
         git -c user.name=T -c user.email=t@example.com commit --quiet -am second",
        meet.display()
    );
    let spec = || shell_task(&text, WorkspaceMode::Unspecified);
    let tasks = [
        fixture.client.submit(spec()).await,
        fixture.client.submit(spec()).await,
    ];
    let base = run_git(&repo, &["rev-parse", "HEAD"]);
    let mut heads = Vec::new();
    for task in &tasks {
        let task = fixture.client.wait_for_end(&task.task_id).await;
        assert_eq!(task.state(), TaskState::Completed, "{task:#?}");
        let attempt = newest_attempt(&task);
        let workspace = recorded_workspace(&task);
        assert_eq!(workspace.mode(), WorkspaceMode::Worktree);
        assert_eq!(workspace.branch, format!("baton/{}", attempt.attempt_id));
        assert_eq!(workspace.base_commit, base);
        assert_eq!(
            workspace.head_commit,
            run_git(&repo, &["rev-parse", &workspace.branch])
        );
        let kept = run_git(&repo, &["show", &format!("{}:file", workspace.branch)]);
        assert_eq!(kept, attempt.attempt_id, "its work is on its branch");
        assert!(
            !workspace.kept && !Path::new(&workspace.path).exists(),
            "a fully committed worktree is removed"
        );
        heads.push(workspace.head_commit.clone());
    }
    assert!(heads[0] != heads[1] && !heads.contains(&base));
    let text = std::fs::read_to_string(repo.join("file")).expect("the file exists");
    assert_eq!(text, "first\n", "the root is unchanged");

    // A worktree with uncommitted changes is kept; one without changes is removed.
    let dirty = fixture
        .run_to_end(shell_task(
            "echo new > new; echo changed > file",
            WorkspaceMode::Worktree,
        ))
        .await;
    let workspace = recorded_workspace(&dirty);
    assert!(
        workspace.kept && workspace.changed_files == 2,
        "{workspace:?}"
    );
    assert!(
        workspace.dirty_digest.starts_with("sha256:"),
        "{workspace:?}"
    );
    let new = std::fs::read_to_string(Path::new(&workspace.path).join("new"));
    assert_eq!(new.expect("the file is kept"), "new\n");
    let clean = fixture
        .run_to_end(shell_task("true", WorkspaceMode::Worktree))
        .await;
    let workspace = recorded_workspace(&clean);
    assert!(
        !workspace.kept && !Path::new(&workspace.path).exists(),
        "{workspace:?}"
    );
    let branches = run_git(&repo, &["branch", "--list", "baton/*"]);
    assert_eq!(branches.lines().count(), 3, "{branches}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scratch_directory_is_new_per_attempt_and_removed_when_not_kept() {
    let fixture = WorkspacesFixture::start().await;
    let _daemon = fixture.start_daemon("").await;
    let spec = shell_task("ls -A; echo work > left", WorkspaceMode::Scratch);
    let first = fixture.run_to_end(spec.clone()).await;
    let second = fixture.run_to_end(spec.clone()).await;
    let workspaces = [&first, &second].map(recorded_workspace);
    assert_ne!(workspaces[0].path, workspaces[1].path);
    for (task, directory) in [&first, &second].into_iter().zip(&workspaces) {
        assert!(
            fixture
                .client
                .read_output_to_end(&task.task_id)
                .await
                .is_empty(),
            "the directory was not empty at the start"
        );
        assert!(directory.kept && Path::new(&directory.path).join("left").exists());
        assert!(
            directory.path.ends_with(&newest_attempt(task).attempt_id),
            "the directory is named after the attempt"
        );
    }
    let mut unwanted = spec;
    unwanted.workspace = Some(WorkspaceSpec {
        keep: Some(false),
        ..unwanted.workspace.unwrap_or_default()
    });
    for spec in [unwanted, shell_task("true", WorkspaceMode::Scratch)] {
        let task = fixture.run_to_end(spec).await;
        let directory = recorded_workspace(&task);
        assert!(
            !directory.kept && !Path::new(&directory.path).exists(),
            "{directory:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_working_directory_outside_its_root_is_refused() {
    let fixture = WorkspacesFixture::start().await;
    let _daemon = fixture.start_daemon("").await;
    let repo = fixture.repo();
    std::fs::create_dir_all(repo.join("inner/most")).expect("a directory can be made");
    std::os::unix::fs::symlink("/", repo.join("out")).expect("a link can be made");
    let at = |cwd: &str| TaskSpec {
        cwd: cwd.to_owned(),
        ..shell_task("pwd", WorkspaceMode::Shared)
    };
    let absolute = repo.join("inner").display().to_string();
    for (cwd, directory) in [("inner/most", "inner/most"), (absolute.as_str(), "inner")] {
        let task = fixture.run_to_end(at(cwd)).await;
        let output = fixture.client.read_output_to_end(&task.task_id).await;
        let expected = format!("{}\n", repo.join(directory).display());
        assert_eq!(String::from_utf8_lossy(&output), expected, "{cwd}");
    }
    for cwd in ["..", "inner/../..", "out", "out/tmp", "/", "/tmp"] {
        let task = fixture.run_to_end(at(cwd)).await;
        assert_eq!(task.state(), TaskState::Failed, "{cwd}");
        let attempt = newest_attempt(&task);
        assert_eq!(attempt.failure_code, "bad_cwd", "{cwd}");
        assert!(attempt.message.contains("outside its root"), "{attempt:#?}");
        assert_eq!(task.attempts.len(), 1, "a retry would fail again");
    }
    // Without a workspace the root is the daemon's work directory.
    let task = fixture
        .run_to_end(TaskSpec {
            cwd: "/".to_owned(),
            ..command_task("pwd", &[], "workspaces")
        })
        .await;
    assert_eq!(newest_attempt(&task).failure_code, "bad_cwd");
}
