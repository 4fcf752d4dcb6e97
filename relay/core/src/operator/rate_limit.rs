//! Rate limit of operations: one credential may use ten per minute on one target.
//!
//! It stops a faulty script, so it counts requests and not their results. It is kept in memory
//! only and starts empty. Entries older than a minute are dropped at the next request, so it
//! never contains more than one minute of requests.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::{DaemonId, TaskId, TenantId, TenantScope, TokenId};
use crate::io::rejection::Rejection;
use crate::time::MonotonicTime;

const MAX_PER_WINDOW: u32 = 10;
const WINDOW_MS: u64 = 60_000;

/// The target of an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OperationTarget {
    Task(TaskId),
    Tenant(TenantId),
    Daemon(DaemonId),
    Scheduler,
}

impl From<&TenantScope> for OperationTarget {
    fn from(scope: &TenantScope) -> Self {
        match scope {
            TenantScope::All => OperationTarget::Scheduler,
            TenantScope::One(tenant) => OperationTarget::Tenant(tenant.clone()),
        }
    }
}

type RateLimitKey = (TokenId, OperationTarget);

#[derive(Debug, Default)]
pub(crate) struct OperatorRateLimit {
    recent: VecDeque<(MonotonicTime, RateLimitKey)>,
    counts: BTreeMap<RateLimitKey, u32>,
}

impl OperatorRateLimit {
    /// Counts a request, or refuses it above the limit. Refused requests are not counted.
    pub(crate) fn admit(
        &mut self,
        credential: TokenId,
        target: OperationTarget,
        now: MonotonicTime,
    ) -> Result<(), Rejection> {
        self.drop_expired(now);
        let key = (credential, target);
        let count = self.counts.entry(key.clone()).or_default();
        if *count >= MAX_PER_WINDOW && !mutant!(ForceLimitIgnored) {
            return Err(Rejection::RateLimited);
        }
        *count += 1;
        self.recent.push_back((now, key));
        Ok(())
    }

    fn drop_expired(&mut self, now: MonotonicTime) {
        while let Some((at, key)) = self.recent.front() {
            if now.since(*at) < WINDOW_MS {
                return;
            }
            if let Some(count) = self.counts.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(key);
                }
            }
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn token(n: u128) -> TokenId {
        TokenId(Uuid::from_u128(n))
    }

    fn task(n: u128) -> OperationTarget {
        OperationTarget::Task(TaskId(Uuid::from_u128(n)))
    }

    #[test]
    fn ten_operations_a_minute_are_allowed_per_credential_and_target() {
        let mut limit = OperatorRateLimit::default();
        for n in 0..10 {
            assert_eq!(
                limit.admit(token(1), task(1), MonotonicTime(n * 1_000)),
                Ok(())
            );
        }
        let late = MonotonicTime(59_999);
        assert_eq!(
            limit.admit(token(1), task(1), late),
            Err(Rejection::RateLimited)
        );
        assert_eq!(
            limit.admit(token(2), task(1), late),
            Ok(()),
            "another credential"
        );
        assert_eq!(limit.admit(token(1), task(2), late), Ok(()), "another task");
        assert_eq!(
            limit.admit(token(1), OperationTarget::Scheduler, late),
            Ok(())
        );
        assert_eq!(
            limit.admit(token(1), task(1), MonotonicTime(60_000)),
            Ok(())
        );
        assert_eq!(
            limit.admit(token(1), task(1), MonotonicTime(60_999)),
            Err(Rejection::RateLimited),
            "one request expired, not ten"
        );
    }

    #[test]
    fn rate_limit_entries_older_than_a_minute_are_dropped() {
        let mut limit = OperatorRateLimit::default();
        for n in 0..1_000 {
            limit.admit(token(1), task(n), MonotonicTime(0)).unwrap();
        }
        limit
            .admit(token(1), task(0), MonotonicTime(60_000))
            .unwrap();
        assert_eq!((limit.recent.len(), limit.counts.len()), (1, 1));
    }
}
