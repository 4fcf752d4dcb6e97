//! The configured agents, and the repeated check whether their programs are installed.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::agents::{AgentRegistry, ProgramStatus};
use crate::clock::BootTime;

/// How often the agents' programs are looked for, for the next Hello.
const PROGRAM_CHECK_INTERVAL: Duration = Duration::from_secs(30);

pub(super) struct AgentPrograms {
    registry: AgentRegistry,
    check_at: BootTime,
    running_check: Option<JoinHandle<()>>,
}

impl AgentPrograms {
    /// `found` is the result of the check before the first Hello.
    pub(super) fn new(
        registry: AgentRegistry,
        found: BTreeMap<String, ProgramStatus>,
        now: BootTime,
    ) -> Self {
        registry.set_program_status(found);
        Self {
            registry,
            check_at: now.after(PROGRAM_CHECK_INTERVAL),
            running_check: None,
        }
    }

    pub(super) fn registry(&self) -> &AgentRegistry {
        &self.registry
    }

    pub(super) fn check_at(&self) -> BootTime {
        self.check_at
    }

    /// Only one check runs at a time: a disk that hangs then blocks one thread and not all of them.
    pub(super) fn check_if_due(&mut self, now: BootTime) {
        if self.check_at > now {
            return;
        }
        self.check_at = now.after(PROGRAM_CHECK_INTERVAL);
        let running = self.running_check.as_ref();
        if running.is_none_or(JoinHandle::is_finished) {
            let check = self.registry.recheck_programs();
            self.running_check = Some(tokio::task::spawn_blocking(check));
        }
    }
}
