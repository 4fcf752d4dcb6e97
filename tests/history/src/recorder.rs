//! Writes histories: one file per participant, line by line, so that a crash of the writer
//! loses no earlier observation.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::history_line::{HistoryLine, Observation};

/// The directory of a run. Clones write to the same directory.
#[derive(Clone, Debug)]
pub struct HistoryRecorder {
    dir: PathBuf,
}

impl HistoryRecorder {
    pub fn new(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The log of one participant.
    pub fn participant_log(&self, who: &str) -> io::Result<ParticipantLog> {
        let path = self.dir.join(format!("{who}.jsonl"));
        let file = File::options().create(true).append(true).open(path)?;
        Ok(ParticipantLog {
            who: who.into(),
            file: Arc::new(Mutex::new(file)),
        })
    }
}

/// The log of one participant. Clones write to the same file, one whole line at a time.
#[derive(Clone, Debug)]
pub struct ParticipantLog {
    who: Arc<str>,
    file: Arc<Mutex<File>>,
}

impl ParticipantLog {
    pub fn record(&self, at: u64, observation: Observation) -> io::Result<()> {
        let line = HistoryLine {
            at,
            who: self.who.to_string(),
            observation,
        };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&text)
    }
}
