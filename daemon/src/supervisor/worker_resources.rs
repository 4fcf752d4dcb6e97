//! Whether the worker's disk and memory allow new work, and when they are measured next.

use std::time::Duration;

use baton_proto::v1::{DaemonLoad, RejectCode};
use tracing::{info, warn};

use crate::agents::DispatchRefusal;
use crate::clock::BootTime;
use crate::machine::disk_monitor::{DiskMonitor, DiskState, FreeSpace};
use crate::machine::memory_monitor::{AvailableMemory, MachineUsage, MemoryMonitor};

/// How often the free space is measured, and how often while there is too little.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const LOW_DISK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct WorkerResources {
    disk: DiskMonitor,
    memory: MemoryMonitor,
    check_at: BootTime,
}

impl WorkerResources {
    pub(super) fn new(disk: DiskMonitor, memory: MemoryMonitor, now: BootTime) -> Self {
        Self {
            disk,
            memory,
            check_at: now,
        }
    }

    pub(super) fn disk_state(&self) -> DiskState {
        self.disk.state()
    }

    pub(super) fn is_memory_low(&self) -> bool {
        self.memory.is_low()
    }

    /// Why new work is refused now.
    pub(super) fn refusal(&self) -> Option<DispatchRefusal> {
        let (code, message) = match self.disk.state() {
            DiskState::Low | DiskState::Failing => (RejectCode::DiskFull, self.disk.to_string()),
            DiskState::Fine if self.memory.is_low() => {
                (RejectCode::LowMemory, self.memory.to_string())
            }
            DiskState::Fine => return None,
        };
        Some(DispatchRefusal { code, message })
    }

    /// For a heartbeat.
    pub(super) fn load(&self, unacked_output: usize) -> DaemonLoad {
        let machine = self.memory.latest();
        DaemonLoad {
            memory_available_percent: machine.memory.map(AvailableMemory::available_percent),
            load_1m: machine.load_1m,
            disk_free_percent: self.disk.space().map(FreeSpace::free_percent),
            unacked_bytes: Some(unacked_output as u64),
        }
    }

    pub(super) fn check_at(&self) -> BootTime {
        self.check_at
    }

    /// Plans the next check. Returns whether this one has to write, because a write has failed.
    pub(super) fn begin_check(&mut self, now: BootTime) -> bool {
        let state = self.disk.state();
        let interval = match state {
            DiskState::Fine => DISK_CHECK_INTERVAL,
            DiskState::Low | DiskState::Failing => LOW_DISK_CHECK_INTERVAL,
        };
        self.check_at = now.after(interval);
        state == DiskState::Failing
    }

    pub(super) fn check_now(&mut self, now: BootTime) {
        self.check_at = now;
    }

    pub(super) fn on_write_failed(&mut self) {
        self.disk.on_write_failed();
    }

    pub(super) fn on_disk_measured(&mut self, space: Option<FreeSpace>, is_writable: bool) {
        self.disk.on_measured(space, is_writable);
    }

    pub(super) fn on_machine_measured(&mut self, machine: MachineUsage) {
        let was_low = self.memory.is_low();
        self.memory.on_measured(machine);
        match (was_low, self.memory.is_low()) {
            (false, true) => warn!(memory = %self.memory, "new work is refused: low memory"),
            (true, false) => info!(memory = %self.memory, "new work is accepted again"),
            (false, false) | (true, true) => {}
        }
    }

    pub(super) fn log_disk_change(&self, before: DiskState) {
        let state = self.disk.state();
        if state == before {
            return;
        }
        match state {
            DiskState::Fine => info!(disk = %self.disk, "new work is accepted again"),
            DiskState::Low | DiskState::Failing => {
                warn!(disk = %self.disk, "new work is refused: free some disk space");
            }
        }
    }
}
