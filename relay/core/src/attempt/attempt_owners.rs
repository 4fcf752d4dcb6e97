//! What the change of one attempt may touch besides its task: the lease index, the roster of
//! daemons and the schedule. Other tasks are out of reach, and so are the records of daemons.

use crate::attempt::lease_index::LeaseIndex;
use crate::fleet::roster::DaemonRoster;
use crate::ids::SessionId;
use crate::schedule::Schedule;
use crate::task::live_task::{AttemptContext, LiveTask};
use crate::time::WallTime;
use crate::turn::CoreTurn;

#[derive(Debug)]
pub struct AttemptOwners<'a> {
    pub(crate) leases: &'a mut LeaseIndex,
    pub(crate) roster: &'a mut DaemonRoster,
    pub(crate) schedule: &'a mut Schedule,
}

/// What the machine of an attempt must be given.
pub(crate) fn attempt_context<'a>(
    roster: &DaemonRoster,
    live: &LiveTask,
    turn: &CoreTurn<'a>,
    observed: Option<WallTime>,
) -> AttemptContext<'a> {
    AttemptContext {
        config: turn.config,
        connected: holder_session(roster, live).is_some(),
        now: turn.now,
        uptime_ms: turn.uptime_ms,
        observed,
    }
}

/// The stream on which the newest attempt's holder can be reached.
pub(crate) fn holder_session(roster: &DaemonRoster, live: &LiveTask) -> Option<SessionId> {
    let holder = live.newest_attempt().daemon_holder()?;
    roster.session_of(holder.daemon)
}
