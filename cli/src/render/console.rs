//! Where words go: data to stdout, everything else to stderr. The only file that writes to either.
//! A closed stdout (`baton tasks | head -1`) is a quiet, successful end.

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
    /// One line of data.
    pub(crate) fn line(&self, text: &str) -> Result<(), CliError> {
        let mut stdout = self.stdout.lock();
        writeln!(stdout, "{text}")?;
        Ok(())
    }

    /// One JSON object on a line of its own, flushed: a reader at the other end of a pipe acts on it now.
    pub(crate) fn json(&self, value: &serde_json::Value) -> Result<(), CliError> {
        let mut stdout = self.stdout.lock();
        writeln!(stdout, "{}", sanitizer::escaped_json(value))?;
        stdout.flush()?;
        Ok(())
    }

    /// Output of an agent as it is, flushed.
    pub(crate) fn write_raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = self.stdout.lock();
        stdout.write_all(bytes)?;
        stdout.flush()?;
        Ok(())
    }

    /// A word to the person at the terminal. Nobody there is not an error.
    pub(crate) fn note(&self, text: &str) {
        let mut stderr = self.stderr.lock();
        drop(writeln!(stderr, "{text}"));
    }

    /// A question that is answered on the same line.
    pub(crate) fn print_prompt(&self, text: &str) {
        let mut stderr = self.stderr.lock();
        drop(write!(stderr, "{text}").and_then(|()| stderr.flush()));
    }

    /// What was printed is seen now, also at the other end of a pipe.
    pub(crate) fn flush(&self) -> Result<(), CliError> {
        self.stdout.lock().flush()?;
        Ok(())
    }

    /// A word that the next one replaces, for a person who watches.
    pub(crate) fn replace_status_line(&self, text: &str) {
        let mut stderr = self.stderr.lock();
        drop(write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush()));
    }

    pub(crate) fn stderr_is_terminal(&self) -> bool {
        self.stderr.is_terminal()
    }

    /// As much of a line as the terminal shows in one; whole where it goes elsewhere.
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

/// Agent output on its way to stdout: exact bytes into a file or a pipe, sanitized onto a terminal.
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

    /// Ends an unfinished last line on a terminal, so that what follows starts on its own.
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
    fn a_line_is_cut_at_the_terminals_edge_and_says_so() {
        assert_eq!(truncate_columns("größer".to_owned(), 6), "größer");
        assert_eq!(truncate_columns("größer als".to_owned(), 8), "größer…");
        assert_eq!(truncate_columns("ab".to_owned(), 1), "…");
    }
}
