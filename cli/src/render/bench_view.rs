//! Tables of `baton bench`: the report of one bench, and the comparison of two builds.

use baton_bench::compare::{BuildComparison, FigureSpread};
use baton_bench::measure::machine::{MachineInfo, SYNC_SAMPLES};
use baton_bench::measure::report::{BenchFigure, BenchPhase, BenchReport};

use crate::render::progress_line::format_size;
use crate::render::table::TextTable;

pub(crate) fn report_lines(report: &BenchReport) -> Vec<String> {
    let mut lines = machine_lines(&report.machine).to_vec();
    let settings = report.settings.iter();
    let settings: Vec<String> = settings
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    lines.push(format!("settings: {}", settings.join(", ")));
    for phases in report.phases.chunk_by(BenchPhase::has_same_figures) {
        lines.push(String::new());
        lines.extend(phase_table(phases).lines());
    }
    lines.push(String::new());
    let verdict = |passed| if passed { "held:  " } else { "BROKEN:" };
    let checks = report.checks.iter();
    lines.extend(checks.map(|check| format!("{} {}", verdict(check.passed), check.what)));
    lines
}

fn machine_lines(machine: &MachineInfo) -> [String; 2] {
    [
        format!(
            "machine: {}, {} cores, {} memory, {}, {}, load {}",
            machine.cpu,
            machine.cores,
            format_size(machine.memory_bytes),
            machine.kernel,
            machine.filesystem,
            machine.load_1m
        ),
        format!(
            "fdatasync: on for every commit; 4 KiB take {:.2} ms on this disk (median of {SYNC_SAMPLES})",
            machine.sync_ms()
        ),
    ]
}

fn phase_table(phases: &[BenchPhase]) -> TextTable {
    let figures = phases.first().map_or(&[][..], |phase| &phase.figures);
    let headings = figures
        .iter()
        .flat_map(|(name, figure)| figure_headings(*figure, name.title));
    let header = std::iter::once("PHASE".to_owned()).chain(headings);
    let mut table = TextTable::with_header(header.collect());
    for phase in phases {
        let figures = phase.figures.iter();
        let cells = figures.flat_map(|(_, figure)| figure_cells(*figure));
        let name = std::iter::once(phase.name.to_owned());
        table.row_of_cells(name.chain(cells).collect());
    }
    table
}

fn figure_headings(figure: BenchFigure, title: &str) -> Vec<String> {
    match figure {
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

fn figure_cells(figure: BenchFigure) -> Vec<String> {
    match figure {
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

/// One line per figure: median and range of both builds, and the change of the median from A to B.
pub(crate) fn comparison_lines(comparison: &BuildComparison) -> Vec<String> {
    let mut table = TextTable::new(["FIGURE", "A", "A FROM..TO", "B", "B FROM..TO", "CHANGE"]);
    let range = |spread: FigureSpread| {
        format!(
            "{}..{}",
            format_number(spread.min),
            format_number(spread.max)
        )
    };
    for figure in comparison.figures() {
        let (a, b) = (figure.a.median, figure.b.median);
        let change = if a == 0.0 {
            "-".to_owned()
        } else {
            format!("{:+.1} %", (b - a) / a * 100.0)
        };
        table.row([
            figure.path,
            format_number(a),
            range(figure.a),
            format_number(b),
            range(figure.b),
            change,
        ]);
    }
    table.lines().collect()
}

fn format_number(value: f64) -> String {
    if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_bench::measure::latency::LatencySamples;

    #[test]
    fn a_table_has_a_column_for_every_percentile() {
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
    }
}
