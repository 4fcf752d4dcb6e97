//! One run: its directory, its clock, its end and its verdict. Histories of runs that failed are kept.

use std::fs;
use std::path::PathBuf;

use baton_history::{History, Recorder, Saw, Verdict, judge};
use baton_tests::boottime;

use crate::KEPT;

/// One clock for everybody in a run.
pub(crate) fn now() -> u64 {
    u64::try_from(boottime().as_millis()).unwrap_or(u64::MAX)
}

/// Where everybody writes down what he saw.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) recorder: Recorder,
    dir: PathBuf,
}

impl Run {
    pub(crate) fn new(name: &str) -> Self {
        let process = std::process::id();
        let dir = PathBuf::from(KEPT).join(format!("chaos-{name}-{process}"));
        // Of a process that had the same number.
        let _ = fs::remove_dir_all(&dir);
        let recorder = Recorder::new(&dir).expect("a directory can be made");
        Self { recorder, dir }
    }

    /// What must have been seen for the run to mean anything.
    pub(crate) fn at_least(&self, least: &[(&str, u64)]) {
        let view = self
            .recorder
            .viewpoint("least")
            .expect("a file can be made");
        for (count, least) in least {
            let (count, least) = ((*count).to_owned(), *least);
            let saw = Saw::Least { count, least };
            view.saw(now(), saw).expect("the history can be written");
        }
    }

    pub(crate) fn judged(&self) -> Verdict {
        judge(&History::load(&self.dir).expect("the history can be read"))
    }

    /// Panics, and keeps everything, if a promise did not hold.
    pub(crate) fn end(self) -> Verdict {
        println!("{}", self.judged());
        self.end_quietly()
    }

    /// The same for one of many.
    pub(crate) fn end_quietly(self) -> Verdict {
        let verdict = self.judged();
        assert!(
            verdict.holds(),
            "{verdict}\nkept: judge it again with `cargo run -p baton-history -- {}`",
            self.dir.display()
        );
        self.forget();
        verdict
    }

    /// Keeps nothing.
    pub(crate) fn forget(self) {
        fs::remove_dir_all(&self.dir).expect("a directory can be removed");
    }
}
