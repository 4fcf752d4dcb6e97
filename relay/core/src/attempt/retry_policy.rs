//! What follows the end of an attempt: another one, the end of the task, or a person's decision.
//!
//! Counts the end into the task's counters and decides from them; it never creates an attempt. A cause that may
//! pass, no side effects, and a daemon that does not object: only all three together make an end retryable.

use crate::config::Config;
use crate::ids::DaemonId;
use crate::record::{AttentionCause, FailureCode, ProcessExitStatus, RetryCounters};
use crate::task::spec::{RetryPolicy, UnsafeLossPolicy};

/// Lowest and highest number of attempts and losses that a policy may allow.
pub const ALLOWED_ATTEMPTS: std::ops::RangeInclusive<u32> = 1..=10;

const JITTER_PERCENT: u64 = 20;

/// How an attempt ended, as far as retries care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The daemon reported it.
    Failed {
        code: FailureCode,
        exit: Option<ProcessExitStatus>,
        retry_safe: bool,
        /// The daemon's word; it can only lower what the relay decides.
        hint: Option<bool>,
    },
    /// A deadline ended it. The exit is the relay's own kill and says nothing.
    TimedOut {
        code: FailureCode,
        retry_safe: bool,
        hint: Option<bool>,
    },
    /// Nobody knows what became of it. `retry_safe` is what `loss_is_safe` says.
    Lost {
        code: FailureCode,
        retry_safe: bool,
        /// None where an agent held the lease itself: that tells nothing about what the task does to daemons.
        daemon: Option<DaemonId>,
    },
    /// Given back or not taken: nobody's failure.
    Released,
    /// Not taken, because of the machine: as if it had not been offered.
    Refused,
    /// An operator took it away from its holder: as if it had not been offered, either.
    ForceReleased,
    /// The conversation to go on with is gone, and nothing was done yet: a fresh one begins at once.
    ResumeFailed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    RetryAfter {
        ms: u64,
    },
    End(RetryStop),
    /// A person has to decide.
    Park(AttentionCause),
}

/// Why no further attempt follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryStop {
    /// The cause would be the same again, or the daemon said so.
    NotRetryable,
    /// Something visible may have happened.
    Unsafe,
    AttemptsExhausted,
    LossesExhausted,
    DispatchesExhausted,
    /// The same code with the same exit twice in a row.
    RepeatedFailure,
}

impl RetryStop {
    pub fn as_str(self) -> &'static str {
        match self {
            RetryStop::NotRetryable => "not_retryable",
            RetryStop::Unsafe => "unsafe",
            RetryStop::AttemptsExhausted => "attempts_spent",
            RetryStop::LossesExhausted => "losses_spent",
            RetryStop::DispatchesExhausted => "dispatch_limit",
            RetryStop::RepeatedFailure => "repeated_failure",
        }
    }
}

/// Counts the end and decides. `millionth` is the jitter, uniform in `0..1_000_000`.
pub fn decide_retry(
    outcome: &AttemptOutcome,
    counters: &mut RetryCounters,
    policy: &RetryPolicy,
    config: &Config,
    millionth: u32,
) -> RetryDecision {
    let repeated = count_outcome(outcome, counters);
    let verdict = match outcome {
        AttemptOutcome::Released
        | AttemptOutcome::ForceReleased
        | AttemptOutcome::Refused
        | AttemptOutcome::ResumeFailed => RetryDecision::RetryAfter { ms: 0 },
        AttemptOutcome::Failed {
            code,
            retry_safe,
            hint,
            ..
        }
        | AttemptOutcome::TimedOut {
            code,
            retry_safe,
            hint,
        } => after_failure(
            code,
            *retry_safe,
            *hint,
            repeated,
            counters,
            policy,
            millionth,
        ),
        AttemptOutcome::Lost {
            code, retry_safe, ..
        } => after_loss(code, *retry_safe, counters, policy, config, millionth),
    };
    match verdict {
        RetryDecision::RetryAfter { .. }
            if counters.dispatches >= config.max_dispatches && !mutant!(DispatchLimitIgnored) =>
        {
            RetryDecision::End(RetryStop::DispatchesExhausted)
        }
        RetryDecision::RetryAfter { .. } | RetryDecision::End(_) | RetryDecision::Park(_) => {
            verdict
        }
    }
}

/// Whether an end with this cause may be tried again at all; shown on the attempt.
pub fn is_retryable(code: &FailureCode, retry_safe: bool, hint: Option<bool>) -> bool {
    is_transient(code) && retry_safe && hint != Some(false)
}

/// Frames are missing precisely when leases expire, so the last phase seen proves nothing: a loss is safe only if
/// no process was ever allowed to start, or the worker's receipt says that the prompt was never written.
pub fn is_loss_safe(confirmed: bool, prompt_written: Option<bool>) -> bool {
    !confirmed || prompt_written == Some(false) || mutant!(UnsafeLossRetried)
}

/// Whether the same attempt could end better another time.
pub fn is_transient(code: &FailureCode) -> bool {
    match code {
        FailureCode::DeliveryFailed
        | FailureCode::NotAccepted
        | FailureCode::DaemonLostAttempt
        | FailureCode::LeaseExpired
        | FailureCode::RelayUnreachable
        | FailureCode::ProcessStartTimeout
        | FailureCode::PromptWriteTimeout
        | FailureCode::NoFirstEventTimeout
        | FailureCode::NoVisibleEventTimeout
        | FailureCode::StreamIdleTimeout
        | FailureCode::AgentExit
        | FailureCode::NoResult
        | FailureCode::ProviderError
        | FailureCode::ResumeFailed
        | FailureCode::OutputInvalid => true,
        FailureCode::ToolIdleTimeout
        | FailureCode::UserInputTimeout
        | FailureCode::TaskDeadlineExceeded
        | FailureCode::SpawnFailed
        | FailureCode::ProviderMissing
        | FailureCode::BadCwd
        | FailureCode::ProviderAuth
        | FailureCode::ProviderQuota
        | FailureCode::ReceiptsMissing
        | FailureCode::CanceledByUser
        | FailureCode::CanceledByOperator
        | FailureCode::DependencyFailed
        | FailureCode::OperatorForced
        | FailureCode::DispatchLimit
        | FailureCode::Starved => false,
        FailureCode::Other(code) => TRANSIENT_CODES.contains(&&**code),
    }
}

/// Codes of agents that have no variant: one more would change how every record with another code is stored.
const TRANSIENT_CODES: [&str; 1] = ["provider_overloaded"];

/// `initial × 2^n`, at most `max`, spread by a fifth either way so that a fleet does not come back in step.
pub fn backoff_ms(policy: &RetryPolicy, earlier: u32, millionth: u32) -> u64 {
    let factor = 1u64.checked_shl(earlier).unwrap_or(u64::MAX);
    let base = policy.backoff_initial_ms.saturating_mul(factor);
    let base = base.min(policy.backoff_max_ms);
    let spread = base / 100 * JITTER_PERCENT + base % 100 * JITTER_PERCENT / 100;
    let share = u64::from(millionth.min(999_999));
    let shift = (u128::from(spread) * 2 * u128::from(share) / 1_000_000).min(u128::from(u64::MAX));
    let shift = u64::try_from(shift).unwrap_or(u64::MAX);
    (base - spread)
        .saturating_add(shift)
        .min(policy.backoff_max_ms)
}

/// Returns whether it is the same failure as the one before.
fn count_outcome(outcome: &AttemptOutcome, counters: &mut RetryCounters) -> bool {
    match outcome {
        AttemptOutcome::Failed { code, exit, .. } => {
            let by = if mutant!(FailureCountedTwice) { 2 } else { 1 };
            counters.failures = counters.failures.saturating_add(by);
            let this = Some((code.clone(), *exit));
            let repeated = counters.last_failure == this;
            counters.last_failure = this;
            repeated
        }
        AttemptOutcome::TimedOut { .. } => {
            counters.failures = counters.failures.saturating_add(1);
            counters.last_failure = None;
            false
        }
        AttemptOutcome::Lost { code, daemon, .. } => {
            counters.losses = counters.losses.saturating_add(1);
            counters.last_failure = None;
            if let Some(daemon) = daemon.filter(|_| daemon_was_lost(code))
                && !counters.daemons_lost.contains(&daemon)
            {
                counters.daemons_lost.push(daemon);
            }
            false
        }
        AttemptOutcome::Released | AttemptOutcome::ResumeFailed => {
            counters.losses += u32::from(mutant!(ReleaseIsLoss));
            false
        }
        AttemptOutcome::ForceReleased if mutant!(ForceReleaseCounted) => false,
        AttemptOutcome::Refused | AttemptOutcome::ForceReleased => {
            counters.dispatches = counters.dispatches.saturating_sub(1);
            false
        }
    }
}

/// An offer that never arrived or was never answered says nothing about what the task does to daemons.
fn daemon_was_lost(code: &FailureCode) -> bool {
    matches!(
        code,
        FailureCode::LeaseExpired | FailureCode::DaemonLostAttempt
    )
}

fn after_failure(
    code: &FailureCode,
    retry_safe: bool,
    hint: Option<bool>,
    repeated: bool,
    counters: &RetryCounters,
    policy: &RetryPolicy,
    millionth: u32,
) -> RetryDecision {
    if !is_transient(code) || hint == Some(false) {
        RetryDecision::End(RetryStop::NotRetryable)
    } else if !retry_safe {
        RetryDecision::End(RetryStop::Unsafe)
    } else if counters.failures >= policy.max_attempts && !mutant!(AttemptsUnlimited) {
        RetryDecision::End(RetryStop::AttemptsExhausted)
    } else if repeated {
        RetryDecision::End(RetryStop::RepeatedFailure)
    } else {
        retry(policy, counters, millionth)
    }
}

fn after_loss(
    code: &FailureCode,
    retry_safe: bool,
    counters: &RetryCounters,
    policy: &RetryPolicy,
    config: &Config,
    millionth: u32,
) -> RetryDecision {
    if daemon_was_lost(code) && counters.daemons_lost.len() >= config.poison_losses {
        return RetryDecision::Park(AttentionCause::Poison);
    }
    let unsafe_end = match policy.when_unsafe {
        UnsafeLossPolicy::Park => Some(RetryDecision::Park(AttentionCause::UnsafeLoss)),
        UnsafeLossPolicy::Fail => Some(RetryDecision::End(RetryStop::Unsafe)),
        UnsafeLossPolicy::Retry => None,
    };
    if let Some(verdict) = unsafe_end.filter(|_| !retry_safe) {
        return verdict;
    }
    if counters.losses >= policy.max_losses && !mutant!(LossesUnlimited) {
        return RetryDecision::End(RetryStop::LossesExhausted);
    }
    retry(policy, counters, millionth)
}

fn retry(policy: &RetryPolicy, counters: &RetryCounters, millionth: u32) -> RetryDecision {
    let ends = counters.failures.saturating_add(counters.losses);
    let ms = backoff_ms(policy, ends.saturating_sub(1), millionth);
    RetryDecision::RetryAfter { ms }
}

#[cfg(test)]
#[path = "retry_policy_tests.rs"]
mod tests;
