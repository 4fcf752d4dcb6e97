//! Records at boot that are there and mean nothing, of those that hold work back. A fence, a hold or a pause that nobody can
//! read may not be taken for none: each is taken for the most that it can have said, until time or an operator knows better.

use crate::ids::{AttemptId, TenantScope};
use crate::io::effects::RecordChange;
use crate::record::{PauseMark, TaskRecord};
use crate::schedule::Schedule;
use crate::turn::CoreTurn;

const DAMAGE_PAUSE_REASON: &str =
    "the record of what was paused cannot be read; unpause when you know that nothing has to wait";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordDamage {
    /// Pauses of the whole scheduler, holds, and how long the relay has run.
    pub scheduler: bool,
    /// Pauses of tenants.
    pub pauses: bool,
    /// Fences that are known by name.
    pub fences: Vec<AttemptId>,
    /// There may be more of them, without a name.
    pub fences_hidden: bool,
}

impl RecordDamage {
    /// Where the records stand, something cannot be read and nobody knows what.
    pub fn unknown_extent() -> Self {
        Self {
            scheduler: true,
            pauses: true,
            fences: Vec::new(),
            fences_hidden: true,
        }
    }

    /// Whether an attempt may run of which nothing is known any more.
    pub(crate) fn may_hide_grants(&self) -> bool {
        self.scheduler || self.fences_hidden || !self.fences.is_empty()
    }
}

impl Schedule {
    /// Before the tasks are restored, whose timers stand still in a pause.
    pub(crate) fn pause_for_damage(&mut self, damage: &RecordDamage, turn: &mut CoreTurn<'_>) {
        if !damage.scheduler && !damage.pauses {
            return;
        }
        let pause = PauseMark {
            by: "relay".into(),
            reason: DAMAGE_PAUSE_REASON.into(),
            since: turn.now.wall,
        };
        if !self.is_scheduler_paused() {
            self.begin_pause(&TenantScope::All, pause, turn);
        } else {
            self.record_pause_change(&TenantScope::All, true, pause, turn);
        }
    }
}

/// Behind the write of the suspension that takes their place.
pub(crate) fn drop_damaged_fences(damage: &RecordDamage, turn: &mut CoreTurn<'_>) {
    for attempt in &damage.fences {
        turn.push_change(RecordChange::DropFence(*attempt));
    }
}

/// The uptime that earlier runs had at least, where its record is lost: what was dated by it would otherwise lie in the future, and
/// be fresh for ever.
pub(crate) fn min_uptime_ms<'a>(tasks: impl Iterator<Item = &'a TaskRecord>) -> u64 {
    let attempts = tasks.flat_map(|task| &task.attempts);
    attempts
        .map(|attempt| attempt.budgets_at_ms)
        .max()
        .unwrap_or(0)
}
