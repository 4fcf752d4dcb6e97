//! Requests of operators that concern daemons.

use std::sync::Arc;

use super::actor;
use crate::ids::{DaemonId, TenantScope};
use crate::operator::daemon_operation::OperateDaemon;
use crate::record::DaemonOperation;

/// A request of an operator. By default it covers all tenants and has a reason.
pub(in crate::tests) struct DaemonOperationRequest {
    daemon: DaemonId,
    operation: DaemonOperation,
    scope: TenantScope,
    reason: Arc<str>,
}

pub(in crate::tests) fn daemon_operation(
    daemon: DaemonId,
    operation: DaemonOperation,
) -> DaemonOperationRequest {
    DaemonOperationRequest {
        daemon,
        operation,
        scope: TenantScope::All,
        reason: "to look at it".into(),
    }
}

impl DaemonOperationRequest {
    pub(in crate::tests) fn of(self, scope: TenantScope) -> Self {
        Self { scope, ..self }
    }

    pub(in crate::tests) fn with_reason(self, reason: &str) -> Self {
        let reason = reason.into();
        Self { reason, ..self }
    }

    pub(in crate::tests) fn command(self) -> OperateDaemon {
        OperateDaemon {
            scope: self.scope,
            daemon: self.daemon,
            by: actor(),
            reason: self.reason,
            operation: self.operation,
        }
    }
}
