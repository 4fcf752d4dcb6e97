//! The recorded releases, each a directory with its proto files and its tape, and the current
//! protocol.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use prost_reflect::DescriptorPool;
use prost_types::FileDescriptorSet;

use crate::tape::RecordedConversation;

/// One release that peers may still run.
#[derive(Debug)]
pub(crate) struct RecordedRelease {
    pub(crate) name: String,
    pub(crate) pool: DescriptorPool,
    pub(crate) tape: RecordedConversation,
}

/// Every release, oldest first.
pub(crate) fn releases() -> &'static [RecordedRelease] {
    static RELEASES: OnceLock<Vec<RecordedRelease>> = OnceLock::new();
    RELEASES.get_or_init(|| {
        let entries = std::fs::read_dir(releases_directory()).expect("releases are in the source");
        let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        found.sort();
        assert!(!found.is_empty(), "no release is recorded");
        found.iter().map(|path| read_release(path)).collect()
    })
}

fn read_release(path: &Path) -> RecordedRelease {
    let tape = std::fs::read_to_string(path.join("tape")).expect("a release has a tape");
    RecordedRelease {
        name: path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        pool: descriptor_pool(compile_protos(path)),
        tape: RecordedConversation::parse(&tape),
    }
}

/// The current protocol.
pub(crate) fn current_protocol() -> &'static FileDescriptorSet {
    static HEAD: OnceLock<FileDescriptorSet> = OnceLock::new();
    HEAD.get_or_init(|| compile_protos(&proto_directory()))
}

pub(crate) fn descriptor_pool(files: FileDescriptorSet) -> DescriptorPool {
    DescriptorPool::from_file_descriptor_set(files).expect("a compiled protocol is consistent")
}

/// The directory of the current proto files.
pub(crate) fn proto_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto")
}

pub(crate) fn releases_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compat/releases")
}

/// All proto files under `root`, as relative paths.
pub(crate) fn proto_files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.join("baton")];
    while let Some(directory) = open.pop() {
        let entries = std::fs::read_dir(&directory).expect("a directory of proto files");
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "proto") {
                let below = path.strip_prefix(root).expect("the path is below its root");
                found.push(below.to_owned());
            }
        }
    }
    found.sort();
    found
}

fn compile_protos(root: &Path) -> FileDescriptorSet {
    protox::compile(proto_files(root), [root]).expect("proto files of this repository compile")
}
