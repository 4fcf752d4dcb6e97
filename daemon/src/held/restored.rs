//! An attempt that an earlier daemon held, as its directory shows it: what it has to say, how far its transcript is
//! folded, and whose wish it was that it stops.

use baton_daemon_core::lease::LeaseClock;
use baton_proto::v1::{CancelReason, LeaseToken, LifecyclePhase, TerminationReceipt};
use baton_proto::worker::{FoldSnapshot, StopOrder};
use prost::Message;

use super::reins::{Bits, Reach, Reins};
use super::voice::Voice;
use super::{Held, Place, Stage, StopWhy};
use crate::agents::Refusal;
use crate::attempt::{Progress, Talk};
use crate::attempt_dir::{AttemptId, AttemptMeta};
use crate::clock::{Clock, Moment};
use crate::frames;
use crate::outbox::{self, Stored};

/// What is left of an attempt on disk.
pub(crate) struct Remains {
    pub(crate) id: AttemptId,
    pub(crate) meta: AttemptMeta,
    pub(crate) stored: Stored,
}

impl Remains {
    /// State of the fold as it was stored last. What cannot be decoded was written by nobody we know: then the fold
    /// begins anew at the stored position.
    pub(crate) fn snapshot(&self) -> FoldSnapshot {
        let snapshot = self.stored.outbox.progress().snapshot.clone();
        FoldSnapshot::decode(snapshot).unwrap_or_default()
    }

    /// It runs, was a talk, and what was said cannot be read: it was killed before the first word was stored, or another version
    /// wrote it. Taken for a command it would be called done because it ended with 0.
    pub(crate) fn lacks_its_talk(&self) -> bool {
        let talk = self.snapshot().talk;
        self.meta.talks && !self.is_finished() && serde_json::from_slice::<Talk>(&talk).is_err()
    }

    /// Its last word is on disk.
    pub(crate) fn is_finished(&self) -> bool {
        self.last_word().is_some()
    }

    /// It was said that a process is being started.
    pub(crate) fn has_begun(&self) -> bool {
        !self.snapshot().phases.is_empty()
    }

    fn last_word(&self) -> Option<TerminationReceipt> {
        self.stored.last_control.as_ref()?.last_word()
    }
}

impl Held {
    /// Nothing runs, and its last word is on disk until the relay has it.
    pub(crate) fn finished(remains: Remains) -> Self {
        let receipt = remains.last_word().unwrap_or_default();
        let last_seq = remains.stored.outbox.last_control_seq();
        let stage = Stage::Finished { last_seq, receipt };
        Self::restored(remains, stage, None)
    }

    /// It was taken and nothing was ever started: that is said, and the relay may place it elsewhere.
    pub(crate) fn never_started(remains: Remains, clock: &Clock) -> Self {
        let stage = Stage::Finished {
            last_seq: 0,
            receipt: frames::nothing_ran(clock.wall()),
        };
        let mut held = Self::restored(remains, stage, None);
        held.finish(
            frames::rejected(&Refusal::not_confirmed()),
            frames::nothing_ran(clock.wall()),
            clock,
        );
        held
    }

    /// It was started. Its task goes on with the other ends of its lines.
    pub(crate) fn resumed(
        remains: Remains,
        token: Option<LeaseToken>,
        lease: Option<LeaseClock>,
        reach: Reach,
    ) -> (Self, Bits) {
        let position = remains.stored.outbox.progress().consumed;
        let (reins, bits) = Reins::new(lease, reach, position);
        if remains.snapshot().finish.is_some() {
            reins.fix();
        }
        let mut held = Self::restored(remains, Stage::Running(reins), lease);
        held.token = token;
        (held, bits)
    }

    fn restored(remains: Remains, stage: Stage, lease: Option<LeaseClock>) -> Self {
        let snapshot = remains.snapshot();
        let Remains { id, meta, stored } = remains;
        let outbox = stored.outbox;
        let cleanup_term = meta.cleanup_term;
        let conversing = meta.conversing();
        let workspace = meta.workspace.as_ref();
        let phases = &snapshot.phases;
        let phase = phases
            .last()
            .map_or(LifecyclePhase::Accepted, |mark| mark.phase());
        let started_at = phases.first().map(|mark| Moment::from_millis(mark.at_ms));
        Self {
            lease,
            phase,
            started_at,
            conversing,
            exclusive: workspace.and_then(|plan| Some(plan.exclusive()?.to_owned())),
            stopping: StopWhy::restored(&snapshot),
            voice: meta
                .tools
                .clone()
                .map(|granted| Voice::new(granted, meta.files.clone())),
            finish: snapshot.finish.clone(),
            outbox,
            place: Place::Found {
                id,
                found: stored.found,
            },
            ..Self::new(meta.attempt, None, stage, cleanup_term)
        }
    }

    /// A shim that did not answer does so now: from here on it is an attempt like any other.
    pub(super) fn on_reached(&mut self, token: Option<LeaseToken>, lease: Option<LeaseClock>) {
        self.token = token;
        self.lease = lease.or(self.lease);
        if let Stage::Running(reins) = &mut self.stage {
            reins.reach = Reach::Linked;
            if let Some(lease) = self.lease {
                reins.renew(lease);
            }
        }
    }

    /// How far the transcript is used up, stored with the next frame.
    pub(super) fn advance(&mut self, mut progress: Progress) {
        let snapshot = match progress.snapshot.take() {
            Some(mut snapshot) => {
                (snapshot.stop, snapshot.cancel_reason) = StopWhy::stored(self.stopping);
                snapshot.finish.clone_from(&self.finish);
                snapshot.encode_to_vec().into()
            }
            None => self.outbox.progress().snapshot.clone(),
        };
        self.outbox.advance(outbox::Progress {
            consumed: progress.position,
            snapshot,
        });
        if let Stage::Running(reins) = &mut self.stage {
            reins.advance(&progress);
        }
    }

    /// The disk has more of it: the shim may forget what lies before.
    pub(crate) fn on_stored(&mut self) {
        let stored = self.outbox.log().stored_consumed();
        let written = self.outbox.log().written_through();
        if let Stage::Running(reins) = &mut self.stage {
            reins.stored(stored);
            reins.written(written);
        }
    }
}

impl StopWhy {
    fn stored(why: Option<Self>) -> (i32, i32) {
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

    fn restored(snapshot: &FoldSnapshot) -> Option<Self> {
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
