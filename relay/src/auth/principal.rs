//! The caller of an RPC. The authentication layer makes it from a valid token and puts it into
//! the request extensions.
//!
//! The tenant of every read and write comes from the principal and never from a message.

use std::sync::Arc;

use baton_core::ids::{TenantId, TenantScope, TokenId};
use baton_core::task::spec::TaskSpec;
use baton_core::time::WallTime;
use tokio_util::sync::CancellationToken;

use super::role::Role;
use super::token::TokenRecord;
use crate::clock::RelayClock;

/// Tenant of a credential that covers all tenants, unless the call selects another one.
pub const DEFAULT_TENANT: &str = "default";

/// How often a live stream compares its credential's expiry with the wall clock. Revocation
/// needs no polling.
const EXPIRY_CHECK_MS: u64 = 2_000;

/// An authenticated caller.
#[derive(Clone, Debug)]
pub struct Principal {
    pub token: TokenId,
    /// The token's name, for audit and display.
    pub name: Arc<str>,
    pub role: Role,
    pub scope: TenantScope,
    /// Tenant of this caller's own tasks.
    pub tenant: TenantId,
    /// Set only for role agent.
    pub agent_scope: Option<Arc<str>>,
    expires_at: Option<WallTime>,
    revoked: CancellationToken,
}

impl Principal {
    pub(super) fn new(record: &TokenRecord, revoked: CancellationToken) -> Self {
        Self {
            token: record.id,
            name: record.name.as_str().into(),
            role: record.role,
            scope: record.scope.clone(),
            tenant: home_tenant(&record.scope),
            agent_scope: record.agent_scope.as_deref().map(Into::into),
            expires_at: record.expires_at,
            revoked,
        }
    }

    /// Whether the caller may see a task of its tenant. An agent sees only tasks of its agent
    /// scope; the others count as unknown.
    pub(crate) fn can_see(&self, spec: &TaskSpec) -> bool {
        let scope = self.agent_scope.as_deref();
        scope.is_none_or(|scope| spec.agent_scope.as_deref() == Some(scope))
    }

    /// Completes when this credential is revoked or expires; live streams then close. Cancel
    /// safe.
    pub async fn ended(&self, clock: &RelayClock) {
        tokio::select! {
            () = self.revoked.cancelled() => {}
            () = self.expired(clock) => {}
        }
    }

    async fn expired(&self, clock: &RelayClock) {
        let Some(expiry) = self.expires_at else {
            return std::future::pending().await;
        };
        while clock.now().wall < expiry {
            let now = clock.now();
            let left = expiry.0.saturating_sub(now.wall.0).min(EXPIRY_CHECK_MS);
            clock.sleep_until(now.monotonic + left).await;
        }
    }
}

pub fn default_tenant() -> TenantId {
    TenantId::new(DEFAULT_TENANT).expect("the default tenant's name is valid")
}

fn home_tenant(scope: &TenantScope) -> TenantId {
    match scope {
        TenantScope::One(tenant) => tenant.clone(),
        TenantScope::All => default_tenant(),
    }
}
