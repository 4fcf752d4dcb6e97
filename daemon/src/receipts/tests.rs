//! Inspected and refused files with their reasons, and that no file outside the root is read,
//! even when paths are replaced during the inspection.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::atomic::AtomicU64;
use std::thread;

use rustix::fs::{CWD, Mode, mknodat};

use super::*;

const HELLO_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

struct ReceiptTestDirs {
    _dir: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
}

fn test_dirs() -> ReceiptTestDirs {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    let (root, outside) = (path.join("root"), path.join("outside"));
    fs::create_dir_all(root.join("out")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    ReceiptTestDirs {
        _dir: dir,
        root,
        outside,
    }
}

fn required(path: &str) -> RequiredArtifact {
    RequiredArtifact {
        path: path.to_owned(),
        ..RequiredArtifact::default()
    }
}

fn required_files(root: &Path, paths: &[&str]) -> RequiredFiles {
    let contract = CompletionContract {
        required_artifacts: paths.iter().map(|path| required(path)).collect(),
        ..CompletionContract::default()
    };
    RequiredFiles::new(root, Some(&contract)).unwrap().unwrap()
}

async fn inspect_path(root: &Path, path: &str) -> ArtifactReceipt {
    let mut receipts = required_files(root, &[path])
        .inspect(INSPECTION_TIMEOUT)
        .await;
    assert_eq!(receipts.len(), 1);
    receipts.remove(0)
}

#[tokio::test]
async fn a_receipt_has_size_hash_time_and_resolved_path() {
    let ReceiptTestDirs { root, .. } = &test_dirs();
    fs::write(root.join("out/a"), "hello").unwrap();
    symlink("out", root.join("linked")).unwrap();
    let plain = inspect_path(root, "out/a").await;
    assert!(
        plain.exists && plain.is_file && plain.problem.is_empty(),
        "{plain:?}"
    );
    assert_eq!((plain.size, &*plain.sha256), (5, HELLO_SHA256));
    assert_eq!(plain.resolved_path, "out/a");
    let modified = fs::metadata(root.join("out/a"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(plain.modified_at, Some(modified.into()));
    let linked = inspect_path(root, "linked/a").await;
    assert_eq!(
        (&*linked.path, &*linked.resolved_path),
        ("linked/a", "out/a")
    );
    assert_eq!((linked.size, linked.sha256), (5, plain.sha256));
}

#[tokio::test]
async fn non_files_and_paths_outside_are_all_refused_with_their_reason() {
    let ReceiptTestDirs { root, outside, .. } = &test_dirs();
    symlink(outside.join("secret"), root.join("absolute")).unwrap();
    symlink("../outside/secret", root.join("relative")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink("round", root.join("round")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    mknodat(
        CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        Mode::RWXU,
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    symlink("/dev/zero", root.join("device")).unwrap();
    let table = [
        ("gone", ""),
        ("out/gone", ""),
        ("dangling", ""),
        ("out", "it is a directory, not a regular file"),
        ("pipe", "it is a pipe, not a regular file"),
        ("socket", "it is a socket, not a regular file"),
        ("absolute", "it leads out of the workspace"),
        ("relative", "it leads out of the workspace"),
        ("up/outside/secret", "it leads out of the workspace"),
        ("device", "it leads out of the workspace"),
        (
            "round",
            "it passes through too many symbolic links or through a magic link of the kernel",
        ),
        ("magic/etc/passwd", "it leads out of the workspace"),
    ];
    let paths = table.map(|(path, _)| path);
    let files = required_files(root, &paths);
    let receipts = files.inspect(INSPECTION_TIMEOUT).await;
    for ((path, problem), receipt) in table.iter().zip(&receipts) {
        assert_eq!((&*receipt.path, &*receipt.problem), (*path, *problem));
        assert!(!receipt.is_file && receipt.sha256.is_empty() && receipt.size == 0);
    }
    let unmet = files.judge_receipts(&receipts);
    assert_eq!(
        unmet.len(),
        table.len(),
        "every unmet requirement is listed"
    );
    assert_eq!(unmet[0].to_string(), "gone: missing");
}

#[tokio::test]
async fn a_missing_root_is_reported_as_a_problem() {
    let ReceiptTestDirs { root, .. } = &test_dirs();
    let nowhere = inspect_path(Path::new(""), "a").await;
    assert_eq!(
        nowhere.problem,
        "the workspace directory is unknown, so required files cannot be inspected"
    );
    let missing = inspect_path(&root.join("gone"), "a").await;
    assert!(missing.problem.contains("cannot be opened"), "{missing:?}");
    fs::write(root.join("file"), "").unwrap();
    let file = inspect_path(&root.join("file"), "a").await;
    assert!(file.problem.contains("Not a directory"), "{file:?}");
}

#[test]
fn the_daemon_checks_required_paths_again() {
    let contract = |paths: &[&str]| CompletionContract {
        required_artifacts: paths.iter().map(|path| required(path)).collect(),
        ..CompletionContract::default()
    };
    for bad in ["", "/etc/passwd", "..", "a/../b", "C:x", "a\\b", "a\0b"] {
        let refused = RequiredFiles::new(Path::new("/"), Some(&contract(&["good", bad])));
        assert!(
            matches!(refused, Err(RequiredFilesError::BadPath { .. })),
            "{bad:?}"
        );
    }
    let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let refused = RequiredFiles::new(Path::new("/"), Some(&contract(&many)));
    assert_eq!(refused, Err(RequiredFilesError::TooMany(65)));
    assert_eq!(RequiredFiles::new(Path::new("/"), None), Ok(None));
    assert_eq!(
        RequiredFiles::new(Path::new("/"), Some(&contract(&[]))),
        Ok(None)
    );
}

#[tokio::test]
async fn a_path_required_twice_has_one_receipt() {
    let ReceiptTestDirs { root, .. } = &test_dirs();
    let twice = required_files(root, &["a", "a"]);
    assert_eq!(twice.inspect(INSPECTION_TIMEOUT).await.len(), 1);
    assert_eq!(twice.unmet_requirements(INSPECTION_TIMEOUT).await.len(), 2);
}

/// Without openat2 no link is followed; paths without links work as usual.
#[test]
fn an_old_kernel_finds_files_and_follows_no_link() {
    let ReceiptTestDirs { root, .. } = &test_dirs();
    fs::write(root.join("out/a"), "hello").unwrap();
    symlink("a", root.join("out/inner")).unwrap();
    symlink("out", root.join("linked")).unwrap();
    let opened = rustix::fs::open(
        root,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY,
        Mode::empty(),
    );
    let opened = opened.unwrap();
    let walked = |path: &str| file_inspection::open_without_links(&opened, Path::new(path));
    assert!(matches!(walked("out/a"), Ok(Ok(_))));
    assert!(matches!(walked("out/gone"), Ok(Err(_))));
    for link in ["out/inner", "linked/a", "linked"] {
        let refused = walked(link);
        assert!(
            matches!(refused, Err(file_inspection::FileProblem::UncheckedLink)),
            "{link}"
        );
    }
}

/// Another thread switches a link between a file inside and one outside as fast as it can. The
/// file outside must never be read.
#[tokio::test]
async fn a_link_swapped_during_inspection_never_reveals_a_file_outside() {
    const ROUNDS: u64 = 3_000;
    const SWAPS: u64 = 100;
    let ReceiptTestDirs { root, outside, .. } = &test_dirs();
    fs::write(root.join("out/a"), "hello").unwrap();
    symlink("out/a", root.join("good")).unwrap();
    symlink(outside.join("secret"), root.join("bad")).unwrap();
    let (stop, swaps) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let swapper = thread::spawn({
        let (root, stop, swaps) = (root.clone(), Arc::clone(&stop), Arc::clone(&swaps));
        move || {
            while !stop.load(Ordering::Relaxed) {
                for which in ["good", "bad"] {
                    let draft = root.join("draft");
                    fs::hard_link(root.join(which), &draft).unwrap();
                    fs::rename(&draft, root.join("swapped")).unwrap();
                    // Renaming one name of a link onto another name of the same link has no
                    // effect.
                    let _ = fs::remove_file(&draft);
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    let opened = file_inspection::open_root(root).unwrap();
    let running = AtomicBool::new(false);
    let (mut inside, mut refused) = (0, 0);
    let swapped = required("swapped");
    let mut rounds = 0;
    let few_swaps = || swaps.load(Ordering::Relaxed) <= SWAPS;
    // On a busy machine the other thread may run late, so the rounds go on until it has run.
    while rounds < ROUNDS || few_swaps() || inside == 0 || refused == 0 {
        let receipt = file_inspection::inspect_file(&opened, &swapped, &running);
        match (receipt.is_file, &*receipt.problem) {
            (true, "") => {
                assert_eq!((receipt.size, &*receipt.sha256), (5, HELLO_SHA256));
                inside += 1;
            }
            (false, "it leads out of the workspace") => refused += 1,
            // Before the first swap.
            (false, "") if !receipt.exists => continue,
            other => panic!("{other:?} {receipt:?}"),
        }
        rounds += 1;
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert_eq!(inside + refused, rounds);
}

/// A file that grows while it is read has no hash, and the receipt reports that.
#[test]
fn a_file_that_changes_while_it_is_read_is_reported() {
    let ReceiptTestDirs { root, .. } = &test_dirs();
    let path = root.join("log");
    fs::write(&path, vec![1; 8 << 20]).unwrap();
    let (stop, writer) = (Arc::new(AtomicBool::new(false)), path);
    let growing = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            use std::io::Write;
            let mut file = fs::OpenOptions::new().append(true).open(writer).unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.write_all(b"more").unwrap();
            }
        }
    });
    let opened = file_inspection::open_root(root).unwrap();
    let inspect =
        |_| file_inspection::inspect_file(&opened, &required("log"), &AtomicBool::new(false));
    // On a busy machine the writer may not run during one inspection, so several are made.
    let changed = (0..200).map(inspect).find(|one| !one.problem.is_empty());
    let receipt = changed.expect("an inspection during which the file grew");
    stop.store(true, Ordering::Relaxed);
    growing.join().unwrap();
    assert_eq!(receipt.problem, "it changed while it was read");
    assert!(receipt.sha256.is_empty() && receipt.is_file);
}

/// A large file is hashed only when a hash is required, and only within the time limit.
#[tokio::test]
async fn a_large_file_is_hashed_only_on_request_and_within_the_time_limit() {
    let ReceiptTestDirs { root, .. } = &test_dirs();
    // A sparse file, which uses no disk space.
    let large = fs::File::create(root.join("large")).unwrap();
    large.set_len(1 << 40).unwrap();
    let receipt = inspect_path(root, "large").await;
    assert_eq!((receipt.size, &*receipt.sha256), (1 << 40, ""));
    assert_eq!(receipt.problem, "");
    let contract = CompletionContract {
        required_artifacts: vec![RequiredArtifact {
            sha256: HELLO_SHA256.to_owned(),
            ..required("large")
        }],
        ..CompletionContract::default()
    };
    let files = RequiredFiles::new(root, Some(&contract)).unwrap().unwrap();
    let receipts = files.inspect(Duration::from_millis(50)).await;
    assert_eq!(receipts[0].problem, "it could not be inspected within 50ms");
}
