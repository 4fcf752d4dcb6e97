//! Decides after an attempt's end whether to retry, end the task, or park it for a person.
//!
//! Counts the end in the task's counters and decides from them; it never creates an attempt. An
//! end is retryable only if the cause is transient, there were no side effects, and the
//! daemon's hint does not forbid it.

use crate::config::Config;
use crate::ids::DaemonId;
use crate::record::{AttentionCause, FailureCode, ProcessExitStatus, RetryCounters};
use crate::task::spec::{RetryPolicy, UnsafeLossPolicy};

/// Range of attempts and of losses that a policy may allow.
pub const ALLOWED_ATTEMPTS: std::ops::RangeInclusive<u32> = 1..=10;

const JITTER_PERCENT: u64 = 20;

/// How an attempt ended, reduced to what the retry decision needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The daemon reported a failure.
    Failed {
        code: FailureCode,
        exit: Option<ProcessExitStatus>,
        retry_safe: bool,
        /// The daemon's opinion on a retry. It can forbid one, never cause one.
        hint: Option<bool>,
    },
    /// A deadline ended it. The exit status comes from the relay's own kill, so it is not
    /// compared.
    TimedOut {
        code: FailureCode,
        retry_safe: bool,
        hint: Option<bool>,
    },
    /// The attempt's fate is unknown. `retry_safe` comes from `is_loss_safe`.
    Lost {
        code: FailureCode,
        retry_safe: bool,
        /// None if an agent held the lease itself: such a loss is no evidence that the task
        /// brings daemons down.
        daemon: Option<DaemonId>,
    },
    /// Given back or rejected; not a failure.
    Released,
    /// Rejected because of the machine's state; the offer is not counted.
    Refused,
    /// An operator took it from its holder; the offer is not counted.
    ForceReleased,
    /// The conversation to resume no longer exists, and no work was done: retried at once with
    /// a fresh one.
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
    /// The cause is permanent, or the daemon's hint forbids a retry.
    NotRetryable,
    /// The attempt may have had side effects.
    Unsafe,
    AttemptsExhausted,
    LossesExhausted,
    DispatchesExhausted,
    /// The same code and exit status twice in a row.
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

/// Counts the end and decides what follows. `millionth` is the jitter, uniform in
/// `0..1_000_000`.
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

/// Whether an end with this cause may be retried at all; shown on the attempt.
pub fn is_retryable(code: &FailureCode, retry_safe: bool, hint: Option<bool>) -> bool {
    is_transient(code) && retry_safe && hint != Some(false)
}

/// Whether a lost attempt can be retried without repeating side effects. Frames are missing
/// exactly when a lease expires, so the last phase seen proves nothing. A loss is safe only if
/// no process was allowed to start, or the worker's receipt states that the prompt was never
/// written.
pub fn is_loss_safe(confirmed: bool, prompt_written: Option<bool>) -> bool {
    !confirmed || prompt_written == Some(false) || mutant!(UnsafeLossRetried)
}

/// Whether a retry after this failure could succeed.
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

/// Transient agent codes without an enum variant. A new variant would change how every record
/// with an `Other` code is stored.
const TRANSIENT_CODES: [&str; 1] = ["provider_overloaded"];

/// `initial × 2^n`, at most `max`, with ±20 % jitter so that many tasks do not retry at the
/// same time.
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

/// Counts the end. Returns whether it repeats the previous failure.
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

/// Whether the loss may mean that the task brought its daemon down. An offer that was not
/// delivered or not answered does not.
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
