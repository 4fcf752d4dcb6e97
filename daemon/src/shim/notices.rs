//! What the shim reports to a connected daemon: which facts have changed, and the message for each.

use baton_proto::worker::{FromShim, Greeting, Grown, LeaseKept, Presence, StdinDone, from_shim};

use super::child_process::ChildProcess;
use super::daemon_connection::PendingNotice;
use super::{HIGHEST_VERSION, LOWEST_VERSION};
use crate::clock::BootTime;

/// The facts that a connected daemon gets when they change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReportedFacts {
    started: bool,
    end: u64,
    stdin_done: StdinDone,
    spool_fails: bool,
    /// The limit of the lease.
    lease_limit: Option<BootTime>,
}

impl ReportedFacts {
    pub(super) fn of_child(child: &ChildProcess) -> Self {
        Self {
            started: true,
            end: child.recorder.end(),
            stdin_done: child.stdin.done(),
            spool_fails: child.recorder.failure().is_some(),
            lease_limit: Some(child.lifecycle.lease().limit),
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

/// The highest version that both support.
pub(super) fn common_version(greeting: &Greeting) -> Option<u32> {
    let highest = greeting.highest_version.min(HIGHEST_VERSION);
    (highest >= greeting.lowest_version.max(LOWEST_VERSION)).then_some(highest)
}

/// The message for a pending notice, with the current state.
pub(super) fn notice_message(
    notice: PendingNotice,
    child: Option<&ChildProcess>,
    version: u32,
) -> Option<from_shim::Message> {
    use from_shim::Message;
    let Some(child) = child else {
        return match notice {
            PendingNotice::Presence => Some(Message::Presence(presence(version, None))),
            PendingNotice::Started
            | PendingNotice::StdinDone
            | PendingNotice::SpoolFailed
            | PendingNotice::LeaseKept
            | PendingNotice::Grown => None,
        };
    };
    Some(match notice {
        PendingNotice::Presence => Message::Presence(presence(version, Some(child))),
        PendingNotice::Started => Message::Started(child.started()),
        PendingNotice::StdinDone => Message::StdinDone(child.stdin.done()),
        PendingNotice::SpoolFailed => Message::SpoolFailed(child.recorder.failure()?.clone()),
        PendingNotice::LeaseKept => Message::LeaseKept(LeaseKept {
            limit_ms: child.lifecycle.lease().limit.as_millis(),
        }),
        PendingNotice::Grown => Message::Grown(Grown {
            end: child.recorder.end(),
        }),
    })
}

fn presence(version: u32, child: Option<&ChildProcess>) -> Presence {
    let own = Presence {
        version,
        shim_pid: std::process::id().cast_signed(),
        says_lease_kept: true,
        ..Presence::default()
    };
    let Some(child) = child else {
        return own;
    };
    Presence {
        attempt_id: child.attempt_id.clone(),
        started: Some(child.started()),
        transcript_end: child.recorder.end(),
        consumed: child.recorder.consumed(),
        stdin_done: child.stdin.done().id,
        lease: Some(super::lease_message::to_message(child.lifecycle.lease())),
        token: child.token.clone(),
        spool_failed: child.recorder.failure().cloned(),
        ..own
    }
}
