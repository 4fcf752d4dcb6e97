//! Ownership and token checks for frames, and the answers to frames: acknowledgement and
//! rejection.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::goal::completion_contract::UnmetRequirement;
use crate::ids::{DaemonId, SessionId};
use crate::io::effects::{CommitDependency, CoreMetric, DaemonMessage};
use crate::io::rejection::Rejection;
use crate::io::session_input::{FrameRef, LeaseToken};
use crate::record::AttemptRecord;
use crate::task::live_task::LiveTask;
use crate::turn::CoreTurn;

/// The origin of a frame, to which its answer is sent.
#[derive(Clone, Copy)]
pub(crate) struct FrameOrigin {
    pub(crate) session: SessionId,
    pub(crate) daemon: DaemonId,
    pub(crate) frame_ref: FrameRef,
    pub(crate) control_seq: u64,
}

pub(crate) fn is_owned_by(attempt: &AttemptRecord, daemon: DaemonId) -> bool {
    attempt
        .daemon_holder()
        .is_some_and(|holder| holder.daemon == daemon || mutant!(ForeignFrameTaken))
}

/// Checks that the attempt exists and belongs to the daemon, then the token. An attempt of
/// another daemon is rejected as unknown, but counted separately in the metrics.
pub(crate) fn check_owner(
    live: &LiveTask,
    from: FrameOrigin,
    proof: Option<&LeaseToken>,
    turn: &mut CoreTurn<'_>,
) -> Result<(), Rejection> {
    let named = live.record().attempt(from.frame_ref.attempt);
    let Some(attempt) = named.filter(|attempt| attempt.number == from.frame_ref.number) else {
        return Err(Rejection::UnknownAttempt);
    };
    if !is_owned_by(attempt, from.daemon) {
        turn.effects.metrics.push(CoreMetric::ForeignAttempt {
            daemon: from.daemon,
        });
        return Err(Rejection::UnknownAttempt);
    }
    match proof {
        // A parked attempt has no lease, so there is no token to compare. Its holder may still
        // send the termination receipt.
        Some(token) if attempt.lease.is_some() && !matches_token(attempt, token) => {
            Err(Rejection::BadProof)
        }
        Some(_) | None => Ok(()),
    }
}

/// Compares in constant time: response times must not reveal how much of a token is correct.
pub(crate) fn matches_token(attempt: &AttemptRecord, token: &LeaseToken) -> bool {
    let hash = token_hash(token);
    attempt
        .lease
        .as_ref()
        .is_some_and(|lease| lease.token_hash.ct_eq(&hash).into() || mutant!(ProofIgnored))
}

pub(crate) fn token_hash(token: &LeaseToken) -> [u8; 32] {
    Sha256::digest(token.0).into()
}

pub(crate) fn send_ack(from: FrameOrigin, control_seq: u64, turn: &mut CoreTurn<'_>) {
    let message = DaemonMessage::Ack {
        attempt: from.frame_ref.attempt,
        control_seq,
    };
    let after =
        CommitDependency::Task(from.frame_ref.task).unless_broken(mutant!(AckBeforePersist));
    turn.send_to_session(after, from.session, message);
}

pub(crate) fn reject_frame(from: FrameOrigin, code: Rejection, turn: &mut CoreTurn<'_>) {
    reject_frame_with(from, code, None, Vec::new(), turn);
}

pub(crate) fn reject_frame_with(
    from: FrameOrigin,
    code: Rejection,
    expected: Option<u64>,
    unmet: Vec<UnmetRequirement>,
    turn: &mut CoreTurn<'_>,
) {
    turn.effects.metrics.push(CoreMetric::FrameRejected(code));
    let (attempt, control_seq) = (from.frame_ref.attempt, from.control_seq);
    let message = DaemonMessage::FrameRejected {
        attempt,
        control_seq,
        code,
        expected,
        unmet,
    };
    // The rejection may refer to an end that is not durable yet, and the daemon deletes a
    // rejected frame.
    turn.send_to_session(
        CommitDependency::Task(from.frame_ref.task),
        from.session,
        message,
    );
}
