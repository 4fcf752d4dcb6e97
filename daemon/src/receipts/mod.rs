//! Receipts for the files that a completion contract requires. The daemon inspects the files
//! beneath the attempt's workspace directory, and the relay judges the receipts. The inspection
//! runs on a blocking thread and is limited in time, so that a large or slow file cannot delay
//! a heartbeat.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_proto::v1::{ArtifactReceipt, CompletionContract, MissingPolicy, RequiredArtifact};
use baton_validation::{
    FileReceipt, InvalidPath, PATHS_MAX, RequiredFile, UnmetRequirement, check_path,
    unmet_requirements,
};
use tokio::sync::mpsc;
use tracing::warn;

mod file_inspection;
#[cfg(test)]
mod tests;

/// Time limit for all files of a contract together.
pub const INSPECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Files that an attempt has to leave in its workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct RequiredFiles {
    root: PathBuf,
    contract: CompletionContract,
}

/// Why the files of a contract cannot be inspected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequiredFilesError {
    #[error("the contract requires {0} files, but at most {PATHS_MAX} are allowed")]
    TooMany(usize),
    #[error("the contract's path {path:?} is invalid: {fault}")]
    BadPath { path: String, fault: InvalidPath },
}

impl RequiredFiles {
    /// `None` when the contract requires no files. Paths are checked here again because an
    /// older relay may not have checked them.
    pub fn new(
        root: &Path,
        contract: Option<&CompletionContract>,
    ) -> Result<Option<Self>, RequiredFilesError> {
        let Some(contract) = contract.filter(|contract| !contract.required_artifacts.is_empty())
        else {
            return Ok(None);
        };
        let count = contract.required_artifacts.len();
        if count > PATHS_MAX {
            return Err(RequiredFilesError::TooMany(count));
        }
        for RequiredArtifact { path, .. } in &contract.required_artifacts {
            check_path(path).map_err(|fault| RequiredFilesError::BadPath {
                path: path.clone(),
                fault,
            })?;
        }
        Ok(Some(Self {
            root: root.to_owned(),
            contract: contract.clone(),
        }))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn contract(&self) -> &CompletionContract {
        &self.contract
    }

    /// Whether the attempt may continue and complete again when a file is missing.
    pub fn allows_retry(&self) -> bool {
        match self.contract.missing_policy() {
            MissingPolicy::Unspecified | MissingPolicy::Reject => true,
            MissingPolicy::Fail | MissingPolicy::Park => false,
        }
    }

    /// Inspects all files now and returns one receipt per path. A file that could not be
    /// inspected in time has that as its problem.
    pub async fn inspect(&self, limit: Duration) -> Vec<ArtifactReceipt> {
        // Capacity for every receipt, so that the inspecting thread never blocks.
        let (sender, mut receipts) = mpsc::channel(PATHS_MAX);
        let stop = StopOnDrop::default();
        let (files, stopped) = (self.clone(), Arc::clone(&stop.0));
        tokio::task::spawn_blocking(move || files.inspect_all(&sender, &stopped));
        let mut inspected = Vec::new();
        let all = async {
            while let Some(receipt) = receipts.recv().await {
                inspected.push(receipt);
            }
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            warn!(root = %self.root.display(), ?limit, "inspection of required files timed out");
        }
        self.add_uninspected(&mut inspected, limit);
        inspected
    }

    /// Inspects the files and applies the relay's rule: the reasons why a completion would be
    /// refused now.
    pub async fn unmet_requirements(&self, limit: Duration) -> Vec<UnmetRequirement> {
        let receipts = self.inspect(limit).await;
        self.judge_receipts(&receipts)
    }

    /// Requirements of the contract that these receipts do not meet.
    pub fn judge_receipts(&self, receipts: &[ArtifactReceipt]) -> Vec<UnmetRequirement> {
        let required = self.contract.required_artifacts.iter();
        unmet_requirements(
            required.map(to_required_file),
            receipts.iter().map(to_file_receipt),
        )
    }

    /// Runs on a blocking thread.
    fn inspect_all(&self, receipts: &mpsc::Sender<ArtifactReceipt>, stopped: &AtomicBool) {
        let root = file_inspection::open_root(&self.root);
        for required in self.distinct_paths() {
            let receipt = match &root {
                Ok(root) => file_inspection::inspect_file(root, required, stopped),
                Err(problem) => problem_receipt(&required.path, problem.to_string()),
            };
            if stopped.load(Ordering::Relaxed) || receipts.try_send(receipt).is_err() {
                return;
            }
        }
    }

    fn distinct_paths(&self) -> impl Iterator<Item = &RequiredArtifact> {
        let mut seen_paths = BTreeSet::new();
        let required = self.contract.required_artifacts.iter();
        required.filter(move |required| seen_paths.insert(required.path.as_str()))
    }

    fn add_uninspected(&self, inspected: &mut Vec<ArtifactReceipt>, limit: Duration) {
        let problem = format!("it could not be inspected within {limit:?}");
        for required in self.distinct_paths() {
            if inspected
                .iter()
                .all(|receipt| receipt.path != required.path)
            {
                inspected.push(problem_receipt(&required.path, problem.clone()));
            }
        }
    }
}

/// Stops the inspection when its caller is gone, so that no file is read for nothing.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn problem_receipt(path: &str, problem: String) -> ArtifactReceipt {
    ArtifactReceipt {
        path: path.to_owned(),
        problem,
        ..ArtifactReceipt::default()
    }
}

fn to_required_file(required: &RequiredArtifact) -> RequiredFile<'_> {
    RequiredFile {
        path: &required.path,
        min_size: required.min_size,
        sha256: non_empty(&required.sha256),
    }
}

fn to_file_receipt(receipt: &ArtifactReceipt) -> FileReceipt<'_> {
    FileReceipt {
        path: &receipt.path,
        exists: receipt.exists,
        is_file: receipt.is_file,
        size: receipt.size,
        sha256: non_empty(&receipt.sha256),
        problem: non_empty(&receipt.problem),
    }
}

/// In proto3 an absent text is empty.
fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
