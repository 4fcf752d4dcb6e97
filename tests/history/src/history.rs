//! A whole history in memory: the lines of all participants, and for each task and attempt where it is spoken of.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use crate::line::{Line, Op, Saw};

/// Where a line stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: Arc<str>,
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A line and its place.
#[derive(Clone, Debug)]
pub struct Seen {
    pub place: Place,
    pub line: Line,
}

/// A call with its answer. Without an answer nothing is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) call: &'a Seen,
    pub(crate) op: Op,
    pub(crate) tenant: &'a str,
    pub(crate) answer: Option<&'a Seen>,
}

#[derive(Debug, Default)]
pub struct History {
    pub(crate) seen: Vec<Seen>,
}

impl History {
    /// The lines of one participant, in their order.
    pub fn add(&mut self, file: &str, lines: impl IntoIterator<Item = Line>) {
        let file: Arc<str> = file.into();
        let placed = lines.into_iter().enumerate().map(|(number, line)| Seen {
            place: Place {
                file: file.clone(),
                line: number + 1,
            },
            line,
        });
        self.seen.extend(placed);
    }

    /// All `*.jsonl` files of a directory. A last line that was cut short by a crash is left out; any other that cannot be
    /// read is an error.
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
            history.add(&name, read(&path)?);
        }
        Ok(history)
    }

    pub fn lines(&self) -> usize {
        self.seen.len()
    }

    pub(crate) fn calls(&self) -> Vec<Asked<'_>> {
        let mut answers: BTreeMap<(&str, u64), &Seen> = BTreeMap::new();
        for seen in &self.seen {
            if let Saw::Answer { call, .. } = &seen.line.saw {
                answers.insert((&seen.line.who, *call), seen);
            }
        }
        let asked = self.seen.iter().filter_map(|seen| match &seen.line.saw {
            Saw::Call {
                call, op, tenant, ..
            } => Some(Asked {
                call: seen,
                op: *op,
                tenant,
                answer: answers.get(&(seen.line.who.as_str(), *call)).copied(),
            }),
            _ => None,
        });
        asked.collect()
    }

    /// Which task an attempt belongs to, by anybody's word.
    pub(crate) fn task_of_attempt(&self) -> BTreeMap<&str, &str> {
        let mut tasks = BTreeMap::new();
        for seen in &self.seen {
            match &seen.line.saw {
                Saw::Offered { task, attempt, .. } | Saw::Granted { task, attempt, .. } => {
                    tasks.insert(attempt.as_str(), task.as_str());
                }
                Saw::Record { task, attempts, .. } => {
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

fn read(path: &Path) -> io::Result<Vec<Line>> {
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
