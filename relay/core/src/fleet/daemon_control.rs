//! Changes of one daemon: its record after Hello, the end of its stream, and what operators do to
//! it.

use std::sync::Arc;

use crate::fleet::Fleet;
use crate::ids::{DaemonId, SessionId, TenantScope};
use crate::io::effects::{CloseReason, CommitDependency, DaemonMessage, Delivery, RecordChange};
use crate::io::session_input::DaemonHello;
use crate::operator::daemon_operation::OperateDaemon;
use crate::record::{DaemonChange, DaemonCondition, DaemonRecord, DrainMark};
use crate::task::size_limits;
use crate::turn::CoreTurn;

impl Fleet {
    /// Its attempts go on under their leases; it comes back by itself.
    pub(crate) fn disconnect(&mut self, daemon: DaemonId, turn: &mut CoreTurn<'_>) {
        if let Some(session) = self.roster.session_of(daemon) {
            self.close_session(session, CloseReason::Disconnected, turn);
        }
    }

    /// A tenant runs only its own daemons; a shared one belongs to callers that may see all.
    pub(crate) fn may_operate(&self, scope: &TenantScope, daemon: DaemonId) -> bool {
        let record = self.registry.get(daemon);
        record.is_some_and(|record| *scope == TenantScope::All || record.scope == *scope)
    }

    pub(crate) fn condition(&self, daemon: DaemonId) -> DaemonCondition {
        let record = self.registry.get(daemon);
        DaemonCondition {
            drained: record.is_some_and(|record| record.drained.is_some()),
            connected: self.roster.session_of(daemon).is_some(),
        }
    }

    /// The daemon gets the message in any case: it reports itself as draining until that is
    /// withdrawn.
    pub(crate) fn set_drain_mark(
        &mut self,
        daemon: DaemonId,
        mark: Option<DrainMark>,
        turn: &mut CoreTurn<'_>,
    ) {
        let withdrawn = mark.is_none();
        if let Some(record) = self.registry.set_drain_mark(daemon, mark) {
            self.roster
                .set_drained(daemon, !withdrawn, turn.now.monotonic);
            turn.push_change(RecordChange::PutDaemon(record));
        }
        if let Some(session) = self.roster.session_of(daemon) {
            let drain = DaemonMessage::Drain { withdrawn };
            turn.send_to_session(CommitDependency::Everything, session, drain);
        }
    }

    pub(crate) fn record_change(
        &mut self,
        operate: OperateDaemon,
        before: DaemonCondition,
        turn: &mut CoreTurn<'_>,
    ) {
        let Some(record) = self.registry.get(operate.daemon) else {
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
            after: self.condition(operate.daemon),
            by,
            reason,
            at: turn.now.wall,
        };
        self.changes.record_change(change);
        turn.push_change(RecordChange::PutDaemonChanges(self.changes.clone()));
    }

    /// Its stream is of no use: it gets no work from here on, and its attempts go on under their
    /// leases.
    pub(crate) fn close_session(
        &mut self,
        session: SessionId,
        reason: CloseReason,
        turn: &mut CoreTurn<'_>,
    ) {
        self.roster.close_session(session, turn.now.monotonic);
        turn.push_delivery(
            CommitDependency::Nothing,
            Delivery::CloseSession { session, reason },
        );
    }

    pub(crate) fn session_ended(&mut self, session: SessionId, turn: &mut CoreTurn<'_>) {
        if let Some(daemon) = self.roster.close_session(session, turn.now.monotonic) {
            self.mark_seen(daemon, turn.now.wall);
        }
    }

    /// What an operator decided while it was away, and a drain that it still reports though it was
    /// withdrawn.
    pub(super) fn send_drain_state(
        &self,
        hello: &DaemonHello,
        session: SessionId,
        turn: &mut CoreTurn<'_>,
    ) {
        let record = self.registry.get(hello.daemon);
        let drained = record.is_some_and(|record| record.drained.is_some());
        if drained || hello.draining {
            let withdrawn = !drained;
            turn.send_to_session(
                CommitDependency::Everything,
                session,
                DaemonMessage::Drain { withdrawn },
            );
        }
    }

    pub(super) fn store_daemon(&mut self, hello: &DaemonHello, turn: &mut CoreTurn<'_>) {
        let known = self.registry.get(hello.daemon);
        let record = Arc::new(DaemonRecord {
            daemon: hello.daemon,
            scope: hello.scope.clone(),
            token: hello.token,
            name: hello.name.clone(),
            version: hello.version.clone(),
            platform: hello.platform.clone(),
            boot_id: hello.boot_id.clone(),
            slots: hello.slots,
            labels: hello.labels.clone(),
            capabilities: hello.capabilities.clone(),
            agents: hello.agents.clone(),
            workspaces: hello.workspaces.clone(),
            drained: known.and_then(|known| known.drained.clone()),
            first_seen: known.map_or(turn.now.wall, |known| known.first_seen),
            last_seen: turn.now.wall,
        });
        self.registry.insert(Arc::clone(&record));
        turn.push_change(RecordChange::PutDaemon(record));
    }
}
