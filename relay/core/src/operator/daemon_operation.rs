//! Operations on one daemon: drain, undrain, disconnect. Attempts that it holds continue under
//! their leases.
//!
//! The checks have the same order as for tasks: a reason, a daemon that the caller may operate,
//! the rate limit. A change is recorded with its author and reason; an operation that changes
//! nothing succeeds without a record.

use std::sync::Arc;

use crate::core_state::CoreOwners;
use crate::ids::{DaemonId, TenantScope};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::DaemonView;
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::StoredRecords;
use crate::operator::inspection::daemon_view;
use crate::operator::rate_limit::OperationTarget;
use crate::record::{DaemonOperation, DrainMark};
use crate::turn::CoreTurn;

/// An operation on one daemon.
#[derive(Debug)]
pub struct OperateDaemon {
    /// The caller's scope: a tenant operates only its own daemons.
    pub scope: TenantScope,
    pub daemon: DaemonId,
    pub by: RequestActor,
    /// May be empty only for the end of a drain.
    pub reason: Arc<str>,
    pub operation: DaemonOperation,
}

impl DaemonOperation {
    fn needs_reason(self) -> bool {
        match self {
            DaemonOperation::Drain | DaemonOperation::Disconnect => true,
            DaemonOperation::Undrain => false,
        }
    }
}

impl Command for OperateDaemon {
    type Reply = Box<DaemonView>;

    fn run(
        self,
        core: &mut CoreOwners<'_>,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Box<DaemonView>> {
        let daemon = self.daemon;
        if self.operation.needs_reason() && self.reason.trim().is_empty() {
            return Err(Rejection::ReasonMissing);
        }
        if !core.fleet.may_operate(&self.scope, daemon) {
            return Err(Rejection::UnknownDaemon);
        }
        let target = OperationTarget::Daemon(daemon);
        core.operators
            .admit(self.by.token, target, turn.now.monotonic)?;
        let before = core.fleet.condition(daemon);
        match self.operation {
            DaemonOperation::Drain => {
                let mark = DrainMark {
                    by: Arc::clone(&self.by.name),
                    reason: Arc::clone(&self.reason),
                    since: turn.now.wall,
                };
                core.fleet.set_drain_mark(daemon, Some(mark), turn);
            }
            DaemonOperation::Undrain => core.fleet.set_drain_mark(daemon, None, turn),
            DaemonOperation::Disconnect => core.fleet.disconnect(daemon, turn),
        }
        if before != core.fleet.condition(daemon) {
            core.fleet.record_change(self, before, turn);
        }
        let view = daemon_view(core.fleet, core.tasks, core.leases, daemon, turn.now);
        let view = view.ok_or(Rejection::UnknownDaemon)?;
        Ok(CommandReply::after_everything(Box::new(view)))
    }
}
