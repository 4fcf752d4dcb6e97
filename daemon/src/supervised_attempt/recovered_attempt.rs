//! An attempt of an earlier daemon, as its directory shows it: its unacknowledged frames, how far
//! its transcript was read, and why it was ordered to stop.

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::{LeaseToken, LifecyclePhase, TerminationReceipt};
use baton_proto::worker::FoldSnapshot;
use prost::Message;

use super::{
    AttemptLease, AttemptOutbox, OutboxLocation, RunningAttemptState, ShimReach, StopReason,
    SupervisedAttempt, SupervisedStage, ToolCalls,
};
use crate::agents::DispatchRefusal;
use crate::attempt::{AgentSession, AttemptControlReceiver};
use crate::clock::{BootTime, Clock};
use crate::frames;
use crate::outbox::StoredOutbox;
use crate::storage::attempt_dir::{AttemptId, AttemptMeta};

/// What an earlier daemon left of an attempt on disk.
pub(crate) struct RecoveredAttempt {
    pub(crate) id: AttemptId,
    pub(crate) meta: AttemptMeta,
    pub(crate) stored: StoredOutbox,
}

impl RecoveredAttempt {
    /// The state of the transcript reader as it was stored last. A snapshot that cannot be decoded
    /// is ignored: the reader then begins at the stored position.
    pub(crate) fn snapshot(&self) -> FoldSnapshot {
        let snapshot = self.stored.outbox.progress().snapshot.clone();
        FoldSnapshot::decode(snapshot).unwrap_or_default()
    }

    /// A coding agent runs and its session cannot be read: the daemon was killed before the first
    /// snapshot was stored, or another version wrote it. Treating the agent as a command would
    /// report success because its process exits with 0.
    pub(crate) fn lacks_agent_session(&self) -> bool {
        let session = self.snapshot().talk;
        self.meta.is_coding_agent
            && !self.is_finished()
            && serde_json::from_slice::<AgentSession>(&session).is_err()
    }

    /// Its terminal frame is on disk.
    pub(crate) fn is_finished(&self) -> bool {
        self.terminal_receipt().is_some()
    }

    /// A frame reports that a process is being started.
    pub(crate) fn is_launch_reported(&self) -> bool {
        !self.snapshot().phases.is_empty()
    }

    fn terminal_receipt(&self) -> Option<TerminationReceipt> {
        self.stored.last_control.as_ref()?.terminal_receipt()
    }
}

impl SupervisedAttempt {
    /// Nothing runs. The terminal frame stays on disk until the relay has acknowledged it.
    pub(crate) fn restore_finished(recovered: RecoveredAttempt) -> Self {
        let receipt = recovered.terminal_receipt().unwrap_or_default();
        let last_seq = recovered.stored.outbox.last_control_seq();
        let stage = SupervisedStage::Finished { last_seq, receipt };
        Self::restore(recovered, stage, None, None)
    }

    /// It was accepted and nothing was started, so it is refused: the relay may place it elsewhere.
    pub(crate) fn restore_unstarted(recovered: RecoveredAttempt, clock: &Clock) -> Self {
        let stage = SupervisedStage::Finished {
            last_seq: 0,
            receipt: frames::no_process_receipt(clock.wall()),
        };
        let mut restored = Self::restore(recovered, stage, None, None);
        restored.finish_unstarted(&DispatchRefusal::not_confirmed(), clock);
        restored
    }

    /// It was started. Its task goes on with the receiving end of its control handle.
    pub(crate) fn restore_running(
        recovered: RecoveredAttempt,
        token: Option<LeaseToken>,
        lease: Option<LeaseClock>,
        reach: ShimReach,
    ) -> (Self, AttemptControlReceiver) {
        let position = recovered.stored.outbox.progress().consumed;
        let (running, control) = RunningAttemptState::new(lease, reach, position);
        if recovered.snapshot().finish.is_some() {
            running.fix_outcome();
        }
        let stage = SupervisedStage::Running(running);
        (Self::restore(recovered, stage, token, lease), control)
    }

    fn restore(
        recovered: RecoveredAttempt,
        stage: SupervisedStage,
        token: Option<LeaseToken>,
        lease: Option<LeaseClock>,
    ) -> Self {
        let snapshot = recovered.snapshot();
        let RecoveredAttempt { id, meta, stored } = recovered;
        let conversation = meta.conversation_turn();
        let workspace = meta.workspace.as_ref();
        let phases = &snapshot.phases;
        let phase = phases
            .last()
            .map_or(LifecyclePhase::Accepted, |mark| mark.phase());
        let started_at = phases.first().map(|mark| BootTime::from_millis(mark.at_ms));
        let location = OutboxLocation::Existing {
            id,
            prefix: stored.prefix,
        };
        Self {
            phase,
            started_at,
            conversation,
            exclusive_root: workspace.and_then(|plan| Some(plan.exclusive_root()?.to_owned())),
            stop_reason: StopReason::from_snapshot(&snapshot),
            tool_calls: ToolCalls::new(
                meta.tools.clone(),
                meta.required_files.clone(),
                snapshot.finish.clone(),
            ),
            ..Self::new(
                meta.attempt,
                stage,
                AttemptLease::new(token, lease, meta.cleanup_term),
                AttemptOutbox::restore(stored.outbox, location),
            )
        }
    }
}
