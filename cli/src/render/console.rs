//! Output of the command line: data to stdout, everything else to stderr. Only this file writes to
//! them. A closed stdout (`baton tasks | head -1`) ends the command successfully without a message.

use std::io::{self, IsTerminal, Stderr, Stdout, Write};

use crate::error::cli_error::CliError;
use crate::render::sanitizer;
use crate::render::sanitizer::Sanitizer;
use crate::render::style::TextStyle;

#[derive(Debug)]
pub(crate) struct CliConsole {
    stdout: Stdout,
    stderr: Stderr,
}

impl Default for CliConsole {
    fn default() -> Self {
        Self {
            stdout: io::stdout(),
            stderr: io::stderr(),
        }
    }
}

impl CliConsole {
    /// Prints one line of data.
    pub(crate) fn line(&self, text: &str) -> Result<(), CliError> {
        let mut stdout = self.stdout.lock();
        writeln!(stdout, "{text}")?;
        Ok(())
    }

    /// Prints one JSON object on its own line and flushes, so that the reader of a pipe gets it at once.
    pub(crate) fn json(&self, value: &serde_json::Value) -> Result<(), CliError> {
        let mut stdout = self.stdout.lock();
        writeln!(stdout, "{}", sanitizer::escaped_json(value))?;
        stdout.flush()?;
        Ok(())
    }

    /// Writes bytes unchanged and flushes.
    pub(crate) fn write_raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = self.stdout.lock();
        stdout.write_all(bytes)?;
        stdout.flush()?;
        Ok(())
    }

    /// Prints a message for people on stderr. A closed stderr is not an error.
    pub(crate) fn note(&self, text: &str) {
        let mut stderr = self.stderr.lock();
        drop(writeln!(stderr, "{text}"));
    }

    /// Prints a prompt without a line break.
    pub(crate) fn print_prompt(&self, text: &str) {
        let mut stderr = self.stderr.lock();
        drop(write!(stderr, "{text}").and_then(|()| stderr.flush()));
    }

    /// Flushes stdout, so that the reader of a pipe gets everything printed so far.
    pub(crate) fn flush(&self) -> Result<(), CliError> {
        self.stdout.lock().flush()?;
        Ok(())
    }

    /// Replaces the last line of the terminal, for progress.
    pub(crate) fn replace_status_line(&self, text: &str) {
        let mut stderr = self.stderr.lock();
        drop(write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush()));
    }

    pub(crate) fn stderr_is_terminal(&self) -> bool {
        self.stderr.is_terminal()
    }

    /// Cuts a line to the width of the terminal. Files and pipes get the whole line.
    pub(crate) fn truncate_to_terminal(&self, line: String) -> String {
        let width = rustix::termios::tcgetwinsize(&self.stdout);
        match width.map(|size| usize::from(size.ws_col)) {
            Ok(columns @ 1..) if self.stdout_is_terminal() => truncate_columns(line, columns),
            Ok(_) | Err(_) => line,
        }
    }

    pub(crate) fn stdout_is_terminal(&self) -> bool {
        self.stdout.is_terminal()
    }

    pub(crate) fn data_style(&self) -> TextStyle {
        TextStyle::for_stream(&self.stdout)
    }

    pub(crate) fn note_style(&self) -> TextStyle {
        TextStyle::for_stream(&self.stderr)
    }
}

/// Counts characters, as the columns of a table do.
fn truncate_columns(line: String, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line;
    }
    let kept: String = line.chars().take(columns - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Writes agent output to stdout: exact bytes to a file or a pipe, sanitized text to a terminal.
#[derive(Debug)]
pub(crate) struct AgentOutputSink<'a> {
    console: &'a CliConsole,
    sanitizer: Option<Sanitizer>,
    at_line_start: bool,
}

impl<'a> AgentOutputSink<'a> {
    pub(crate) fn new(console: &'a CliConsole) -> Self {
        let sanitizer = console.stdout_is_terminal().then(Sanitizer::default);
        Self {
            console,
            sanitizer,
            at_line_start: true,
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let Some(sanitizer) = &mut self.sanitizer else {
            return self.console.write_raw(bytes);
        };
        let mut clean = String::with_capacity(bytes.len());
        sanitizer.push(bytes, &mut clean);
        if let Some(last) = clean.chars().next_back() {
            self.at_line_start = last == '\n';
        }
        self.console.write_raw(clean.as_bytes())
    }

    /// Ends an unfinished last line on a terminal, so that the next text starts on a new line.
    pub(crate) fn finish(mut self) -> Result<(), CliError> {
        let Some(sanitizer) = self.sanitizer.take() else {
            return Ok(());
        };
        let mut clean = String::new();
        sanitizer.finish(&mut clean);
        if !self.at_line_start {
            clean.push('\n');
        }
        self.console.write_raw(clean.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_the_terminal_width_with_an_ellipsis() {
        assert_eq!(truncate_columns("größer".to_owned(), 6), "größer");
        assert_eq!(truncate_columns("größer als".to_owned(), 8), "größer…");
        assert_eq!(truncate_columns("ab".to_owned(), 1), "…");
    }
}
