//! Progress of a long command on stderr: one line that is rewritten on a terminal, else a line every
//! few seconds.

use std::time::{Duration, Instant};

use baton_proto::v1::TransferProgress;

use crate::clock;
use crate::render::console::CliConsole;

/// Time between two lines without a terminal.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two updates on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct ProgressLine<'a> {
    console: &'a CliConsole,
    label: &'static str,
    next_update: Instant,
    is_shown: bool,
}

impl<'a> ProgressLine<'a> {
    pub(crate) fn new(console: &'a CliConsole, label: &'static str) -> Self {
        let is_terminal = console.stderr_is_terminal();
        Self {
            console,
            label,
            next_update: clock::instant()
                + if is_terminal {
                    TERMINAL_INTERVAL
                } else {
                    LOG_INTERVAL
                },
            is_shown: false,
        }
    }

    pub(crate) fn show(&mut self, progress: &TransferProgress) {
        let now = clock::instant();
        if now < self.next_update {
            return;
        }
        let line = format_progress(self.label, progress);
        if self.console.stderr_is_terminal() {
            self.console.replace_status_line(&line);
            self.next_update = now + TERMINAL_INTERVAL;
        } else {
            self.console.note(&line);
            self.next_update = now + LOG_INTERVAL;
        }
        self.is_shown = true;
    }

    /// Clears the line for the next message.
    pub(crate) fn clear(&mut self) {
        if self.is_shown && self.console.stderr_is_terminal() {
            self.console.replace_status_line("");
        }
        self.is_shown = false;
    }
}

impl Drop for ProgressLine<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

fn format_progress(what: &str, progress: &TransferProgress) -> String {
    let mut line = format!("{what}: {}", progress.stage);
    if progress.records > 0 {
        line.push_str(&format!(", {} records", progress.records));
    }
    match progress.total_bytes {
        Some(total) if total > 0 => {
            let percent = progress.bytes.saturating_mul(100) / total;
            line.push_str(&format!(", {percent} % of {}", format_size(total)));
        }
        Some(_) | None if progress.bytes > 0 => {
            line.push_str(&format!(", {}", format_size(progress.bytes)));
        }
        Some(_) | None => {}
    }
    line
}

/// Formats bytes with a binary unit.
pub(crate) fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut whole, mut tenths, mut unit) = (bytes, 0, 0);
    while whole >= 1024 && unit + 1 < UNITS.len() {
        tenths = whole % 1024 * 10 / 1024;
        whole /= 1024;
        unit += 1;
    }
    match unit {
        0 => format!("{whole} {}", UNITS[unit]),
        _ => format!("{whole}.{tenths} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_progress_has_a_percentage() {
        let shown = [0, 1023, 1536, 5 << 20, (3 << 30) + (512 << 20)].map(format_size);
        assert_eq!(
            shown,
            ["0 bytes", "1023 bytes", "1.5 KiB", "5.0 MiB", "3.5 GiB"]
        );
        let progress = TransferProgress {
            records: 12,
            bytes: 512,
            total_records: None,
            stage: "writing".to_owned(),
            total_bytes: Some(2048),
        };
        assert_eq!(
            format_progress("import", &progress),
            "import: writing, 12 records, 25 % of 2.0 KiB"
        );
    }
}
