//! An attempt that an earlier daemon held, as its directory shows it: what it has to say, how far its transcript is
//! folded, and whose wish it was that it stops.

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::v1::{CancelReason, LeaseToken, LifecyclePhase, TerminationReceipt};
use baton_proto::worker::{FoldSnapshot, StopOrder};
use prost::Message;

use super::attempt_control::{AttemptControl, AttemptControlReceivers, ShimReach};
use super::tool_calls::ToolCalls;
use super::{OutboxLocation, StopReason, SupervisedAttempt, SupervisedStage};
use crate::agents::DispatchRefusal;
use crate::attempt::{AgentSession, EventProgress};
use crate::clock::{BootTime, Clock};
use crate::frames;
use crate::outbox::{self, StoredOutbox};
use crate::storage::attempt_dir::{AttemptId, AttemptMeta};

/// What is left of an attempt on disk.
pub(crate) struct RecoveredAttempt {
    pub(crate) id: AttemptId,
    pub(crate) meta: AttemptMeta,
    pub(crate) stored: StoredOutbox,
}

impl RecoveredAttempt {
    /// State of the fold as it was stored last. What cannot be decoded was written by nobody we know: then the fold
    /// begins anew at the stored position.
    pub(crate) fn snapshot(&self) -> FoldSnapshot {
        let snapshot = self.stored.outbox.progress().snapshot.clone();
        FoldSnapshot::decode(snapshot).unwrap_or_default()
    }

    /// It runs, was a talk, and what was said cannot be read: it was killed before the first word was stored, or another version
    /// wrote it. Taken for a command it would be called done because it ended with 0.
    pub(crate) fn lacks_agent_session(&self) -> bool {
        let talk = self.snapshot().talk;
        self.meta.is_coding_agent
            && !self.is_finished()
            && serde_json::from_slice::<AgentSession>(&talk).is_err()
    }

    /// Its last word is on disk.
    pub(crate) fn is_finished(&self) -> bool {
        self.terminal_receipt().is_some()
    }

    /// It was said that a process is being started.
    pub(crate) fn is_launch_reported(&self) -> bool {
        !self.snapshot().phases.is_empty()
    }

    fn terminal_receipt(&self) -> Option<TerminationReceipt> {
        self.stored.last_control.as_ref()?.terminal_receipt()
    }
}

impl SupervisedAttempt {
    /// Nothing runs, and its last word is on disk until the relay has it.
    pub(crate) fn restore_finished(remains: RecoveredAttempt) -> Self {
        let receipt = remains.terminal_receipt().unwrap_or_default();
        let last_seq = remains.stored.outbox.last_control_seq();
        let stage = SupervisedStage::Finished { last_seq, receipt };
        Self::restore(remains, stage, None)
    }

    /// It was taken and nothing was ever started: that is said, and the relay may place it elsewhere.
    pub(crate) fn restore_unstarted(remains: RecoveredAttempt, clock: &Clock) -> Self {
        let stage = SupervisedStage::Finished {
            last_seq: 0,
            receipt: frames::no_process_receipt(clock.wall()),
        };
        let mut held = Self::restore(remains, stage, None);
        held.finish_with_frame(
            frames::rejected(&DispatchRefusal::not_confirmed()),
            frames::no_process_receipt(clock.wall()),
            clock,
        );
        held
    }

    /// It was started. Its task goes on with the other ends of its lines.
    pub(crate) fn restore_running(
        remains: RecoveredAttempt,
        token: Option<LeaseToken>,
        lease: Option<LeaseClock>,
        reach: ShimReach,
    ) -> (Self, AttemptControlReceivers) {
        let position = remains.stored.outbox.progress().consumed;
        let (reins, bits) = AttemptControl::new(lease, reach, position);
        if remains.snapshot().finish.is_some() {
            reins.fix_outcome();
        }
        let mut held = Self::restore(remains, SupervisedStage::Running(reins), lease);
        held.token = token;
        (held, bits)
    }

    fn restore(
        remains: RecoveredAttempt,
        stage: SupervisedStage,
        lease: Option<LeaseClock>,
    ) -> Self {
        let snapshot = remains.snapshot();
        let RecoveredAttempt { id, meta, stored } = remains;
        let outbox = stored.outbox;
        let cleanup_term = meta.cleanup_term;
        let conversation = meta.conversation_turn();
        let workspace = meta.workspace.as_ref();
        let phases = &snapshot.phases;
        let phase = phases
            .last()
            .map_or(LifecyclePhase::Accepted, |mark| mark.phase());
        let started_at = phases.first().map(|mark| BootTime::from_millis(mark.at_ms));
        Self {
            lease,
            phase,
            started_at,
            conversation,
            exclusive_root: workspace.and_then(|plan| Some(plan.exclusive_root()?.to_owned())),
            stop_reason: StopReason::from_snapshot(&snapshot),
            tool_calls: meta
                .tools
                .clone()
                .map(|granted| ToolCalls::new(granted, meta.required_files.clone())),
            agent_finish: snapshot.finish.clone(),
            outbox,
            outbox_location: OutboxLocation::Existing {
                id,
                prefix: stored.prefix,
            },
            ..Self::new(meta.attempt, None, stage, cleanup_term)
        }
    }

    /// A shim that did not answer does so now: from here on it is an attempt like any other.
    pub(super) fn on_shim_reached(&mut self, token: Option<LeaseToken>, lease: Option<LeaseClock>) {
        self.token = token;
        self.lease = lease.or(self.lease);
        if let SupervisedStage::Running(reins) = &mut self.stage {
            reins.reach = ShimReach::Linked;
            if let Some(lease) = self.lease {
                reins.renew(lease);
            }
        }
    }

    /// How far the transcript is used up, stored with the next frame.
    pub(super) fn advance_progress(&mut self, mut progress: EventProgress) {
        let snapshot = match progress.snapshot.take() {
            Some(mut snapshot) => {
                (snapshot.stop, snapshot.cancel_reason) = StopReason::to_snapshot(self.stop_reason);
                snapshot.finish.clone_from(&self.agent_finish);
                snapshot.encode_to_vec().into()
            }
            None => self.outbox.progress().snapshot.clone(),
        };
        self.outbox.set_progress(outbox::TranscriptProgress {
            consumed: progress.position,
            snapshot,
        });
        if let SupervisedStage::Running(reins) = &mut self.stage {
            reins.track_position(&progress);
        }
    }

    /// The disk has more of it: the shim may forget what lies before.
    pub(crate) fn on_stored(&mut self) {
        let stored = self.outbox.log().stored_consumed();
        let written = self.outbox.log().written_through();
        if let SupervisedStage::Running(reins) = &mut self.stage {
            reins.on_stored(stored);
            reins.on_written(written);
        }
    }
}

impl StopReason {
    fn to_snapshot(why: Option<Self>) -> (i32, i32) {
        let (order, reason) = match why {
            None => (StopOrder::Unspecified, CancelReason::Unspecified),
            Some(Self::Canceled(reason)) => (StopOrder::Canceled, reason),
            Some(Self::Drained) => (StopOrder::Drained, CancelReason::Unspecified),
            Some(Self::DiskFull) => (StopOrder::DiskFull, CancelReason::Unspecified),
            Some(Self::TooLong) => (StopOrder::TooLong, CancelReason::Unspecified),
            Some(Self::LeaseEnded) => (StopOrder::LeaseEnded, CancelReason::Unspecified),
            Some(Self::Fenced) => (StopOrder::Fenced, CancelReason::Unspecified),
        };
        (order.into(), reason.into())
    }

    fn from_snapshot(snapshot: &FoldSnapshot) -> Option<Self> {
        match snapshot.stop() {
            StopOrder::Unspecified => None,
            StopOrder::Canceled => Some(Self::Canceled(snapshot.cancel_reason())),
            StopOrder::Drained => Some(Self::Drained),
            StopOrder::DiskFull => Some(Self::DiskFull),
            StopOrder::TooLong => Some(Self::TooLong),
            StopOrder::LeaseEnded => Some(Self::LeaseEnded),
            StopOrder::Fenced => Some(Self::Fenced),
        }
    }
}
