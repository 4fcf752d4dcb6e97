//! The completion contract: which requirements the receipts leave unmet. Every path that
//! completes a task checks it in the completing commit: a daemon's frame, an agent's call, a
//! late result, and an operator's completion.

use std::sync::Arc;

use baton_validation::{FileReceipt, RequiredFile, summarize_unmet, unmet_requirements};
pub use baton_validation::{UnmetReason, UnmetRequirement};

use crate::record::{ArtifactEvidence, AttemptRecord};
use crate::task::size_limits;
use crate::task::spec::{MissingPolicy, TaskSpec};
use crate::time::WallTime;

/// The receipt for one required path. The holder collects it; the relay judges it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundArtifact {
    pub path: Arc<str>,
    pub exists: bool,
    /// A regular file, opened beneath the root.
    pub is_file: bool,
    pub size: u64,
    pub sha256: Option<Arc<str>>,
    pub modified: Option<WallTime>,
    /// The path after following links inside the root.
    pub resolved: Option<Arc<str>>,
    /// Why the file was refused or could not be read.
    pub problem: Option<Arc<str>>,
}

/// The receipts as the record stores them: one per required file, by its index in the contract.
/// Receipts for other paths are dropped, and the first of two for one path counts.
pub(crate) fn evidence_of(spec: &TaskSpec, found: Vec<FoundArtifact>) -> Vec<ArtifactEvidence> {
    let mut kept: Vec<ArtifactEvidence> = Vec::new();
    let Some(contract) = &spec.contract else {
        return kept;
    };
    for file in found {
        let index = contract
            .artifacts
            .iter()
            .position(|a| *a.path == *file.path);
        let Some(required) = index.and_then(|index| u8::try_from(index).ok()) else {
            continue;
        };
        if kept.iter().all(|known| known.contract_index != required) {
            kept.push(size_limits::clip_artifact(ArtifactEvidence {
                contract_index: required,
                exists: file.exists,
                is_file: file.is_file,
                size: file.size,
                sha256: file.sha256,
                modified: file.modified,
                resolved: file.resolved.filter(|resolved| *resolved != file.path),
                problem: file.problem,
            }));
        }
    }
    kept
}

/// The requirements that the newest receipts of an attempt leave unmet. Empty means that it may
/// complete.
pub fn unmet_task_requirements(spec: &TaskSpec, attempt: &AttemptRecord) -> Vec<UnmetRequirement> {
    judge_evidence(spec, &attempt.artifacts)
}

pub(crate) fn judge_evidence(spec: &TaskSpec, seen: &[ArtifactEvidence]) -> Vec<UnmetRequirement> {
    let Some(contract) = spec.contract.as_ref().filter(|_| !mutant!(ContractIgnored)) else {
        return Vec::new();
    };
    let required = contract.artifacts.iter().map(|wanted| RequiredFile {
        path: &wanted.path,
        min_size: wanted.min_size,
        sha256: wanted.sha256.as_deref(),
    });
    let found = seen.iter().filter_map(|artifact| {
        let wanted = contract
            .artifacts
            .get(usize::from(artifact.contract_index))?;
        Some(FileReceipt {
            path: &wanted.path,
            exists: artifact.exists,
            is_file: artifact.is_file,
            size: artifact.size,
            sha256: artifact.sha256.as_deref(),
            problem: artifact.problem.as_deref(),
        })
    });
    unmet_requirements(required, found)
}

/// The unmet requirements of receipts that are not stored yet.
pub fn judge_found(spec: &TaskSpec, found: &[FoundArtifact]) -> Vec<UnmetRequirement> {
    judge_evidence(spec, &evidence_of(spec, found.to_vec()))
}

/// The policy for a completion with unmet requirements.
pub(crate) fn missing_policy(spec: &TaskSpec) -> MissingPolicy {
    spec.contract
        .as_ref()
        .map_or_else(MissingPolicy::default, |contract| contract.missing_policy)
}

/// All unmet requirements as text for people.
pub(crate) fn unmet_summary(unmet: &[UnmetRequirement]) -> Arc<str> {
    summarize_unmet(unmet, size_limits::MAX_TEXT_BYTES).into()
}

/// The unmet files as one bit per file: a contract has at most 64.
pub(crate) fn unmet_bits(unmet: &[UnmetRequirement]) -> u64 {
    let bit = |unmet: &UnmetRequirement| u32::try_from(unmet.index).ok().map(|at| 1 << (at % 64));
    unmet
        .iter()
        .filter_map(bit)
        .fold(0, |all, one: u64| all | one)
}

/// The paths of the files in `bits`, as made by `unmet_bits`.
pub fn unmet_paths(spec: &TaskSpec, bits: u64) -> Vec<String> {
    let required = spec
        .contract
        .iter()
        .flat_map(|contract| &contract.artifacts);
    required
        .take(64)
        .enumerate()
        .filter(|(at, _)| bits & (1 << at) != 0)
        .map(|(_, wanted)| wanted.path.clone())
        .collect()
}
