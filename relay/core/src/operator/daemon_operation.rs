//! Operations on one daemon: drain, undrain, disconnect. Attempts that it holds continue under
//! their leases.
//!
//! The checks have the same order as for tasks: a reason, a daemon that the caller may operate,
//! the rate limit. A change is recorded with its author and reason; an operation that changes
//! nothing succeeds without a record.

use std::sync::Arc;

use crate::core_state::{Core, CoreTurn};
use crate::ids::{DaemonId, TenantScope};
use crate::io::command::{Command, CommandOutcome, CommandReply, RequestActor};
use crate::io::effects::{CloseReason, CommitDependency, DaemonMessage, DaemonView, RecordChange};
use crate::io::rejection::Rejection;
use crate::io::stored_lookup::StoredRecords;
use crate::operator::rate_limit::OperationTarget;
use crate::record::{DaemonChange, DaemonCondition, DaemonOperation, DrainMark};
use crate::task::size_limits;

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
        core: &mut Core,
        _stored: StoredRecords,
        turn: &mut CoreTurn<'_>,
    ) -> CommandOutcome<Box<DaemonView>> {
        let view = core.operate_daemon(self, turn)?;
        Ok(CommandReply::after_everything(Box::new(view)))
    }
}

impl Core {
    fn operate_daemon(
        &mut self,
        operate: OperateDaemon,
        turn: &mut CoreTurn<'_>,
    ) -> Result<DaemonView, Rejection> {
        let daemon = operate.daemon;
        if operate.operation.needs_reason() && operate.reason.trim().is_empty() {
            return Err(Rejection::ReasonMissing);
        }
        if !self.may_operate_daemon(&operate.scope, daemon) {
            return Err(Rejection::UnknownDaemon);
        }
        let target = OperationTarget::Daemon(daemon);
        self.operator_limit
            .admit(operate.by.token, target, turn.now.monotonic)?;
        let before = self.daemon_condition(daemon);
        match operate.operation {
            DaemonOperation::Drain => {
                let mark = DrainMark {
                    by: Arc::clone(&operate.by.name),
                    reason: Arc::clone(&operate.reason),
                    since: turn.now.wall,
                };
                self.set_drain_mark(daemon, Some(mark), turn);
            }
            DaemonOperation::Undrain => self.set_drain_mark(daemon, None, turn),
            DaemonOperation::Disconnect => self.disconnect_daemon(daemon, turn),
        }
        if before != self.daemon_condition(daemon) {
            self.record_daemon_change(operate, before, turn);
        }
        let view = self.daemon_view(daemon, turn.now);
        view.ok_or(Rejection::UnknownDaemon)
    }

    /// Closes the daemon's session. Its attempts continue under their leases, and it reconnects
    /// by itself.
    fn disconnect_daemon(&mut self, daemon: DaemonId, turn: &mut CoreTurn<'_>) {
        if let Some(session) = self.roster.session_of(daemon) {
            self.close_session(session, CloseReason::Disconnected, turn);
        }
    }

    /// A tenant operates only its own daemons. A shared daemon needs a scope of all tenants.
    pub(crate) fn may_operate_daemon(&self, scope: &TenantScope, daemon: DaemonId) -> bool {
        let record = self.daemon_registry.get(daemon);
        record.is_some_and(|record| *scope == TenantScope::All || record.scope == *scope)
    }

    fn daemon_condition(&self, daemon: DaemonId) -> DaemonCondition {
        let record = self.daemon_registry.get(daemon);
        DaemonCondition {
            drained: record.is_some_and(|record| record.drained.is_some()),
            connected: self.roster.session_of(daemon).is_some(),
        }
    }

    /// Sets or removes the drain mark. The message is sent even if the record does not change:
    /// the daemon itself reports that it drains until it gets this message.
    fn set_drain_mark(
        &mut self,
        daemon: DaemonId,
        mark: Option<DrainMark>,
        turn: &mut CoreTurn<'_>,
    ) {
        let withdrawn = mark.is_none();
        if let Some(record) = self.daemon_registry.set_drain_mark(daemon, mark) {
            self.roster
                .set_drained(daemon, !withdrawn, turn.now.monotonic);
            turn.push_change(RecordChange::PutDaemon(record));
        }
        if let Some(session) = self.roster.session_of(daemon) {
            let drain = DaemonMessage::Drain { withdrawn };
            turn.send_to_session(CommitDependency::Everything, session, drain);
        }
    }

    fn record_daemon_change(
        &mut self,
        operate: OperateDaemon,
        before: DaemonCondition,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(record) = self.daemon_registry.get(operate.daemon) else {
            return;
        };
        if mutant!(DrainUnaudited) {
            return;
        }
        let (mut by, mut reason) = (operate.by.name, operate.reason);
        size_limits::clip(&mut by, size_limits::MAX_NAME_BYTES);
        size_limits::clip(&mut reason, size_limits::MAX_NOTE_BYTES);
        let change = DaemonChange {
            daemon: operate.daemon,
            scope: record.scope.clone(),
            name: Arc::clone(&record.name),
            operation: operate.operation,
            before,
            after: self.daemon_condition(operate.daemon),
            by,
            reason,
            at: turn.now.wall,
        };
        self.daemon_changes.record_change(change);
        turn.push_change(RecordChange::PutDaemonChanges(self.daemon_changes.clone()));
    }
}
