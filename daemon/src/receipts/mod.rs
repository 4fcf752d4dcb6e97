//! The files that a contract requires, as they are on this machine. The daemon inspects them
//! and the relay decides: a receipt states what was found at each path, only beneath the
//! attempt's workspace directory. The inspection runs outside the loop and has a time limit, so
//! that no file, however large or slow, delays a heartbeat.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_contract::{
    FileReceipt, InvalidPath, PATHS_MAX, RequiredFile, UnmetRequirement, check_path,
    unmet_requirements,
};
use baton_proto::v1::{ArtifactReceipt, CompletionContract, MissingPolicy, RequiredArtifact};
use tokio::sync::mpsc;
use tracing::warn;

mod file_inspection;
#[cfg(test)]
mod tests;

/// The time limit for all files of a contract together.
pub const INSPECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// The files that an attempt has to leave.
#[derive(Clone, Debug, PartialEq)]
pub struct RequiredFiles {
    root: PathBuf,
    contract: CompletionContract,
}

/// A contract with files that cannot be checked.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequiredFilesError {
    #[error("the contract requires {0} files; at most {PATHS_MAX} can be checked")]
    TooMany(usize),
    #[error("the contract's path {path:?} cannot be checked: {fault}")]
    BadPath { path: String, fault: InvalidPath },
}

impl RequiredFiles {
    /// `None` when no file is required. Paths are checked again here, because the relay may be
    /// an older version.
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

    /// Whether the attempt may go on and complete again when something is missing.
    pub fn allows_retry(&self) -> bool {
        match self.contract.missing_policy() {
            MissingPolicy::Unspecified | MissingPolicy::Reject => true,
            MissingPolicy::Fail | MissingPolicy::Park => false,
        }
    }

    /// Inspects the files, one receipt per path. A file that could not be inspected in time has
    /// a receipt that says so.
    pub async fn inspect(&self, limit: Duration) -> Vec<ArtifactReceipt> {
        // Room for all receipts, so that the inspecting thread never waits.
        let (found, mut receipts) = mpsc::channel(PATHS_MAX);
        let stop = StopOnDrop::default();
        let (files, stopped) = (self.clone(), Arc::clone(&stop.0));
        tokio::task::spawn_blocking(move || files.inspect_all(&found, &stopped));
        let mut received = Vec::new();
        let all = async {
            while let Some(receipt) = receipts.recv().await {
                received.push(receipt);
            }
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            warn!(root = %self.root.display(), ?limit, "not all required files could be checked in time");
        }
        self.add_uninspected(&mut received, limit);
        received
    }

    /// Inspects the files and judges them by the relay's rules: why a completion would be
    /// refused now.
    pub async fn unmet_requirements(&self, limit: Duration) -> Vec<UnmetRequirement> {
        let receipts = self.inspect(limit).await;
        self.judge_receipts(&receipts)
    }

    /// The requirements of the contract that these receipts do not meet.
    pub fn judge_receipts(&self, receipts: &[ArtifactReceipt]) -> Vec<UnmetRequirement> {
        let required = self.contract.required_artifacts.iter();
        unmet_requirements(required.map(to_required), receipts.iter().map(to_found))
    }

    /// Runs in a blocking thread.
    fn inspect_all(&self, found: &mpsc::Sender<ArtifactReceipt>, stopped: &AtomicBool) {
        let root = file_inspection::open_root(&self.root);
        for required in self.distinct_paths() {
            let receipt = match &root {
                Ok(root) => file_inspection::inspect_file(root, required, stopped),
                Err(problem) => problem_receipt(&required.path, problem.to_string()),
            };
            if stopped.load(Ordering::Relaxed) || found.try_send(receipt).is_err() {
                return;
            }
        }
    }

    fn distinct_paths(&self) -> impl Iterator<Item = &RequiredArtifact> {
        let mut known = BTreeSet::new();
        let required = self.contract.required_artifacts.iter();
        required.filter(move |required| known.insert(required.path.as_str()))
    }

    fn add_uninspected(&self, received: &mut Vec<ArtifactReceipt>, limit: Duration) {
        let problem = format!("it could not be checked within {limit:?}");
        for required in self.distinct_paths() {
            if received.iter().all(|receipt| receipt.path != required.path) {
                received.push(problem_receipt(&required.path, problem.clone()));
            }
        }
    }
}

/// Stops the inspection when its caller is gone.
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

fn to_required(required: &RequiredArtifact) -> RequiredFile<'_> {
    RequiredFile {
        path: &required.path,
        min_size: required.min_size,
        sha256: non_empty(&required.sha256),
    }
}

fn to_found(receipt: &ArtifactReceipt) -> FileReceipt<'_> {
    FileReceipt {
        path: &receipt.path,
        exists: receipt.exists,
        is_file: receipt.is_file,
        size: receipt.size,
        sha256: non_empty(&receipt.sha256),
        problem: non_empty(&receipt.problem),
    }
}

/// Proto3 strings have no absent value.
fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
