//! A whole history in memory: the lines of all participants, with lookups by call, task and
//! attempt.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use crate::history_line::{ClientOperation, HistoryLine, Observation};

/// File and line number of a history line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineLocation {
    pub file: Arc<str>,
    pub line: usize,
}

impl fmt::Display for LineLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A line with its location.
#[derive(Clone, Debug)]
pub struct LocatedLine {
    pub location: LineLocation,
    pub line: HistoryLine,
}

/// A call with its answer. Without an answer its outcome is unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientCall<'a> {
    pub(crate) call: &'a LocatedLine,
    pub(crate) operation: ClientOperation,
    pub(crate) tenant: &'a str,
    pub(crate) answer: Option<&'a LocatedLine>,
}

#[derive(Debug, Default)]
pub struct History {
    pub(crate) located_lines: Vec<LocatedLine>,
}

impl History {
    /// Adds the lines of one participant, in order.
    pub fn add(&mut self, file: &str, lines: impl IntoIterator<Item = HistoryLine>) {
        let file: Arc<str> = file.into();
        let located_lines = lines
            .into_iter()
            .enumerate()
            .map(|(number, line)| LocatedLine {
                location: LineLocation {
                    file: file.clone(),
                    line: number + 1,
                },
                line,
            });
        self.located_lines.extend(located_lines);
    }

    /// Loads all `*.jsonl` files of a directory. A last line that was cut off by a crash is
    /// skipped; any other unreadable line is an error.
    pub fn load(dir: &Path) -> io::Result<Self> {
        let mut history = Self::default();
        let mut files: Vec<_> = fs::read_dir(dir)?
            .collect::<io::Result<Vec<_>>>()?
            .into_iter()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
            .collect();
        files.sort();
        for path in files {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            history.add(&name, read_lines(&path)?);
        }
        Ok(history)
    }

    pub fn line_count(&self) -> usize {
        self.located_lines.len()
    }

    pub(crate) fn calls(&self) -> Vec<ClientCall<'_>> {
        let mut answers: BTreeMap<(&str, u64), &LocatedLine> = BTreeMap::new();
        for located in &self.located_lines {
            if let Observation::Answer { call, .. } = &located.line.observation {
                answers.insert((&located.line.who, *call), located);
            }
        }
        let client_call =
            self.located_lines
                .iter()
                .filter_map(|located| match &located.line.observation {
                    Observation::Call {
                        call, op, tenant, ..
                    } => Some(ClientCall {
                        call: located,
                        operation: *op,
                        tenant,
                        answer: answers.get(&(located.line.who.as_str(), *call)).copied(),
                    }),
                    _ => None,
                });
        client_call.collect()
    }

    /// The task of each attempt, from any observation that names both.
    pub(crate) fn tasks_by_attempt(&self) -> BTreeMap<&str, &str> {
        let mut tasks = BTreeMap::new();
        for located in &self.located_lines {
            match &located.line.observation {
                Observation::Offered { task, attempt, .. }
                | Observation::Granted { task, attempt, .. } => {
                    tasks.insert(attempt.as_str(), task.as_str());
                }
                Observation::Record { task, attempts, .. } => {
                    tasks.extend(
                        attempts
                            .iter()
                            .map(|one| (one.attempt.as_str(), task.as_str())),
                    );
                }
                _ => {}
            }
        }
        tasks
    }
}

fn read_lines(path: &Path) -> io::Result<Vec<HistoryLine>> {
    let mut lines = Vec::new();
    let mut reader = BufReader::new(fs::File::open(path)?);
    let mut text = String::new();
    while reader.read_line(&mut text)? > 0 {
        match serde_json::from_str(&text) {
            Ok(line) => lines.push(line),
            Err(_) if !text.ends_with('\n') => break,
            Err(error) => {
                let place = format!("{}:{}: {error}", path.display(), lines.len() + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, place));
            }
        }
        text.clear();
    }
    Ok(lines)
}
