//! One chaos run: its directory, its clock, its end and its verdict. Histories of failed runs
//! are kept.

use std::fs;
use std::path::PathBuf;

use baton_history::{History, HistoryRecorder, HistoryVerdict, Observation, check_history};
use baton_tests::boottime;

use crate::HISTORY_DIRECTORY;

/// One clock for all participants of a run.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(boottime().as_millis()).unwrap_or(u64::MAX)
}

/// The directory and recorder of a run, in which every participant logs its observations.
#[derive(Debug)]
pub(crate) struct ChaosRun {
    pub(crate) recorder: HistoryRecorder,
    dir: PathBuf,
}

impl ChaosRun {
    pub(crate) fn new(name: &str) -> Self {
        let process = std::process::id();
        let dir = PathBuf::from(HISTORY_DIRECTORY).join(format!("chaos-{name}-{process}"));
        // Left by an earlier process with the same pid.
        let _ = fs::remove_dir_all(&dir);
        let recorder = HistoryRecorder::new(&dir).expect("a directory can be created");
        Self { recorder, dir }
    }

    /// Minimum counts for a meaningful run.
    pub(crate) fn require_counts(&self, least: &[(&str, u64)]) {
        let view = self
            .recorder
            .participant_log("least")
            .expect("a file can be created");
        for (count, least) in least {
            let (count, least) = ((*count).to_owned(), *least);
            let observation = Observation::Least { count, least };
            view.record(now_ms(), observation)
                .expect("the history can be written");
        }
    }

    pub(crate) fn check_history(&self) -> HistoryVerdict {
        check_history(&History::load(&self.dir).expect("the history can be read"))
    }

    /// Panics and keeps the history if a rule is violated.
    pub(crate) fn finish(self) -> HistoryVerdict {
        println!("{}", self.check_history());
        self.finish_quietly()
    }

    /// The same without printing the verdict.
    pub(crate) fn finish_quietly(self) -> HistoryVerdict {
        let verdict = self.check_history();
        assert!(
            verdict.is_clean(),
            "{verdict}\nthe history is kept; check it again with `cargo run -p baton-history -- {}`",
            self.dir.display()
        );
        self.discard_history();
        verdict
    }

    /// Deletes the history.
    pub(crate) fn discard_history(self) {
        fs::remove_dir_all(&self.dir).expect("a directory can be removed");
    }
}
