//! Required files: which ones workers leave, and an independent check of results without them.

use std::sync::Arc;

use baton_core::goal::completion_contract::{FoundArtifact, UnmetRequirement};
use baton_core::ids::AttemptId;
use baton_core::io::session_input::{CompletedBody, FrameBody, ProcessTermination};
use baton_core::record::{AttemptRecord, AttemptState, EndState, EndedBy, FailureCode};
use baton_core::task::spec::{CompletionContract, MissingPolicy, RequiredArtifact, TaskSpec};

use crate::daemon::agent_process::{
    completed_frame, confirmed_termination, errored_body, with_termination,
};
use crate::random::SeededRng;
use crate::simulation::Simulation;

const MIN_FILE_BYTES: u64 = 10;

/// A random contract, or none.
pub(crate) fn random_contract(rng: &mut SeededRng, may_ask: bool) -> Option<CompletionContract> {
    let required = |n: u64| RequiredArtifact {
        path: format!("out/{n}"),
        min_size: Some(MIN_FILE_BYTES),
        sha256: None,
    };
    let policies = [
        MissingPolicy::Reject,
        MissingPolicy::Reject,
        MissingPolicy::Fail,
        MissingPolicy::Park,
    ];
    (may_ask && rng.chance(50)).then(|| CompletionContract {
        artifacts: (0..rng.between(1, 3)).map(required).collect(),
        missing_policy: rng.pick(&policies).unwrap_or_default(),
    })
}

/// The files that a worker finds at its end: all of them, or each with its own defect.
pub(crate) fn random_found_files(
    spec: &TaskSpec,
    all: bool,
    rng: &mut SeededRng,
) -> Vec<FoundArtifact> {
    let mut found = Vec::new();
    for wanted in spec.contract.iter().flat_map(|c| &c.artifacts) {
        let mut file = FoundArtifact {
            path: wanted.path.as_str().into(),
            exists: true,
            is_file: true,
            size: MIN_FILE_BYTES,
            ..FoundArtifact::default()
        };
        if !all {
            match rng.below(6) {
                0 => file.exists = false,
                1 => file.is_file = false,
                2 => file.size = MIN_FILE_BYTES - 1,
                3 => file.problem = Some("it leads out of the workspace".into()),
                4 => continue,
                _ => {}
            }
        }
        found.push(file);
    }
    found
}

/// Decided from the receipts alone, one by one.
pub(crate) fn is_contract_met(spec: &TaskSpec, found: &[FoundArtifact]) -> bool {
    let mut wanted = spec.contract.iter().flat_map(|c| &c.artifacts);
    wanted.all(|wanted| {
        let file = found.iter().find(|file| *file.path == *wanted.path);
        file.is_some_and(|f| {
            f.exists && f.is_file && f.size >= MIN_FILE_BYTES && f.problem.is_none()
        })
    })
}

/// A completed attempt has its files. One that failed or was parked for missing files has that
/// policy.
pub(crate) fn check(spec: &TaskSpec, was: &AttemptRecord, is: &AttemptRecord) {
    let policy = spec.contract.as_ref().map(|c| c.missing_policy);
    let asked = spec.contract.as_ref().map_or(0, |c| c.artifacts.len());
    let (id, seen) = (is.id, &is.artifacts);
    match &is.state {
        AttemptState::Ended(end) if was.state.end().is_none_or(|old| old.state != end.state) => {
            let good = |a: &&baton_core::record::ArtifactEvidence| {
                a.exists && a.is_file && a.size >= MIN_FILE_BYTES && a.problem.is_none()
            };
            let met = seen.iter().filter(good).count() == asked;
            // An operator's completion is checked separately, by its audit event.
            let by_hand = end.ended_by == EndedBy::Operator;
            assert!(
                end.state != EndState::Completed || met || by_hand,
                "contract: {id} is completed, and the relay saw {seen:?}"
            );
        }
        AttemptState::Parked(parked) if was.state.is_leased() => {
            let unmet = parked.cause == baton_core::record::ParkCause::ReceiptsMissing;
            assert!(
                !unmet || policy == Some(MissingPolicy::Park),
                "contract: {id} is parked, and its policy is {policy:?}"
            );
        }
        _ => {}
    }
}

impl Simulation {
    /// The result of a worker, with the files that it finds.
    pub(crate) fn build_result(
        &mut self,
        index: usize,
        attempt: AttemptId,
        all: bool,
    ) -> FrameBody {
        let all = all || self.healing;
        let held = self.daemons[index].attempts.get(&attempt);
        let artifacts = held.map_or_else(Vec::new, |held| {
            random_found_files(&Arc::clone(&held.spec), all, &mut self.rng)
        });
        match completed_frame(confirmed_termination()) {
            FrameBody::Completed(body) => FrameBody::Completed(CompletedBody { artifacts, ..body }),
            other => other,
        }
    }

    /// Rejected for missing files: every one of them is named, only if the task's policy is
    /// reject, and the worker tries again or gives up.
    pub(crate) fn handle_refused_completion(
        &mut self,
        index: usize,
        attempt: AttemptId,
        control_seq: u64,
        unmet: &[UnmetRequirement],
    ) {
        let Some(held) = self.daemons[index].attempts.get(&attempt) else {
            return;
        };
        let spec = Arc::clone(&held.spec);
        let contract = spec.contract.as_ref();
        let policy = contract.map(|contract| contract.missing_policy);
        assert_eq!(
            policy,
            Some(MissingPolicy::Reject),
            "contract: the result of {attempt} was refused"
        );
        let last = held.outbox.last_control_seq() == control_seq && held.is_transcript_read();
        if !held.ended || !last || held.fenced || held.receipt_unwanted {
            return;
        }
        assert!(
            !unmet.is_empty(),
            "contract: nothing is missing of {attempt}"
        );
        // Its processes may still run.
        let termination = if held.processes_alive {
            ProcessTermination::default()
        } else {
            confirmed_termination()
        };
        self.counts.refused_results += 1;
        let body = if self.rng.chance(60) {
            with_termination(self.build_result(index, attempt, true), termination)
        } else {
            FrameBody::Errored(errored_body(FailureCode::ReceiptsMissing, termination))
        };
        self.send_frame(index, attempt, body);
    }
}
