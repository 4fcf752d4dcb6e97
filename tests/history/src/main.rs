//! `baton-history DIR…`: judges kept histories again, each directory by itself. Exit 1 when a promise did not hold or too little was seen.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the verdict is what people run this for"
)]

use std::path::Path;
use std::process::ExitCode;

use baton_history::{History, check_history};

fn main() -> ExitCode {
    let dirs: Vec<String> = std::env::args().skip(1).collect();
    if dirs.is_empty() || dirs.iter().any(|word| word.starts_with('-')) {
        eprintln!("usage: baton-history DIR…   (each holds the *.jsonl files of one run)");
        return ExitCode::from(2);
    }
    let mut held = true;
    for dir in &dirs {
        let history = match History::load(Path::new(dir)) {
            Ok(history) if history.line_count() > 0 => history,
            Ok(_) => {
                eprintln!("{dir}: no history here; a run keeps *.jsonl files");
                return ExitCode::from(2);
            }
            Err(error) => {
                eprintln!("{dir}: cannot be read: {error}");
                return ExitCode::from(2);
            }
        };
        let verdict = check_history(&history);
        println!("{dir}: {} lines, {verdict}", history.line_count());
        held &= verdict.is_clean();
    }
    if held {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
