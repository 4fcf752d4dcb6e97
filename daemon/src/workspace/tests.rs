//! Workspaces on a real file system: locking, creation, removal and the report.

use std::process::Command;
use std::time::Duration;

use super::*;
use crate::process::identity_of;

const PROVED_CLEANUP: WorkspaceCleanup = WorkspaceCleanup {
    processes_proved_gone: true,
    time_limit: Duration::from_secs(60),
};

fn git(directory: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@example.com"])
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn repository(directory: &Path) -> PathBuf {
    let repo = directory.canonicalize().unwrap().join("repo");
    std::fs::create_dir(&repo).unwrap();
    git(&repo, &["init", "--quiet"]);
    std::fs::write(repo.join("file"), "first").unwrap();
    git(&repo, &["add", "."]);
    git(&repo, &["commit", "--quiet", "-m", "first"]);
    repo
}

fn roots(dir: &Path, root: &Path, mode: SharingMode) -> WorkspaceRoots {
    let root = RootConfig {
        path: root.to_owned(),
        mode,
        retention: WorkspaceRetention::default(),
        made_in: None,
    };
    WorkspaceRoots {
        by_name: BTreeMap::from([("repo".to_owned(), root)]),
        work_dir: dir.join("work"),
        creation_dir: dir.join("made"),
    }
}

fn workspace_spec(root: &str, mode: WorkspaceMode, keep: Option<bool>) -> WorkspaceSpec {
    WorkspaceSpec {
        root: root.to_owned(),
        mode: mode.into(),
        keep,
    }
}

fn occupant(directory: &Path, attempt_id: &str) -> WorkspaceOccupant {
    let own = std::process::id().cast_signed();
    std::fs::create_dir_all(directory).unwrap();
    WorkspaceOccupant {
        holder: LockHolder {
            pid: own,
            start_time: identity_of(own).unwrap().start_time,
            boot_id: "boot".to_owned(),
            attempt_id: attempt_id.to_owned(),
            task_id: "task".to_owned(),
            daemon: "here".to_owned(),
        },
        attempt_dir: directory.to_owned(),
    }
}

#[test]
fn a_plan_follows_the_task_then_the_root_and_names_come_from_ids() {
    let dir = Path::new("/data");
    let roots = roots(dir, Path::new("/srv/repo"), SharingMode::Worktree);
    let plain = roots.plan("id", None, "").unwrap();
    assert_eq!(
        (plain.mode, &*plain.path),
        (SharingMode::WorkDir, Path::new("/data/work"))
    );
    assert_eq!(plain.to_disk(), None);
    let unnamed = workspace_spec("", WorkspaceMode::Scratch, None);
    let plan = roots.plan("id", Some(&unnamed), "").unwrap();
    assert_eq!(
        (plan.mode, &*plan.path),
        (SharingMode::Scratch, Path::new("/data/made/id"))
    );
    let named = workspace_spec("repo", WorkspaceMode::Unspecified, Some(false));
    let plan = roots.plan("id", Some(&named), "sub").unwrap();
    assert_eq!(
        (plan.mode, plan.keep),
        (SharingMode::Worktree, WorkspaceRetention::Never)
    );
    assert_eq!(plan.branch, "baton/id");
    assert_eq!(plan.working_directory(), Path::new("/data/made/id/sub"));
    assert_eq!(
        WorkspacePlan::from_disk(plan.to_disk().unwrap()),
        Some(plan)
    );
    let shared = workspace_spec("repo", WorkspaceMode::Shared, None);
    let plan = roots.plan("id", Some(&shared), "").unwrap();
    assert_eq!(plan.exclusive_root(), Some(Path::new("/srv/repo")));
    let unknown = workspace_spec("other", WorkspaceMode::Shared, None);
    assert_eq!(roots.plan("id", Some(&unknown), ""), None);
}

#[tokio::test]
async fn a_new_daemon_cleans_up_the_workspaces_of_a_killed_one() {
    let dir = tempfile::tempdir().unwrap();
    let repo = repository(dir.path());
    let roots = roots(
        &dir.path().canonicalize().unwrap(),
        &repo,
        SharingMode::Worktree,
    );
    let named = workspace_spec("repo", WorkspaceMode::Unspecified, None);

    // Planned, but nothing was created.
    let plan = roots.plan("one", Some(&named), "").unwrap();
    let one = occupant(&dir.path().join("one"), "one");
    let report = clean_up(&plan, &one, PROVED_CLEANUP).await.unwrap();
    assert!(!report.kept && !plan.path.exists());

    // The directory was created and recorded, and git was killed halfway.
    let plan = roots.plan("two", Some(&named), "").unwrap();
    let two = occupant(&dir.path().join("two"), "two");
    created_directory::CreatedWorkspace {
        base_commit: git(&repo, &["rev-parse", "HEAD"]),
        directory: Some(created_directory::create_directory(&plan.path).unwrap()),
    }
    .write(&two.attempt_dir)
    .unwrap();
    let report = clean_up(&plan, &two, PROVED_CLEANUP).await.unwrap();
    assert!(
        report.kept,
        "git cannot inspect the directory, so it is kept: {report:?}"
    );

    // Everything was created.
    let plan = roots.plan("three", Some(&named), "").unwrap();
    let three = occupant(&dir.path().join("three"), "three");
    prepare(&plan, &three).await.unwrap();
    assert!(plan.path.join("file").exists());
    let unproved = WorkspaceCleanup {
        processes_proved_gone: false,
        ..PROVED_CLEANUP
    };
    let report = clean_up(&plan, &three, unproved).await.unwrap();
    assert!(
        report.kept && plan.path.exists(),
        "a process may still use it"
    );
    let report = clean_up(&plan, &three, PROVED_CLEANUP).await.unwrap();
    assert!(!report.kept && !plan.path.exists());
    assert_eq!(report.base_commit, report.head_commit);
    assert_eq!(git(&repo, &["branch", "--list", "baton/*"]), "");
    assert_eq!(git(&repo, &["worktree", "list"]).lines().count(), 1);
}

#[tokio::test]
async fn a_digest_differs_per_change_and_ignores_the_lock_file() {
    let dir = tempfile::tempdir().unwrap();
    let repo = repository(dir.path());
    let evidence = || async {
        let git = git_command::GitRepository {
            directory: &repo,
            attempt_id: "a",
        };
        git_evidence::collect_evidence(git).await.unwrap()
    };
    std::fs::write(repo.join(lock::LOCK_FILE_IN_ROOT), "{}").unwrap();
    let clean = evidence().await;
    assert_eq!((clean.dirty_digest.as_str(), clean.changed_files), ("", 0));
    std::fs::write(repo.join("new"), "1").unwrap();
    let one = evidence().await;
    assert_eq!(one, evidence().await);
    std::fs::write(repo.join("new"), "2").unwrap();
    let two = evidence().await;
    std::fs::write(repo.join("file"), "second").unwrap();
    let three = evidence().await;
    assert!(one.dirty_digest != two.dirty_digest && two.dirty_digest != three.dirty_digest);
    assert_eq!((one.changed_files, three.changed_files), (1, 2));
}

#[tokio::test]
async fn programs_named_by_a_repository_are_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let repo = repository(dir.path());
    let marker = dir.path().join("hook-ran");
    let script = format!("#!/bin/sh\ntouch '{}'\n", marker.display());
    let hook = repo.join(".git/hooks/post-checkout");
    std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
    std::fs::write(&hook, &script).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    git(&repo, &["config", "core.fsmonitor", hook.to_str().unwrap()]);
    git(&repo, &["config", "diff.external", hook.to_str().unwrap()]);
    let roots = roots(
        &dir.path().canonicalize().unwrap(),
        &repo,
        SharingMode::Worktree,
    );
    let named = workspace_spec("repo", WorkspaceMode::Unspecified, None);
    let plan = roots.plan("one", Some(&named), "").unwrap();
    let occupant = occupant(&dir.path().join("one"), "one");
    let _ = std::fs::remove_file(&marker);
    prepare(&plan, &occupant).await.unwrap();
    std::fs::write(plan.path.join("file"), "changed").unwrap();
    let report = clean_up(&plan, &occupant, PROVED_CLEANUP).await.unwrap();
    assert!(report.kept && report.changed_files == 1);
    assert!(!marker.exists(), "a program of the repository was started");
}

#[tokio::test]
async fn a_workspace_that_cannot_be_inspected_is_unknown_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let repo = repository(dir.path());
    let named = workspace_spec("repo", WorkspaceMode::Unspecified, None);
    let root = dir.path().canonicalize().unwrap();
    for mode in [SharingMode::Worktree, SharingMode::Scratch] {
        for pointer in [Some("gitdir: /nowhere"), None] {
            let id = format!("{mode:?}-{}", pointer.is_some()).to_lowercase();
            let plan = roots(&root, &repo, mode)
                .plan(&id, Some(&named), "")
                .unwrap();
            let occupant = occupant(&root.join(&id), &id);
            prepare(&plan, &occupant).await.unwrap();
            let pointed = plan.path.join(".git");
            let _ = std::fs::remove_file(&pointed);
            std::fs::write(plan.path.join("work"), "1").unwrap();
            if let Some(pointer) = pointer {
                std::fs::write(&pointed, pointer).unwrap();
            }
            let report = clean_up(&plan, &occupant, PROVED_CLEANUP).await.unwrap();
            assert!(report.kept && plan.path.join("work").exists(), "{report:?}");
            // A directory without git can be inspected.
            let is_inspected = mode == SharingMode::Scratch && pointer.is_none();
            let changes = (report.dirty_digest.as_str(), report.changed_files);
            assert_eq!(
                changes,
                if is_inspected {
                    ("", 1)
                } else {
                    ("unknown", 0)
                },
                "{id}"
            );
        }
    }
}

#[tokio::test]
async fn a_link_in_place_of_the_created_directory_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let repo = repository(dir.path());
    let named = workspace_spec("repo", WorkspaceMode::Unspecified, None);
    let root = dir.path().canonicalize().unwrap();
    // A directory with files and a repository with changes.
    let victim = root.join("victim");
    std::fs::create_dir(&victim).unwrap();
    git(&victim, &["init", "--quiet"]);
    std::fs::write(victim.join("other-work"), "1").unwrap();
    for mode in [SharingMode::Worktree, SharingMode::Scratch] {
        let id = format!("{mode:?}").to_lowercase();
        let plan = roots(&root, &repo, mode)
            .plan(&id, Some(&named), "")
            .unwrap();
        let occupant = occupant(&root.join(&id), &id);
        prepare(&plan, &occupant).await.unwrap();
        std::fs::remove_dir_all(&plan.path).unwrap();
        std::os::unix::fs::symlink(&victim, &plan.path).unwrap();
        let report = clean_up(&plan, &occupant, PROVED_CLEANUP).await.unwrap();
        let changes = (report.dirty_digest.as_str(), report.changed_files);
        assert_eq!(changes, ("unknown", 0), "{report:?}");
        assert!(report.kept && report.head_commit.is_empty(), "{report:?}");
        assert!(victim.join("other-work").exists());
    }
}

/// The file is in the root, where every process of the user can lock it.
#[tokio::test]
async fn a_lock_file_locked_by_another_process_does_not_block_cleanup() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let roots = roots(&root, &root, SharingMode::Shared);
    let named = workspace_spec("repo", WorkspaceMode::Unspecified, None);
    let plan = roots.plan("one", Some(&named), "").unwrap();
    let one = occupant(&root.join("one"), "one");
    prepare(&plan, &one).await.unwrap();
    let locked = std::fs::File::open(root.join(lock::LOCK_FILE_IN_ROOT)).unwrap();
    rustix::fs::flock(&locked, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let cleaned = tokio::time::timeout(
        PROVED_CLEANUP.time_limit,
        clean_up(&plan, &one, PROVED_CLEANUP),
    )
    .await;
    assert!(cleaned.is_ok_and(|report| report.is_some()));
    let two = occupant(&root.join("two"), "two");
    match prepare(&plan, &two).await {
        Err(PrepareError::Busy(why)) => assert!(why.contains(lock::LOCK_FILE_IN_ROOT), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(locked);
    prepare(&plan, &two).await.unwrap();
}

#[tokio::test]
async fn existing_and_unrecorded_directories_are_kept_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let roots = roots(&root, &root, SharingMode::Scratch);
    let named = workspace_spec("repo", WorkspaceMode::Unspecified, None);

    let plan = roots.plan("before", Some(&named), "").unwrap();
    std::fs::create_dir_all(&plan.path).unwrap();
    let before = occupant(&root.join("one"), "before");
    assert!(prepare(&plan, &before).await.is_err());
    let report = clean_up(&plan, &before, PROVED_CLEANUP).await.unwrap();
    assert!(report.kept && plan.path.exists(), "{report:?}");

    let plan = roots.plan("unrecorded", Some(&named), "").unwrap();
    std::fs::create_dir_all(plan.path.join("full")).unwrap();
    let unrecorded = occupant(&root.join("two"), "unrecorded");
    let report = clean_up(&plan, &unrecorded, PROVED_CLEANUP).await.unwrap();
    assert!(report.kept && plan.path.exists(), "{report:?}");
    std::fs::remove_dir(plan.path.join("full")).unwrap();
    let report = clean_up(&plan, &unrecorded, PROVED_CLEANUP).await.unwrap();
    assert!(!report.kept && !plan.path.exists(), "{report:?}");
}
