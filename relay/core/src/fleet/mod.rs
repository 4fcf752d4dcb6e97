//! Daemons: registry of stored records, roster of live state (sessions, slots, health), Hello
//! and settlement, heartbeats and lease renewal, frames. All fencing checks of daemon frames
//! are in `frame`. This folder does not place tasks (schedule/) and does not decide what a
//! frame's event means (attempt/machine).

pub(crate) mod daemon_control;
pub(crate) mod daemon_registry;
pub(crate) mod daemon_removal;
pub(crate) mod frame;
pub(crate) mod frame_check;
pub(crate) mod frame_event;
pub(crate) mod heartbeat;
pub mod roster;
pub(crate) mod session;
pub(crate) mod settlement;

use std::sync::Arc;

use crate::config::Config;
use crate::ids::{DaemonId, DaemonRef};
use crate::record::{DaemonChangesRecord, DaemonRecord, ForgottenDaemonsRecord};
use crate::time::WallTime;

use daemon_registry::DaemonRegistry;
use roster::DaemonRoster;

/// The daemons on record and in presence, and what operators did to them.
#[derive(Debug)]
pub struct Fleet {
    roster: DaemonRoster,
    registry: DaemonRegistry,
    forgotten: ForgottenDaemonsRecord,
    changes: DaemonChangesRecord,
}

impl Fleet {
    pub(crate) fn new(
        config: &Config,
        forgotten: ForgottenDaemonsRecord,
        changes: DaemonChangesRecord,
    ) -> Self {
        Self {
            roster: DaemonRoster::new(config),
            registry: DaemonRegistry::default(),
            forgotten,
            changes,
        }
    }

    /// A daemon on record at boot; it is away until it sends Hello.
    pub(crate) fn restore(&mut self, record: Arc<DaemonRecord>) {
        self.roster.insert_record(&record);
        self.registry.insert(record);
    }

    pub(crate) fn roster(&self) -> &DaemonRoster {
        &self.roster
    }

    pub(crate) fn roster_mut(&mut self) -> &mut DaemonRoster {
        &mut self.roster
    }

    pub(crate) fn record(&self, daemon: DaemonId) -> Option<&Arc<DaemonRecord>> {
        self.registry.get(daemon)
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &Arc<DaemonRecord>> {
        self.registry.values()
    }

    pub(crate) fn find_by_ref(
        &self,
        named: &DaemonRef,
    ) -> impl Iterator<Item = &Arc<DaemonRecord>> {
        self.registry.find_by_ref(named)
    }

    pub(crate) fn is_connected(&self, daemon: DaemonId) -> bool {
        self.roster.session_of(daemon).is_some()
    }

    /// It is here, or was until now. Not written each time: a stream that breaks changes nothing
    /// that is stored.
    pub(crate) fn mark_seen(&mut self, daemon: DaemonId, at: WallTime) {
        self.registry.set_last_seen(daemon, at);
    }
}
