//! The relay's data are replaced by an older copy: a restored backup, an import, an accepted loss.
//!
//! What was granted since is unknown to the new life of the data, and runs on until its own limits. What clients were told
//! since is gone, as they were warned; everything else must still hold.

use std::sync::Arc;

use baton_core::input::{Actor, Input};

use crate::clients::actor;
use crate::world::World;

impl World {
    pub(crate) fn import(&mut self) {
        if self.relay.core.is_none() || self.relay.store.copies() == 0 {
            return;
        }
        self.crash_relay();
        self.counts.imports += 1;
        let copy = self.rng.index(self.relay.store.copies());
        self.note(|| format!("the data are those of copy {copy}"));
        self.relay.store.restore(copy);
        self.relay.incarnation += 1;
        self.relay.inherits = true;
        self.relay.forget_hold();
        let state = self.relay.store.durable.clone();
        self.clients.accept_loss(&state);
        self.confirmed_at.clear();
        // Nothing tells of a conversation whose open turns are all gone.
        let alive = &mut self.alive;
        let open = |attempt| {
            let task = alive.tasks.iter().find(|(_, other)| **other == attempt);
            task.is_some_and(|(task, _)| state.live.contains_key(task))
        };
        alive.conversations.retain(|_, attempt| open(*attempt));
    }

    /// An operator looks at the machines and sees that nothing runs there any more that this relay did not start.
    pub(crate) fn release_inherited(&mut self) {
        let incarnation = self.relay.incarnation();
        let held = self.daemons.iter().flat_map(|daemon| daemon.held.values());
        let old = held.filter(|held| held.re.incarnation != incarnation);
        let mut running = old.filter(|held| held.alive || !held.ended);
        let at_work = running.next().is_some() || self.agents_of_before(incarnation);
        if self.relay.store.view.scheduler.hold().is_none() || at_work {
            return;
        }
        self.counts.releases += 1;
        let by = Actor {
            name: "olga".into(),
            operator: true,
            ..actor()
        };
        let reason = Arc::from("nothing of before runs");
        self.ask(|request| Input::ReleaseInherited {
            request,
            by,
            reason,
        });
    }
}
