//! Two builds in one interleaved run: A B A B on the same machine with the same load generator, so that whatever else the machine
//! does meets both alike. Tells medians and spreads of every figure, and leaves the judgement to the reader.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::error::cli_error::CliError;
use crate::render::console::CliConsole;
use crate::render::table::TextTable;

#[derive(Clone, Debug)]
pub(crate) struct CompareBenchPlan {
    pub a: PathBuf,
    pub b: PathBuf,
    pub rounds: usize,
    /// The bench and its flags.
    pub arguments: Vec<String>,
}

/// Every figure of one build, by its path in the report, once per round.
type FiguresByPath = BTreeMap<String, Vec<f64>>;

pub(crate) struct BuildComparison {
    a: FiguresByPath,
    b: FiguresByPath,
}

pub(crate) async fn run(
    plan: &CompareBenchPlan,
    console: &CliConsole,
) -> Result<BuildComparison, CliError> {
    let (mut a, mut b) = (FiguresByPath::new(), FiguresByPath::new());
    for round in 1..=plan.rounds {
        for (name, program, figures) in [("A", &plan.a, &mut a), ("B", &plan.b, &mut b)] {
            console.note(&format!("round {round} of {}: {name}", plan.rounds));
            let report = run_bench(program, &plan.arguments).await?;
            collect_figures(&report["phases"], "", figures);
        }
    }
    Ok(BuildComparison { a, b })
}

/// One run of the bench, by this executable's load generator, with the relay of that build.
async fn run_bench(program: &Path, words: &[String]) -> Result<Value, CliError> {
    let own = std::env::current_exe().map_err(|e| CliError::local("find myself", e))?;
    let output = Command::new(own)
        .arg("bench")
        .args(words)
        .arg("--json")
        .arg("--relay-program")
        .arg(program)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| CliError::local("start the bench", error))?;
    if !output.status.success() {
        return Err(CliError::local(
            format!("the bench did not hold with {}", program.display()),
            output.status,
        ));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| CliError::local("read the bench's report", error))
}

/// Numbers by their path; a phase goes by its name.
fn collect_figures(value: &Value, path: &str, figures: &mut FiguresByPath) {
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    match value {
        Value::Number(number) => {
            let figure = number.as_f64().unwrap_or(f64::NAN);
            figures.entry(path.to_owned()).or_default().push(figure);
        }
        Value::Array(phases) => {
            for phase in phases {
                collect_figures(
                    phase,
                    &below(phase["phase"].as_str().unwrap_or("?")),
                    figures,
                );
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                collect_figures(value, &below(key), figures);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Median, smallest and largest.
fn median_and_range(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = if sorted.len().is_multiple_of(2) && middle > 0 {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted.get(middle).copied().unwrap_or(0.0)
    };
    let end = |value: Option<&f64>| value.copied().unwrap_or(0.0);
    (median, end(sorted.first()), end(sorted.last()))
}

impl BuildComparison {
    /// A line per figure that both have: medians, spreads, and the change of the median from A to B.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut table = TextTable::new(["FIGURE", "A", "A FROM..TO", "B", "B FROM..TO", "CHANGE"]);
        for (path, a) in &self.a {
            let Some(b) = self.b.get(path) else {
                continue;
            };
            let ((a, a_min, a_max), (b, b_min, b_max)) = (median_and_range(a), median_and_range(b));
            let change = if a == 0.0 {
                "-".to_owned()
            } else {
                format!("{:+.1} %", (b - a) / a * 100.0)
            };
            table.row([
                path.clone(),
                format_number(a),
                format!("{}..{}", format_number(a_min), format_number(a_max)),
                format_number(b),
                format!("{}..{}", format_number(b_min), format_number(b_max)),
                change,
            ]);
        }
        table.lines().collect()
    }

    pub(crate) fn json(&self) -> Value {
        let side = |figures: &FiguresByPath| -> Value {
            let told = figures.iter().map(|(path, values)| {
                let (median, min, max) = median_and_range(values);
                let told =
                    serde_json::json!({ "median": median, "min": min, "max": max, "runs": values });
                (path.clone(), told)
            });
            Value::Object(told.collect())
        };
        serde_json::json!({ "a": side(&self.a), "b": side(&self.b) })
    }
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

    #[test]
    fn figures_go_by_phase_and_the_median_is_of_all_runs() {
        let mut figures = FiguresByPath::new();
        for rate in [3.0, 1.0, 2.0] {
            let report = serde_json::json!([
                { "phase": "steady", "tasksPerSecond": rate, "submit": { "p99Ms": 2.0 * rate } }
            ]);
            collect_figures(&report, "", &mut figures);
        }
        assert_eq!(
            median_and_range(&figures["steady.tasksPerSecond"]),
            (2.0, 1.0, 3.0)
        );
        assert_eq!(
            median_and_range(&figures["steady.submit.p99Ms"]),
            (4.0, 2.0, 6.0)
        );
        assert_eq!(median_and_range(&[1.0, 2.0]).0, 1.5);
    }
}
