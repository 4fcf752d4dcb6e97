//! The wire code of a rejection that fences an attempt.

use baton_core::io::rejection::Rejection;
use baton_proto::v1;

/// The fence code of a rejection. Every code that could reveal something about attempts of
/// others is sent as unknown.
pub(super) fn fence_code(code: Rejection) -> v1::FenceCode {
    match code {
        Rejection::LeaseExpired => v1::FenceCode::LeaseExpired,
        Rejection::Superseded => v1::FenceCode::Superseded,
        Rejection::StaleAttempt => v1::FenceCode::StaleAttempt,
        Rejection::TaskTerminal | Rejection::AlreadyFinished => v1::FenceCode::TaskTerminal,
        Rejection::BadProof => v1::FenceCode::BadProof,
        Rejection::StaleIncarnation => v1::FenceCode::StaleIncarnation,
        Rejection::NotLeased => v1::FenceCode::NotLeased,
        Rejection::UnknownTask
        | Rejection::UnknownAttempt
        | Rejection::UnknownInput
        | Rejection::UnknownDaemon
        | Rejection::AmbiguousDaemon
        | Rejection::UnknownSession
        | Rejection::DaemonConnected
        | Rejection::DaemonHolds
        | Rejection::NotFinished
        | Rejection::BeingCanceled
        | Rejection::QueueFull(_)
        | Rejection::TenantQueueFull(_)
        | Rejection::IdempotencyConflict
        | Rejection::NoDaemon
        | Rejection::NotPaused
        | Rejection::NotClaimable
        | Rejection::AlreadyTaken
        | Rejection::DispatchLimit
        | Rejection::InputClosed
        | Rejection::AnswerConflict
        | Rejection::WrongOrder
        | Rejection::Gap
        | Rejection::TooManyTools
        | Rejection::TooManyInputs
        | Rejection::TooManyPauses
        | Rejection::DuplicateInput
        | Rejection::DuplicateTool
        | Rejection::UnknownTool
        | Rejection::ContractUnmet
        | Rejection::ReasonMissing
        | Rejection::RateLimited
        | Rejection::NotHeld
        | Rejection::NotOpen
        | Rejection::NotBegun
        | Rejection::UnsafeRetry
        | Rejection::Unreadable
        | Rejection::OutputGap
        | Rejection::BeingEnded
        | Rejection::AlreadyParked
        | Rejection::NotParked
        | Rejection::HandedOff => v1::FenceCode::UnknownAttempt,
    }
}
