//! The relay's data is replaced by an older copy: a restored backup, an import, an accepted
//! loss.
//!
//! Later grants are unknown to the new incarnation, and their processes run until their own
//! limits. Later acknowledgements to clients are lost, as documented; everything else must
//! still hold.

use std::sync::Arc;

use baton_core::commands::ReleaseInherited;
use baton_core::io::command::RequestActor;

use crate::clients::sim_clients::client_actor;
use crate::relay::sim_reply::SimReply;
use crate::simulation::Simulation;

impl Simulation {
    pub(crate) fn import_old_data(&mut self) {
        if self.relay.core.is_none() || self.relay.store.backup_count() == 0 {
            return;
        }
        self.crash_relay();
        self.counts.imports += 1;
        let copy = self.rng.random_index(self.relay.store.backup_count());
        self.add_trace(|| format!("the data are those of copy {copy}"));
        self.relay.store.restore_backup(copy);
        self.relay.incarnation += 1;
        self.relay.has_unknown_grants = true;
        self.relay.clear_inherited_task();
        let state = self.relay.store.durable.clone();
        self.clients.forget_lost_data(&state);
        self.confirmed_at.clear();
        // The relay has no record of a conversation whose open turns were all lost.
        let alive = &mut self.running;
        let open = |attempt| {
            let task = alive.tasks.iter().find(|(_, other)| **other == attempt);
            task.is_some_and(|(task, _)| state.live.contains_key(task))
        };
        alive.conversations.retain(|_, attempt| open(*attempt));
    }

    /// An operator confirms that the machines run nothing that this relay did not start.
    pub(crate) fn release_inherited_tasks(&mut self) {
        let incarnation = self.relay.incarnation();
        let held = self
            .daemons
            .iter()
            .flat_map(|daemon| daemon.attempts.values());
        let old = held.filter(|held| held.re.incarnation != incarnation);
        let mut running = old.filter(|held| held.processes_alive || !held.ended);
        let at_work =
            running.next().is_some() || self.has_agents_of_earlier_incarnation(incarnation);
        if self
            .relay
            .store
            .view
            .scheduler
            .active_suspension()
            .is_none()
            || at_work
        {
            return;
        }
        self.counts.releases += 1;
        let by = RequestActor {
            name: "olga".into(),
            operator: true,
            ..client_actor()
        };
        let reason = Arc::from("nothing of before runs");
        self.send_request(ReleaseInherited { by, reason }, SimReply::other);
    }
}
