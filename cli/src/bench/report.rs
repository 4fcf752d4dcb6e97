//! What a run of the load generator found, as a table for people and as one JSON object.

use std::time::Duration;

use serde_json::{Value, json};

use super::Plan;
use super::latency::{Samples, Summary};
use super::relay_process::Memory;
use crate::table::Table;

/// One phase of load.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub name: &'static str,
    pub elapsed: Duration,
    /// Durable completions within `elapsed`.
    pub completed: u64,
    /// Submits that admission turned away.
    pub refused: u64,
    /// Submits whose connection broke.
    pub failed: u64,
    pub submit: Samples,
    pub complete: Samples,
    pub memory: Memory,
    /// Over the whole phase with warm-up and settling.
    pub relay_cpu_seconds: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub plan: Plan,
    pub phases: [Phase; 2],
    pub rate: u32,
    pub tasks: u64,
    pub disk_bytes: u64,
}

impl Phase {
    pub(crate) fn tasks_per_second(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }

    fn json(&self) -> Value {
        json!({
            "phase": self.name,
            "seconds": self.elapsed.as_secs_f64(),
            "completed": self.completed,
            "tasksPerSecond": self.tasks_per_second(),
            "refused": self.refused,
            "failed": self.failed,
            "submit": self.submit.clone().summary().json(),
            "submitToComplete": self.complete.clone().summary().json(),
            "residentBytes": self.memory.resident,
            "peakResidentBytes": self.memory.peak,
            "relayCpuSeconds": self.relay_cpu_seconds,
        })
    }

    fn row(&self) -> [String; 8] {
        let (submit, complete) = (
            self.submit.clone().summary(),
            self.complete.clone().summary(),
        );
        [
            self.name.to_owned(),
            format!("{:.0}", self.tasks_per_second()),
            latency(submit, submit.p50),
            latency(submit, submit.p99),
            latency(complete, complete.p50),
            latency(complete, complete.p99),
            mib(self.memory.resident),
            self.refused.to_string(),
        ]
    }
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        json!({
            "connections": self.plan.connections,
            "inFlight": self.plan.in_flight,
            "daemons": self.plan.daemons,
            "slots": self.plan.slots,
            "maxOpen": self.plan.max_open,
            "rate": self.rate,
            "tasks": self.tasks,
            "diskBytes": self.disk_bytes,
            "diskBytesPerTask": self.bytes_per_task(),
            "phases": self.phases.iter().map(Phase::json).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut table = Table::new([
            "PHASE",
            "TASKS/S",
            "SUBMIT P50",
            "SUBMIT P99",
            "DONE P50",
            "DONE P99",
            "MEMORY",
            "REFUSED",
        ]);
        for phase in &self.phases {
            table.row(phase.row());
        }
        let mut lines: Vec<String> = table.lines().collect();
        lines.push(format!(
            "{} tasks in all, {} bytes on disk per task, {} connections x {} submits, {} daemons x {} slots",
            self.tasks,
            self.bytes_per_task(),
            self.plan.connections,
            self.plan.in_flight,
            self.plan.daemons,
            self.plan.slots,
        ));
        lines
    }

    fn bytes_per_task(&self) -> u64 {
        self.disk_bytes / self.tasks.max(1)
    }
}

fn latency(summary: Summary, ms: f64) -> String {
    if summary.count == 0 {
        "-".to_owned()
    } else {
        format!("{ms:.1} ms")
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / (1024 * 1024))
}
