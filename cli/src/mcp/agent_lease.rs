//! The lease of a standalone server. It is kept in memory only, measured on a clock that
//! continues while the machine is suspended, and renewed next to the calls. After it has ended,
//! calls are rejected.

use std::time::Duration;

use baton_daemon::{BootTime, Clock};
use baton_proto::v1::{AgentGrant, AgentLease, CompletionContract, LeaseToken, RenewRequest};
use tokio::sync::watch;

use super::relay_connection::{CALL_TIMEOUT, RelayConnection};
use super::tool_result::{FAILED_PRECONDITION, ToolRejection};

/// Used if the relay's grant has no interval.
const DEFAULT_RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Number of tries that should fit into the remaining time of a lease.
const RENEWALS_PER_LEASE: u32 = 3;
/// Pause before a failed renewal is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The lease of one attempt.
#[derive(Clone, Debug)]
pub(super) struct AgentLeaseState {
    pub(super) task_id: String,
    pub(super) attempt_id: String,
    token: LeaseToken,
    pub(super) contract: Option<CompletionContract>,
    /// The agent got the grant, so it may have started working.
    pub(super) known_to_agent: bool,
    /// From this time on, nothing may be done under the lease.
    expires_at: BootTime,
    renew_at: BootTime,
    renew_interval: Duration,
    pub(super) cancel_requested: bool,
    /// Why the relay ended the lease.
    lost_reason: Option<String>,
}

impl AgentLeaseState {
    /// `asked_at` is when the request for the grant was sent: the lease counts from then.
    pub(super) fn from_grant(grant: &AgentGrant, asked_at: BootTime, known_to_agent: bool) -> Self {
        let attempt = grant.r#ref.clone().unwrap_or_default();
        let every = Some(Duration::from_millis(grant.renew_ms)).filter(|every| !every.is_zero());
        let renew_interval = every.unwrap_or(DEFAULT_RENEW_INTERVAL);
        let spec = grant.task.as_ref().and_then(|task| task.spec.as_ref());
        Self {
            contract: spec.and_then(|spec| spec.contract.clone()),
            known_to_agent,
            task_id: attempt.task_id,
            attempt_id: attempt.attempt_id,
            token: grant.token.clone().unwrap_or_default(),
            expires_at: asked_at.after(Duration::from_millis(grant.granted_ms)),
            renew_at: asked_at.after(renew_interval),
            renew_interval,
            cancel_requested: false,
            lost_reason: None,
        }
    }

    pub(super) fn to_wire(&self) -> AgentLease {
        AgentLease {
            task_id: self.task_id.clone(),
            attempt_id: self.attempt_id.clone(),
            token: Some(self.token.clone()),
        }
    }

    /// Returns why the lease has ended, if it has.
    pub(super) fn check_valid(&self, now: BootTime) -> Result<(), ToolRejection> {
        let why = match &self.lost_reason {
            Some(why) => why.as_str(),
            None if now < self.expires_at => return Ok(()),
            None => "no renewal reached the relay in time",
        };
        let what = format!("the lease of task {} has ended", self.task_id);
        let next = "stop working on it, because another agent may have it; get a new lease with claim_task or pick_up_task";
        Err(ToolRejection::new(FAILED_PRECONDITION, "lease_lost", &what, next).with_reason(why))
    }

    fn apply_renewal(&mut self, asked_at: BootTime, granted: Duration, cancel_requested: bool) {
        self.expires_at = self.expires_at.max(asked_at.after(granted));
        self.renew_at = asked_at.after(self.renew_interval);
        self.cancel_requested |= cancel_requested;
    }

    /// Time limit of one renewal. It leaves time for further tries, so that one lost request does
    /// not cost the lease.
    fn renewal_timeout(&self, now: BootTime) -> Duration {
        let left = now.until(self.expires_at) / RENEWALS_PER_LEASE;
        left.clamp(RETRY_DELAY, CALL_TIMEOUT)
    }

    fn has_ended(&self, now: BootTime) -> bool {
        self.check_valid(now).is_err()
    }
}

/// Renews the current lease. Never returns.
pub(super) async fn renew_forever(
    held: &watch::Sender<Option<AgentLeaseState>>,
    mut connection: RelayConnection,
    clock: &Clock,
) {
    let mut changes = held.subscribe();
    loop {
        let due = changes.borrow_and_update().as_ref().and_then(|lease| {
            let has_ended = lease.has_ended(clock.now());
            (!has_ended).then_some(lease.renew_at)
        });
        tokio::select! {
            // Cannot fail: the sender is borrowed here.
            _ = changes.changed() => continue,
            () = sleep_until_due(clock, due) => {}
        }
        let Some(lease) = changes.borrow().clone() else {
            continue;
        };
        let asked_at = clock.now();
        let request = RenewRequest {
            lease: Some(lease.to_wire()),
        };
        let timeout = lease.renewal_timeout(asked_at);
        let renewal = connection.call_with_timeout(timeout, async |relay| {
            relay.agents().renew(request.clone()).await
        });
        let answer = renewal.await;
        held.send_if_modified(|held| {
            let same = held
                .as_mut()
                .filter(|held| held.attempt_id == lease.attempt_id);
            let Some(held) = same else { return false };
            match &answer {
                Ok(renewed) => held.apply_renewal(
                    asked_at,
                    Duration::from_millis(renewed.granted_ms),
                    renewed.cancel_requested,
                ),
                Err(rejection) if rejection.is_transient() => {
                    held.renew_at = clock.now().after(RETRY_DELAY);
                }
                Err(rejection) => {
                    let why = format!(
                        "the relay refused to renew it ({}): {}",
                        rejection.code, rejection.what
                    );
                    held.lost_reason = Some(why);
                }
            }
            true
        });
    }
}

async fn sleep_until_due(clock: &Clock, until: Option<BootTime>) {
    match until {
        Some(until) => clock.sleep_until(until).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::AttemptRef;

    use super::*;

    fn lease() -> AgentLeaseState {
        let grant = AgentGrant {
            r#ref: Some(AttemptRef {
                task_id: "t".to_owned(),
                attempt_id: "a".to_owned(),
                ..AttemptRef::default()
            }),
            granted_ms: 30_000,
            renew_ms: 10_000,
            ..AgentGrant::default()
        };
        AgentLeaseState::from_grant(&grant, BootTime::from_millis(1_000), true)
    }

    #[test]
    fn a_lease_counts_from_the_time_the_request_was_sent() {
        let mut lease = lease();
        assert!(lease.check_valid(BootTime::from_millis(30_999)).is_ok());
        let ended = lease
            .check_valid(BootTime::from_millis(31_000))
            .unwrap_err();
        assert_eq!(ended.code, "lease_lost");
        lease.apply_renewal(BootTime::from_millis(11_000), Duration::from_secs(30), true);
        assert!(lease.check_valid(BootTime::from_millis(40_999)).is_ok() && lease.cancel_requested);
        assert_eq!(lease.renew_at, BootTime::from_millis(21_000));
    }

    #[test]
    fn a_late_renewal_response_does_not_shorten_a_lease() {
        let mut lease = lease();
        lease.apply_renewal(BootTime::from_millis(900), Duration::from_secs(1), false);
        assert!(lease.check_valid(BootTime::from_millis(30_999)).is_ok());
    }

    #[test]
    fn a_renewal_timeout_leaves_time_for_further_tries() {
        let mut lease = lease();
        let at = |ms| BootTime::from_millis(ms);
        assert_eq!(lease.renewal_timeout(at(1_000)), Duration::from_secs(10));
        assert_eq!(lease.renewal_timeout(at(25_000)), Duration::from_secs(2));
        assert_eq!(lease.renewal_timeout(at(30_900)), RETRY_DELAY);
        lease.apply_renewal(at(1_000), Duration::from_secs(86_400), false);
        assert_eq!(lease.renewal_timeout(at(1_000)), CALL_TIMEOUT);
    }

    #[test]
    fn the_debug_output_hides_the_token() {
        let shown = format!("{:?}", lease());
        assert!(shown.contains("redacted"), "{shown}");
    }
}
