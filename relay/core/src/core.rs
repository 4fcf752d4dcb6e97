//! The core's surface: one state, three calls. What each input means is decided in the files beside this one.

use std::sync::Arc;

use crate::config::Config;
use crate::effects::Effects;
use crate::id::{TaskId, TenantId};
use crate::input::Input;
use crate::record::{DaemonRecord, FenceRecord, IdempotencyRecord, SchedulerRecord, TaskRecord};
use crate::spec::TaskSpec;
use crate::time::{Mint, Moment, Now};

/// Everything durable that a boot needs; finished tasks are not among it.
#[derive(Debug, Default)]
pub struct Recovered {
    pub tasks: Vec<(Arc<TaskSpec>, Arc<TaskRecord>)>,
    pub daemons: Vec<Arc<DaemonRecord>>,
    pub scheduler: SchedulerRecord,
    pub fences: Vec<FenceRecord>,
    /// Of live tasks; the store is asked for the others.
    pub idempotency: Vec<(TenantId, String, IdempotencyRecord)>,
}

#[derive(Debug)]
pub struct Core {
    config: Config,
}

impl Core {
    /// Builds the state from what is durable. Leases and fences are armed in full: the relay does not know how long
    /// it was away.
    pub fn recover(
        _recovered: Recovered,
        config: Config,
        _now: Now,
        _mint: &mut dyn Mint,
    ) -> (Core, Effects) {
        (Core { config }, Effects::default())
    }

    /// Decides one input. `now` never goes back; the shell reads both clocks once per input.
    pub fn handle(&mut self, _input: Input, _now: Now, _mint: &mut dyn Mint) -> Effects {
        Effects::default()
    }

    /// When `Input::Tick` is wanted next.
    pub fn next_deadline(&self) -> Option<Moment> {
        None
    }

    /// Whether the core has this task; of others the shell loads the finished record for inputs that name them.
    pub fn is_live(&self, _task: TaskId) -> bool {
        false
    }

    pub fn config(&self) -> &Config {
        &self.config
    }
}
