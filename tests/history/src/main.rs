//! `baton-history DIR…`: checks kept histories again, each directory separately. Exits with 1
//! if a rule is violated or too little was observed.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the verdict is the output of this program"
)]

use std::path::Path;
use std::process::ExitCode;

use baton_history::{History, check_history};

fn main() -> ExitCode {
    let dirs: Vec<String> = std::env::args().skip(1).collect();
    if dirs.is_empty() || dirs.iter().any(|argument| argument.starts_with('-')) {
        eprintln!("usage: baton-history DIR…   (each contains the *.jsonl files of one run)");
        return ExitCode::from(2);
    }
    let mut all_clean = true;
    for dir in &dirs {
        let history = match History::load(Path::new(dir)) {
            Ok(history) if history.line_count() > 0 => history,
            Ok(_) => {
                eprintln!("{dir}: no history found; a run writes *.jsonl files");
                return ExitCode::from(2);
            }
            Err(error) => {
                eprintln!("{dir}: cannot be read: {error}");
                return ExitCode::from(2);
            }
        };
        let verdict = check_history(&history);
        println!("{dir}: {} lines, {verdict}", history.line_count());
        all_clean &= verdict.is_clean();
    }
    if all_clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
