//! Damaged records at boot that restrict dispatch. An unreadable fence, suspension or pause
//! must not count as absent: each is treated as the most restrictive value it could have had,
//! until it expires or an operator ends it.

use crate::ids::{AttemptId, TenantScope};
use crate::io::effects::RecordChange;
use crate::record::{PauseMark, TaskRecord};
use crate::schedule::Schedule;
use crate::turn::CoreTurn;

const DAMAGE_PAUSE_REASON: &str =
    "the stored pauses cannot be read; unpause when you are sure that nothing has to stay paused";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordDamage {
    /// Pauses of the whole scheduler, suspensions, and the relay's uptime.
    pub scheduler: bool,
    /// Pauses of tenants.
    pub pauses: bool,
    /// Damaged fences with a known attempt.
    pub fences: Vec<AttemptId>,
    /// There may be more fences whose attempt is unknown.
    pub fences_hidden: bool,
}

impl RecordDamage {
    /// Damage of unknown extent in the area of these records.
    pub fn unknown_extent() -> Self {
        Self {
            scheduler: true,
            pauses: true,
            fences: Vec::new(),
            fences_hidden: true,
        }
    }

    /// Whether an attempt may run of which no record is left.
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

/// Removes damaged fences, after the write of the suspension that replaces them.
pub(crate) fn drop_damaged_fences(damage: &RecordDamage, turn: &mut CoreTurn<'_>) {
    for attempt in &damage.fences {
        turn.push_change(RecordChange::DropFence(*attempt));
    }
}

/// The minimum uptime of earlier runs, if its record is lost. Without it, budgets dated by the
/// lost uptime would lie in the future and never age.
pub(crate) fn min_uptime_ms<'a>(tasks: impl Iterator<Item = &'a TaskRecord>) -> u64 {
    let attempts = tasks.flat_map(|task| &task.attempts);
    attempts
        .map(|attempt| attempt.budgets_at_ms)
        .max()
        .unwrap_or(0)
}
