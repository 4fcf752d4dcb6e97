//! What a bench found: the machine, the settings, figures by phase, and what was checked. One shape for all of them, as tables for
//! people and as one JSON object for programs.

use serde_json::{Map, Value, json};

use super::latency::LatencySummary;
use super::machine::MachineInfo;
use super::relay_process::ProcessUsage;
use crate::render::progress_line::format_size;
use crate::render::table::TextTable;

#[derive(Clone, Copy, Debug)]
pub(crate) enum BenchFigure {
    Count(u64),
    PerSecond(f64),
    Seconds(f64),
    Bytes(u64),
    Ratio(f64),
    Latency(LatencySummary),
}

/// One stretch of load, or one moment, with its figures in the order of their columns.
#[derive(Clone, Debug)]
pub(crate) struct BenchPhase {
    name: &'static str,
    figures: Vec<(FigureName, BenchFigure)>,
}

/// How a figure is called in JSON and over its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FigureName {
    key: &'static str,
    title: &'static str,
}

/// Something that must hold whatever the speed: a bench that lost something has measured nothing.
#[derive(Clone, Debug)]
struct BenchCheck {
    what: String,
    passed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct BenchReport {
    bench: &'static str,
    machine: MachineInfo,
    settings: Vec<(&'static str, u64)>,
    phases: Vec<BenchPhase>,
    checks: Vec<BenchCheck>,
}

impl BenchPhase {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            figures: Vec::new(),
        }
    }

    pub(crate) fn with(
        mut self,
        key: &'static str,
        title: &'static str,
        figure: BenchFigure,
    ) -> Self {
        self.figures.push((FigureName { key, title }, figure));
        self
    }

    /// What the relay used in it.
    pub(crate) fn with_usage(self, used: ProcessUsage) -> Self {
        self.with("residentBytes", "MEMORY", BenchFigure::Bytes(used.resident))
            .with("peakResidentBytes", "PEAK", BenchFigure::Bytes(used.peak))
            .with(
                "relayCpuSeconds",
                "RELAY CPU",
                BenchFigure::Seconds(used.cpu_seconds),
            )
    }

    fn names(&self) -> impl Iterator<Item = FigureName> {
        self.figures.iter().map(|(name, _)| *name)
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

    fn headings(self, title: &str) -> Vec<String> {
        match self {
            BenchFigure::Latency(_) => ["P50", "P99", "MAX"]
                .map(|q| format!("{title} {q}"))
                .to_vec(),
            BenchFigure::Count(_)
            | BenchFigure::PerSecond(_)
            | BenchFigure::Seconds(_)
            | BenchFigure::Bytes(_)
            | BenchFigure::Ratio(_) => vec![title.to_owned()],
        }
    }

    fn cells(self) -> Vec<String> {
        match self {
            BenchFigure::Count(count) => vec![count.to_string()],
            BenchFigure::PerSecond(rate) => vec![format!("{rate:.0}")],
            BenchFigure::Seconds(seconds) => vec![format!("{seconds:.2} s")],
            BenchFigure::Bytes(bytes) => vec![format_size(bytes)],
            BenchFigure::Ratio(ratio) => vec![format!("{ratio:.2}")],
            BenchFigure::Latency(summary) if summary.count == 0 => vec!["-".to_owned(); 3],
            BenchFigure::Latency(summary) => [summary.p50, summary.p99, summary.max]
                .map(|ms| format!("{ms:.1} ms"))
                .to_vec(),
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

    pub(crate) fn add_check(&mut self, held: bool, what: impl Into<String>) {
        let what = what.into();
        self.checks.push(BenchCheck { what, passed: held });
    }

    pub(crate) fn all_checks_passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    pub(crate) fn json(&self) -> Value {
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

    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = self.machine.lines().to_vec();
        let settings = self.settings.iter();
        let settings: Vec<String> = settings
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        lines.push(format!("settings: {}", settings.join(", ")));
        // Phases that tell the same figures share a table.
        for alike in self
            .phases
            .chunk_by(|one, next| one.names().eq(next.names()))
        {
            lines.push(String::new());
            lines.extend(phase_table(alike).lines());
        }
        lines.push(String::new());
        let word = |held| if held { "held:  " } else { "BROKEN:" };
        let checks = self.checks.iter();
        lines.extend(checks.map(|check| format!("{} {}", word(check.passed), check.what)));
        lines
    }
}

fn phase_table(phases: &[BenchPhase]) -> TextTable {
    let figures = phases.first().map_or(&[][..], |phase| &phase.figures);
    let headings = figures
        .iter()
        .flat_map(|(name, figure)| figure.headings(name.title));
    let header = std::iter::once("PHASE".to_owned()).chain(headings);
    let mut table = TextTable::with_header(header.collect());
    for phase in phases {
        let cells = phase.figures.iter().flat_map(|(_, figure)| figure.cells());
        table.row_of_cells(
            std::iter::once(phase.name.to_owned())
                .chain(cells)
                .collect(),
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::latency::LatencySamples;

    #[test]
    fn a_table_has_a_column_for_every_percentile_and_json_every_figure() {
        let mut samples = LatencySamples::default();
        samples.add(std::time::Duration::from_millis(2));
        let phase = BenchPhase::new("steady")
            .with("tasksPerSecond", "TASKS/S", BenchFigure::PerSecond(1234.4))
            .with("submit", "SUBMIT", BenchFigure::Latency(samples.summary()));
        let lines: Vec<String> = phase_table(std::slice::from_ref(&phase)).lines().collect();
        assert_eq!(
            lines[0],
            "PHASE   TASKS/S  SUBMIT P50  SUBMIT P99  SUBMIT MAX"
        );
        assert_eq!(lines[1], "steady  1234     2.0 ms      2.0 ms      2.0 ms");
        assert_eq!(phase.json()["submit"]["p99Ms"], 2.0);
        assert_eq!(phase.json()["tasksPerSecond"], 1234.4);
    }
}
