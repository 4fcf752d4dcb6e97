//! The lease as a message between daemon and shim.

use baton_daemon_core::child_lifecycle::LeaseDeadlines;
use baton_proto::worker;

use crate::clock::BootTime;

pub(crate) fn to_message(lease: LeaseDeadlines) -> worker::Lease {
    worker::Lease {
        term_at_ms: lease.term_at.as_millis(),
        kill_at_ms: lease.kill_at.as_millis(),
        limit_ms: lease.limit.as_millis(),
        granted_ms: lease.granted_ms,
    }
}

pub(super) fn from_message(lease: worker::Lease) -> LeaseDeadlines {
    LeaseDeadlines {
        term_at: BootTime::from_millis(lease.term_at_ms),
        kill_at: BootTime::from_millis(lease.kill_at_ms),
        limit: BootTime::from_millis(lease.limit_ms),
        granted_ms: lease.granted_ms,
    }
}
