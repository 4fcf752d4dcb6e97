//! What the shim reports to a connected daemon: which facts have changed, and the message for each.

use baton_proto::worker::{FromShim, Greeting, Grown, LeaseKept, Presence, StdinDone, from_shim};

use super::child_process::ChildProcess;
use super::daemon_connection::PendingNotice;
use super::{HIGHEST_VERSION, LOWEST_VERSION};
use crate::clock::BootTime;

/// What a connected daemon is told when it changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReportedFacts {
    started: bool,
    end: u64,
    stdin_done: StdinDone,
    spool_fails: bool,
    /// Of the lease.
    lease_limit: Option<BootTime>,
}

impl ReportedFacts {
    pub(super) fn of_child(charge: &ChildProcess) -> Self {
        Self {
            started: true,
            end: charge.recorder.end(),
            stdin_done: charge.stdin.done(),
            spool_fails: charge.recorder.failure().is_some(),
            lease_limit: Some(charge.lifecycle.lease().limit),
        }
    }

    /// One notice for each fact that differs.
    pub(super) fn changes_since(
        &self,
        before: &Self,
    ) -> impl Iterator<Item = PendingNotice> + use<> {
        let changes = [
            (PendingNotice::Started, self.started != before.started),
            (
                PendingNotice::StdinDone,
                self.stdin_done != before.stdin_done,
            ),
            (
                PendingNotice::SpoolFailed,
                self.spool_fails && !before.spool_fails,
            ),
            (
                PendingNotice::LeaseKept,
                self.lease_limit != before.lease_limit,
            ),
            (PendingNotice::Grown, self.end != before.end),
        ];
        changes
            .into_iter()
            .filter_map(|(notice, changed)| changed.then_some(notice))
    }
}

pub(super) fn wrap_message(message: from_shim::Message) -> FromShim {
    FromShim {
        message: Some(message),
    }
}

/// The highest version that both speak.
pub(super) fn common_version(greeting: &Greeting) -> Option<u32> {
    let highest = greeting.highest_version.min(HIGHEST_VERSION);
    (highest >= greeting.lowest_version.max(LOWEST_VERSION)).then_some(highest)
}

/// The newest word on what is owed.
pub(super) fn notice_message(
    owed: PendingNotice,
    charge: Option<&ChildProcess>,
    version: u32,
) -> Option<from_shim::Message> {
    use from_shim::Message;
    let Some(charge) = charge else {
        return match owed {
            PendingNotice::Presence => Some(Message::Presence(presence(version, None))),
            PendingNotice::Started
            | PendingNotice::StdinDone
            | PendingNotice::SpoolFailed
            | PendingNotice::LeaseKept
            | PendingNotice::Grown => None,
        };
    };
    Some(match owed {
        PendingNotice::Presence => Message::Presence(presence(version, Some(charge))),
        PendingNotice::Started => Message::Started(charge.started()),
        PendingNotice::StdinDone => Message::StdinDone(charge.stdin.done()),
        PendingNotice::SpoolFailed => Message::SpoolFailed(charge.recorder.failure()?.clone()),
        PendingNotice::LeaseKept => Message::LeaseKept(LeaseKept {
            limit_ms: charge.lifecycle.lease().limit.as_millis(),
        }),
        PendingNotice::Grown => Message::Grown(Grown {
            end: charge.recorder.end(),
        }),
    })
}

fn presence(version: u32, charge: Option<&ChildProcess>) -> Presence {
    let own = Presence {
        version,
        shim_pid: std::process::id().cast_signed(),
        says_lease_kept: true,
        ..Presence::default()
    };
    let Some(charge) = charge else {
        return own;
    };
    Presence {
        attempt_id: charge.attempt_id.clone(),
        started: Some(charge.started()),
        transcript_end: charge.recorder.end(),
        consumed: charge.recorder.consumed(),
        stdin_done: charge.stdin.done().id,
        lease: Some(super::lease_message::to_message(charge.lifecycle.lease())),
        token: charge.token.clone(),
        spool_failed: charge.recorder.failure().cloned(),
        ..own
    }
}
