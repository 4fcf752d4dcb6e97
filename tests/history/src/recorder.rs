//! Writes histories: one file for each participant, one line at a time, so that what was seen before a crash of the writer is there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::history_line::{HistoryLine, Observation};

/// The directory of a run. Clones write to the same.
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

    /// The place of one participant.
    pub fn participant_log(&self, who: &str) -> io::Result<ParticipantLog> {
        let path = self.dir.join(format!("{who}.jsonl"));
        let file = File::options().create(true).append(true).open(path)?;
        Ok(ParticipantLog {
            who: who.into(),
            file: Arc::new(Mutex::new(file)),
        })
    }
}

/// One participant. Clones write to the same file; their lines do not mix.
#[derive(Clone, Debug)]
pub struct ParticipantLog {
    who: Arc<str>,
    file: Arc<Mutex<File>>,
}

impl ParticipantLog {
    pub fn record(&self, at: u64, saw: Observation) -> io::Result<()> {
        let line = HistoryLine {
            at,
            who: self.who.to_string(),
            observation: saw,
        };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&text)
    }
}
