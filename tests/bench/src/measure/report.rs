//! The report of a bench: the machine, the settings, figures by phase, and the checks. All benches
//! use the same types. JSON is made here; the caller renders tables.

use serde_json::{Map, Value, json};

use crate::measure::latency::LatencySummary;
use crate::measure::machine::MachineInfo;
use crate::measure::relay_process::ProcessUsage;

#[derive(Clone, Copy, Debug)]
pub enum BenchFigure {
    Count(u64),
    PerSecond(f64),
    Seconds(f64),
    Bytes(u64),
    Ratio(f64),
    Latency(LatencySummary),
}

/// One period of load, or one point in time, with its figures in the order of their columns.
#[derive(Clone, Debug)]
pub struct BenchPhase {
    pub name: &'static str,
    pub figures: Vec<(FigureName, BenchFigure)>,
}

/// The name of a figure in JSON and above its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FigureName {
    pub key: &'static str,
    pub title: &'static str,
}

/// A condition that must hold at any speed. The figures of a bench that lost work are worthless.
#[derive(Clone, Debug)]
pub struct BenchCheck {
    pub what: String,
    pub passed: bool,
}

#[derive(Clone, Debug)]
pub struct BenchReport {
    bench: &'static str,
    pub machine: MachineInfo,
    pub settings: Vec<(&'static str, u64)>,
    pub phases: Vec<BenchPhase>,
    pub checks: Vec<BenchCheck>,
}

impl BenchPhase {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            figures: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, key: &'static str, title: &'static str, figure: BenchFigure) -> Self {
        self.figures.push((FigureName { key, title }, figure));
        self
    }

    /// Adds the memory and processor time that the relay used in this phase.
    pub(crate) fn with_usage(self, used: ProcessUsage) -> Self {
        self.with("residentBytes", "MEMORY", BenchFigure::Bytes(used.resident))
            .with("peakResidentBytes", "PEAK", BenchFigure::Bytes(used.peak))
            .with(
                "relayCpuSeconds",
                "RELAY CPU",
                BenchFigure::Seconds(used.cpu_seconds),
            )
    }

    /// Phases with the same figures can share a table.
    pub fn has_same_figures(&self, other: &Self) -> bool {
        let names = |phase: &Self| {
            phase
                .figures
                .iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
        };
        names(self) == names(other)
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("phase".to_owned(), self.name.into());
        for (name, figure) in &self.figures {
            object.insert(name.key.to_owned(), figure.json());
        }
        object.into()
    }
}

impl BenchFigure {
    fn json(self) -> Value {
        match self {
            BenchFigure::Count(count) | BenchFigure::Bytes(count) => count.into(),
            BenchFigure::PerSecond(value)
            | BenchFigure::Seconds(value)
            | BenchFigure::Ratio(value) => value.into(),
            BenchFigure::Latency(summary) => summary.json(),
        }
    }
}

impl BenchReport {
    pub(crate) fn new(
        bench: &'static str,
        machine: MachineInfo,
        settings: Vec<(&'static str, u64)>,
    ) -> Self {
        Self {
            bench,
            machine,
            settings,
            phases: Vec::new(),
            checks: Vec::new(),
        }
    }

    pub(crate) fn add_phase(&mut self, phase: BenchPhase) {
        self.phases.push(phase);
    }

    pub(crate) fn add_check(&mut self, passed: bool, what: impl Into<String>) {
        let what = what.into();
        self.checks.push(BenchCheck { what, passed });
    }

    pub fn all_checks_passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    pub fn json(&self) -> Value {
        let settings = self.settings.iter();
        let settings: Map<String, Value> = settings
            .map(|(key, value)| ((*key).to_owned(), (*value).into()))
            .collect();
        let checks = self.checks.iter();
        json!({
            "bench": self.bench,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine.json(),
            "settings": settings,
            "phases": self.phases.iter().map(BenchPhase::json).collect::<Vec<_>>(),
            "checks": checks.map(|check| json!({ "what": check.what, "held": check.passed })).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::latency::LatencySamples;

    #[test]
    fn json_has_every_figure_under_its_key() {
        let mut samples = LatencySamples::default();
        samples.add(std::time::Duration::from_millis(2));
        let phase = BenchPhase::new("steady")
            .with("tasksPerSecond", "TASKS/S", BenchFigure::PerSecond(1234.4))
            .with("submit", "SUBMIT", BenchFigure::Latency(samples.summary()));

        assert_eq!(phase.json()["submit"]["p99Ms"], 2.0);
        assert_eq!(phase.json()["tasksPerSecond"], 1234.4);
    }
}
