//! Splits bytes into whole lines, independent of how the bytes were chunked.

use serde::{Deserialize, Serialize};

/// A longer line is counted and discarded.
pub(crate) const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// How much of a discarded line is kept: enough to see what kind of message it was.
const BEGINNING_BYTES: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputLine {
    Whole(Vec<u8>),
    /// A line longer than [`MAX_LINE_BYTES`]: its length without the newline, and its first
    /// bytes.
    TooLong {
        length: u64,
        beginning: Vec<u8>,
    },
}

/// Bytes that were read and do not form a line yet. They are not part of the stored state and
/// are read again after a restart. Only the length and beginning of a line that is too long are
/// stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineSplitter {
    #[serde(skip)]
    buffer: Vec<u8>,
    /// Lines in `buffer` before this offset were already returned.
    #[serde(skip)]
    consumed: usize,
    /// How many of the remaining bytes are known to contain no newline.
    #[serde(skip)]
    searched: usize,
    #[serde(rename = "thrown_away")]
    discarded_bytes: u64,
    /// First bytes of the line that is being discarded.
    #[serde(default)]
    beginning: Vec<u8>,
}

impl LineSplitter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.consumed));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete line.
    pub(crate) fn next(&mut self) -> Option<OutputLine> {
        let rest = &self.buffer[self.consumed + self.searched..];
        let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffered_bytes();
            self.discard_oversized();
            return None;
        };
        let length = self.searched + at;
        let line = self.take_line(length);
        self.consumed += length + 1;
        self.searched = 0;
        Some(line)
    }

    /// Ends the input: returns a last line without a newline.
    pub(crate) fn finish(&mut self) -> Option<OutputLine> {
        let length = self.buffered_bytes();
        let empty = length == 0 && self.discarded_bytes == 0;
        let line = (!empty).then(|| self.take_line(length));
        self.consumed += length;
        self.searched = 0;
        line
    }

    /// Bytes that would have to be pushed again after a restart.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.buffer.len() - self.consumed
    }

    fn take_line(&mut self, length: usize) -> OutputLine {
        if self.discarded_bytes > 0 || length > MAX_LINE_BYTES {
            self.note_beginning();
            let before = std::mem::take(&mut self.discarded_bytes);
            return OutputLine::TooLong {
                length: before + length as u64,
                beginning: std::mem::take(&mut self.beginning),
            };
        }
        OutputLine::Whole(self.buffer[self.consumed..self.consumed + length].to_vec())
    }

    fn note_beginning(&mut self) {
        if self.discarded_bytes == 0 {
            let rest = &self.buffer[self.consumed..];
            self.beginning = rest[..BEGINNING_BYTES.min(rest.len())].to_vec();
        }
    }

    fn discard_oversized(&mut self) {
        let length = self.buffered_bytes();
        if self.discarded_bytes > 0 || length > MAX_LINE_BYTES {
            self.note_beginning();
            self.discarded_bytes += length as u64;
            self.buffer = Vec::new();
            self.consumed = 0;
            self.searched = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> OutputLine {
        OutputLine::Whole(text.as_bytes().to_vec())
    }

    fn lines(splitter: &mut LineSplitter, bytes: &[u8]) -> Vec<OutputLine> {
        splitter.push(bytes);
        std::iter::from_fn(|| splitter.next()).collect()
    }

    #[test]
    fn lines_do_not_depend_on_the_chunking() {
        let mut splitter = LineSplitter::default();
        assert_eq!(
            lines(&mut splitter, b"a\n\nbc\nd"),
            [whole("a"), whole(""), whole("bc")]
        );
        assert_eq!(splitter.buffered_bytes(), 1);
        assert_eq!(lines(&mut splitter, b"e\n"), [whole("de")]);
        assert_eq!(lines(&mut splitter, b"no newline"), []);
        assert_eq!(splitter.finish(), Some(whole("no newline")));
        assert_eq!(splitter.finish(), None);
    }

    #[test]
    fn a_line_over_the_limit_is_counted_and_the_next_one_is_read() {
        let mut splitter = LineSplitter::default();
        let most = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(lines(&mut splitter, &most), []);
        assert_eq!(
            lines(&mut splitter, b"\n"),
            [OutputLine::Whole(most.clone())]
        );
        assert_eq!(lines(&mut splitter, &most), []);
        assert_eq!(lines(&mut splitter, b"x"), []);
        assert_eq!(splitter.buffered_bytes(), 0);
        let over = || OutputLine::TooLong {
            length: MAX_LINE_BYTES as u64 + 2,
            beginning: vec![b'x'; BEGINNING_BYTES],
        };
        assert_eq!(lines(&mut splitter, b"x\nnext\n"), [over(), whole("next")]);
        let at_once = [&most[..], b"xx\n"].concat();
        assert_eq!(lines(&mut splitter, &at_once), [over()]);
    }
}
