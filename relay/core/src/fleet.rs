//! Operators' verbs on one daemon: drain it, undo that, disconnect it. What it holds goes on under its leases.
//!
//! The order is that of the verbs on tasks: a reason, a daemon of theirs, not too often. What changed is on record with who
//! said so and why; a word that changes nothing is answered and leaves no trace.

use std::sync::Arc;

use crate::bounds;
use crate::core::{Core, Turn};
use crate::effects::{After, CloseReason, DaemonView, Downstream, Reply, Write};
use crate::force_limit::Target;
use crate::id::{DaemonId, RequestId, TenantScope};
use crate::input::Actor;
use crate::record::{DaemonChange, DaemonOperation, DrainMark, Standing};
use crate::reject::Rejection;

/// An operator's word on one daemon.
#[derive(Debug)]
pub struct OperateDaemon {
    pub request: RequestId,
    /// The caller's: a tenant runs only its own daemons.
    pub scope: TenantScope,
    pub daemon: DaemonId,
    pub by: Actor,
    /// Only the end of a drain may go without.
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

impl Core {
    pub(crate) fn operate_daemon(&mut self, operate: OperateDaemon, turn: &mut Turn<'_>) {
        let request = operate.request;
        match self.daemon_operated(operate, turn) {
            Ok(view) => turn.reply(request, After::Everything, Reply::Daemon(Box::new(view))),
            Err(code) => turn.refuse(request, code),
        }
    }

    fn daemon_operated(
        &mut self,
        operate: OperateDaemon,
        turn: &mut Turn<'_>,
    ) -> Result<DaemonView, Rejection> {
        let daemon = operate.daemon;
        if operate.operation.needs_reason() && operate.reason.trim().is_empty() {
            return Err(Rejection::ReasonMissing);
        }
        if !self.may_run(&operate.scope, daemon) {
            return Err(Rejection::UnknownDaemon);
        }
        let target = Target::Daemon(daemon);
        self.forced.admit(operate.by.token, target, turn.now.at)?;
        let before = self.stands(daemon);
        match operate.operation {
            DaemonOperation::Drain => {
                let mark = DrainMark {
                    by: Arc::clone(&operate.by.name),
                    reason: Arc::clone(&operate.reason),
                    since: turn.now.wall,
                };
                self.mark_drained(daemon, Some(mark), turn);
            }
            DaemonOperation::Undrain => self.mark_drained(daemon, None, turn),
            DaemonOperation::Disconnect => self.disconnect(daemon, turn),
        }
        if before != self.stands(daemon) {
            self.note_change(operate, before, turn);
        }
        let view = self.daemon_view(daemon, turn.now);
        view.ok_or(Rejection::UnknownDaemon)
    }

    /// Its attempts go on under their leases; it comes back by itself.
    fn disconnect(&mut self, daemon: DaemonId, turn: &mut Turn<'_>) {
        if let Some(session) = self.roster.session_of(daemon) {
            self.hang_up(session, CloseReason::Disconnected, turn);
        }
    }

    /// A tenant runs only its own daemons; a shared one belongs to whoever may see all.
    pub(crate) fn may_run(&self, scope: &TenantScope, daemon: DaemonId) -> bool {
        let record = self.daemons.get(daemon);
        record.is_some_and(|record| *scope == TenantScope::All || record.scope == *scope)
    }

    fn stands(&self, daemon: DaemonId) -> Standing {
        let record = self.daemons.get(daemon);
        Standing {
            drained: record.is_some_and(|record| record.drained.is_some()),
            connected: self.roster.session_of(daemon).is_some(),
        }
    }

    /// The daemon hears of it in any case: it says itself that it rests, until it is told otherwise.
    fn mark_drained(&mut self, daemon: DaemonId, mark: Option<DrainMark>, turn: &mut Turn<'_>) {
        let withdrawn = mark.is_none();
        if let Some(record) = self.daemons.mark(daemon, mark) {
            self.roster.set_drained(daemon, !withdrawn, turn.now.at);
            turn.write(Write::PutDaemon(record));
        }
        if let Some(session) = self.roster.session_of(daemon) {
            let drain = Downstream::Drain { withdrawn };
            turn.tell(After::Everything, session, drain);
        }
    }

    fn note_change(&mut self, operate: OperateDaemon, before: Standing, turn: &mut Turn<'_>) {
        let Some(record) = self.daemons.get(operate.daemon) else {
            return;
        };
        if mutant!(DrainUnaudited) {
            return;
        }
        let (mut by, mut reason) = (operate.by.name, operate.reason);
        bounds::clip(&mut by, bounds::NAME_BYTES);
        bounds::clip(&mut reason, bounds::NOTE_BYTES);
        let change = DaemonChange {
            daemon: operate.daemon,
            scope: record.scope.clone(),
            name: Arc::clone(&record.name),
            operation: operate.operation,
            before,
            after: self.stands(operate.daemon),
            by,
            reason,
            at: turn.now.wall,
        };
        self.daemon_changes.note(change);
        turn.write(Write::PutDaemonChanges(self.daemon_changes.clone()));
    }
}
