//! The completion contract: what of it the receipts leave open. Whoever lets a task complete asks here, in the commit that
//! completes it: a daemon's or an agent's word, a late one, and an operator's.

use std::sync::Arc;

use baton_contract::{Found, Required, judge, summary};
pub use baton_contract::{Unmet, Why};

use crate::bounds;
use crate::record::{Artifact, AttemptRecord};
use crate::spec::{MissingPolicy, TaskSpec};
use crate::time::Wall;

/// What the holder found at one required path. It looks, the relay judges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundFile {
    pub path: Arc<str>,
    pub exists: bool,
    /// A regular file, opened beneath the root.
    pub is_file: bool,
    pub size: u64,
    pub sha256: Option<Arc<str>>,
    pub modified: Option<Wall>,
    /// Where links inside the root led.
    pub resolved: Option<Arc<str>>,
    /// Why it was refused or could not be read.
    pub problem: Option<Arc<str>>,
}

/// The receipts as the record keeps them: one per required file, by its place in the contract. What nobody asked for is
/// dropped, and of two for one path the first counts.
pub(crate) fn seen(spec: &TaskSpec, found: Vec<FoundFile>) -> Vec<Artifact> {
    let mut kept: Vec<Artifact> = Vec::new();
    let Some(contract) = &spec.contract else {
        return kept;
    };
    for file in found {
        let place = contract
            .artifacts
            .iter()
            .position(|a| *a.path == *file.path);
        let Some(required) = place.and_then(|place| u8::try_from(place).ok()) else {
            continue;
        };
        if kept.iter().all(|known| known.required != required) {
            kept.push(bounds::clip_artifact(Artifact {
                required,
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

/// What the newest receipts of an attempt leave open; empty means that it may complete.
pub fn unmet(spec: &TaskSpec, attempt: &AttemptRecord) -> Vec<Unmet> {
    judge_seen(spec, &attempt.artifacts)
}

pub(crate) fn judge_seen(spec: &TaskSpec, seen: &[Artifact]) -> Vec<Unmet> {
    let Some(contract) = spec.contract.as_ref().filter(|_| !mutant!(ContractIgnored)) else {
        return Vec::new();
    };
    let required = contract.artifacts.iter().map(|wanted| Required {
        path: &wanted.path,
        min_size: wanted.min_size,
        sha256: wanted.sha256.as_deref(),
    });
    let found = seen.iter().filter_map(|artifact| {
        let wanted = contract.artifacts.get(usize::from(artifact.required))?;
        Some(Found {
            path: &wanted.path,
            exists: artifact.exists,
            is_file: artifact.is_file,
            size: artifact.size,
            sha256: artifact.sha256.as_deref(),
            problem: artifact.problem.as_deref(),
        })
    });
    judge(required, found)
}

/// The same before anything of it is kept.
pub fn judge_found(spec: &TaskSpec, found: &[FoundFile]) -> Vec<Unmet> {
    judge_seen(spec, &seen(spec, found.to_vec()))
}

/// What happens to a completion that something is missing for.
pub(crate) fn policy(spec: &TaskSpec) -> MissingPolicy {
    spec.contract
        .as_ref()
        .map_or_else(MissingPolicy::default, |contract| contract.missing_policy)
}

/// All that is unmet, for people.
pub(crate) fn words(unmet: &[Unmet]) -> Arc<str> {
    summary(unmet, bounds::WORDS_BYTES).into()
}

/// Which of the required files are unmet, one bit each: a contract has at most 64.
pub(crate) fn places(unmet: &[Unmet]) -> u64 {
    let bit = |unmet: &Unmet| u32::try_from(unmet.index).ok().map(|at| 1 << (at % 64));
    unmet
        .iter()
        .filter_map(bit)
        .fold(0, |all, one: u64| all | one)
}

/// The paths behind [`places`].
pub fn paths(spec: &TaskSpec, places: u64) -> Vec<String> {
    let required = spec
        .contract
        .iter()
        .flat_map(|contract| &contract.artifacts);
    required
        .take(64)
        .enumerate()
        .filter(|(at, _)| places & (1 << at) != 0)
        .map(|(_, wanted)| wanted.path.clone())
        .collect()
}
