//! Each retry rule, with the case in which it refuses a retry.

use uuid::Uuid;

use super::*;
use crate::samples::{config, task_spec};

const HALF: u32 = 500_000;

fn policy() -> RetryPolicy {
    task_spec().retry
}

fn daemon(n: u128) -> DaemonId {
    DaemonId(Uuid::from_u128(n))
}

fn failed(code: FailureCode, exit: i32) -> AttemptOutcome {
    AttemptOutcome::Failed {
        code,
        exit: Some(ProcessExitStatus::Code(exit)),
        retry_safe: true,
        hint: None,
    }
}

fn timed_out(code: FailureCode) -> AttemptOutcome {
    AttemptOutcome::TimedOut {
        code,
        retry_safe: true,
        hint: None,
    }
}

fn lost(retry_safe: bool, on: u128) -> AttemptOutcome {
    AttemptOutcome::Lost {
        code: FailureCode::LeaseExpired,
        retry_safe,
        daemon: Some(daemon(on)),
    }
}

/// The decision after each of several ends in a row.
fn run(policy: &RetryPolicy, ends: &[AttemptOutcome]) -> Vec<RetryDecision> {
    let mut counters = RetryCounters::default();
    let one = |end: &AttemptOutcome| {
        counters.dispatches += 1;
        decide_retry(end, &mut counters, policy, &config(), HALF)
    };
    ends.iter().map(one).collect()
}

fn after(ms: u64) -> RetryDecision {
    RetryDecision::RetryAfter { ms }
}

#[test]
fn a_failure_is_retried_only_if_cause_safety_and_hint_all_allow_it() {
    let end = |code, retry_safe, hint| AttemptOutcome::Failed {
        code,
        exit: None,
        retry_safe,
        hint,
    };
    let one = |outcome| run(&policy(), &[outcome])[0];
    assert_eq!(one(end(FailureCode::AgentExit, true, None)), after(1_000));
    assert_eq!(
        one(end(FailureCode::AgentExit, true, Some(true))),
        after(1_000)
    );
    let unsafe_end = one(end(FailureCode::AgentExit, false, Some(true)));
    assert_eq!(unsafe_end, RetryDecision::End(RetryStop::Unsafe));
    let hinted = one(end(FailureCode::AgentExit, true, Some(false)));
    assert_eq!(hinted, RetryDecision::End(RetryStop::NotRetryable));
    let hopeless = one(end(FailureCode::ProviderAuth, true, Some(true)));
    assert_eq!(hopeless, RetryDecision::End(RetryStop::NotRetryable));
    assert!(!is_retryable(
        &FailureCode::Other("new".into()),
        true,
        Some(true)
    ));
    let overloaded = FailureCode::parse("provider_overloaded");
    assert!(is_retryable(&overloaded, true, None) && !is_retryable(&overloaded, false, None));
    assert!(!is_retryable(&FailureCode::LeaseExpired, false, None));
}

#[test]
fn when_unsafe_applies_only_to_losses() {
    let mut policy = policy();
    policy.when_unsafe = UnsafeLossPolicy::Retry;
    let unsafe_failure = AttemptOutcome::Failed {
        code: FailureCode::AgentExit,
        exit: None,
        retry_safe: false,
        hint: None,
    };
    assert_eq!(
        run(&policy, &[unsafe_failure]),
        [RetryDecision::End(RetryStop::Unsafe)]
    );
    assert_eq!(run(&policy, &[lost(false, 1)]), [after(1_000)]);
    policy.when_unsafe = UnsafeLossPolicy::Fail;
    assert_eq!(
        run(&policy, &[lost(false, 1)]),
        [RetryDecision::End(RetryStop::Unsafe)]
    );
    policy.when_unsafe = UnsafeLossPolicy::Park;
    let parked = [RetryDecision::Park(AttentionCause::UnsafeLoss)];
    assert_eq!(run(&policy, &[lost(false, 1)]), parked);
    assert_eq!(run(&policy, &[lost(true, 1)]), [after(1_000)]);
}

#[test]
fn a_loss_is_safe_only_if_unconfirmed_or_without_a_prompt() {
    let all = [None, Some(true), Some(false)];
    assert_eq!(all.map(|w| is_loss_safe(true, w)), [false, false, true]);
    assert_eq!(all.map(|w| is_loss_safe(false, w)), [true, true, true]);
}

#[test]
fn failures_and_losses_have_separate_budgets() {
    let first = FailureCode::ProcessStartTimeout;
    let mixed = [
        timed_out(first.clone()),
        lost(true, 1),
        timed_out(first.clone()),
        lost(true, 1),
        timed_out(first),
    ];
    let verdicts = run(&policy(), &mixed);
    let spent = RetryDecision::End(RetryStop::AttemptsExhausted);
    assert_eq!(
        verdicts,
        [
            after(1_000),
            after(2_000),
            after(4_000),
            after(8_000),
            spent
        ]
    );
    let lost_thrice = [lost(true, 1), lost(true, 1), lost(true, 1)];
    let spent = RetryDecision::End(RetryStop::LossesExhausted);
    assert_eq!(
        run(&policy(), &lost_thrice),
        [after(1_000), after(2_000), spent]
    );
}

#[test]
fn the_same_failure_twice_in_a_row_ends_retries() {
    let exit = |n| failed(FailureCode::AgentExit, n);
    let repeated = RetryDecision::End(RetryStop::RepeatedFailure);
    assert_eq!(run(&policy(), &[exit(7), exit(7)])[1], repeated);
    assert_eq!(run(&policy(), &[exit(7), exit(8)])[1], after(2_000));
    let other = failed(FailureCode::NoResult, 7);
    assert_eq!(run(&policy(), &[exit(7), other])[1], after(2_000));
    let lasting = RetryPolicy {
        max_attempts: 10,
        ..policy()
    };
    let between = run(&lasting, &[exit(7), lost(true, 1), exit(7)]);
    assert_eq!(between[2], after(4_000), "not in a row");
    let given_back = run(&lasting, &[exit(7), AttemptOutcome::Released, exit(7)]);
    assert_eq!(
        given_back[2], repeated,
        "a release is not an attempt between the two failures"
    );
    let idle = || timed_out(FailureCode::StreamIdleTimeout);
    assert_eq!(run(&lasting, &[idle(), idle()])[1], after(2_000));
}

#[test]
fn released_attempts_count_only_against_the_dispatch_limit() {
    let verdicts = run(&policy(), &vec![AttemptOutcome::Released; 20]);
    assert!(verdicts[..19].iter().all(|verdict| *verdict == after(0)));
    assert_eq!(
        verdicts[19],
        RetryDecision::End(RetryStop::DispatchesExhausted)
    );
    let mut counters = RetryCounters::default();
    decide_retry(
        &AttemptOutcome::Released,
        &mut counters,
        &policy(),
        &config(),
        0,
    );
    assert_eq!(counters, RetryCounters::default());
}

#[test]
fn a_forced_release_is_not_counted_as_an_offer() {
    let mut counters = RetryCounters {
        dispatches: 20,
        ..RetryCounters::default()
    };
    let verdict = decide_retry(
        &AttemptOutcome::ForceReleased,
        &mut counters,
        &policy(),
        &config(),
        0,
    );
    assert_eq!((verdict, counters.dispatches), (after(0), 19));
    assert_eq!((counters.failures, counters.losses), (0, 0));
}

#[test]
fn a_task_that_loses_two_daemons_is_parked_as_poison() {
    for when_unsafe in [
        UnsafeLossPolicy::Park,
        UnsafeLossPolicy::Retry,
        UnsafeLossPolicy::Fail,
    ] {
        let policy = RetryPolicy {
            when_unsafe,
            ..policy()
        };
        let poison = RetryDecision::Park(AttentionCause::Poison);
        assert_eq!(run(&policy, &[lost(true, 1), lost(false, 2)])[1], poison);
        assert_eq!(
            run(&policy, &[lost(true, 1), lost(true, 1)])[1],
            after(2_000)
        );
    }
    let unanswered = |on| AttemptOutcome::Lost {
        code: FailureCode::NotAccepted,
        retry_safe: true,
        daemon: Some(daemon(on)),
    };
    let verdicts = run(&policy(), &[unanswered(1), unanswered(2)]);
    assert_eq!(verdicts[1], after(2_000), "no daemon was lost under it");
}

#[test]
fn backoff_doubles_to_its_limit_with_a_fifth_of_jitter() {
    let policy = policy();
    let at = |n, jitter| backoff_ms(&policy, n, jitter);
    assert_eq!([at(0, 0), at(0, HALF), at(0, 999_999)], [800, 1_000, 1_199]);
    assert_eq!([at(1, HALF), at(5, HALF)], [2_000, 32_000]);
    assert_eq!([at(6, HALF), at(200, HALF), at(200, 999_999)], [60_000; 3]);
    assert_eq!(at(200, 0), 48_000);
    let none = RetryPolicy {
        backoff_initial_ms: 0,
        ..policy.clone()
    };
    assert_eq!(backoff_ms(&none, 3, HALF), 0);
}
