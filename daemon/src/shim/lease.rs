//! A lease on its way between daemon and shim.

use baton_daemon_core::course::Lease;
use baton_proto::worker;

use crate::clock::Moment;

pub(crate) fn to_message(lease: Lease) -> worker::Lease {
    worker::Lease {
        term_at_ms: lease.term_at.as_millis(),
        kill_at_ms: lease.kill_at.as_millis(),
        limit_ms: lease.limit.as_millis(),
        granted_ms: lease.granted_ms,
    }
}

pub(super) fn from_message(lease: worker::Lease) -> Lease {
    Lease {
        term_at: Moment::from_millis(lease.term_at_ms),
        kill_at: Moment::from_millis(lease.kill_at_ms),
        limit: Moment::from_millis(lease.limit_ms),
        granted_ms: lease.granted_ms,
    }
}
