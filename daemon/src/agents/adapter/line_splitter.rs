//! Bytes in, whole lines out, however the bytes were chunked.

use serde::{Deserialize, Serialize};

/// A longer line is counted and thrown away.
pub(crate) const MAX_LINE_BYTES: usize = 4 * 1024 * 1024;

/// So much of it is kept: enough to see what it would have been.
const BEGINNING_BYTES: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputLine {
    Whole(Vec<u8>),
    /// Longer than [`LINE_MAX`]: this many bytes, the newline not counted, and the first of them.
    TooLong {
        length: u64,
        beginning: Vec<u8>,
    },
}

/// Bytes that were read and are not yet lines. After a restart they are read again: they are not part of the stored
/// state. Only those of a line that is too long are gone, and their number is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineSplitter {
    #[serde(skip)]
    buffer: Vec<u8>,
    /// Of `held`: before this, lines were taken.
    #[serde(skip)]
    consumed: usize,
    /// Of what is left: so much has no newline in it.
    #[serde(skip)]
    searched: usize,
    thrown_away: u64,
    /// Of what is thrown away.
    #[serde(default)]
    beginning: Vec<u8>,
}

impl LineSplitter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..std::mem::take(&mut self.consumed));
        self.buffer.extend_from_slice(bytes);
    }

    /// The next line that has its end.
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

    /// No more comes: a last line without its newline.
    pub(crate) fn finish(&mut self) -> Option<OutputLine> {
        let length = self.buffered_bytes();
        let empty = length == 0 && self.thrown_away == 0;
        let line = (!empty).then(|| self.take_line(length));
        self.consumed += length;
        self.searched = 0;
        line
    }

    /// Bytes that were pushed and would have to be pushed again after a restart.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.buffer.len() - self.consumed
    }

    fn take_line(&mut self, length: usize) -> OutputLine {
        if self.thrown_away > 0 || length > MAX_LINE_BYTES {
            self.note_beginning();
            let before = std::mem::take(&mut self.thrown_away);
            return OutputLine::TooLong {
                length: before + length as u64,
                beginning: std::mem::take(&mut self.beginning),
            };
        }
        OutputLine::Whole(self.buffer[self.consumed..self.consumed + length].to_vec())
    }

    fn note_beginning(&mut self) {
        if self.thrown_away == 0 {
            let rest = &self.buffer[self.consumed..];
            self.beginning = rest[..BEGINNING_BYTES.min(rest.len())].to_vec();
        }
    }

    fn discard_oversized(&mut self) {
        let length = self.buffered_bytes();
        if self.thrown_away > 0 || length > MAX_LINE_BYTES {
            self.note_beginning();
            self.thrown_away += length as u64;
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

    fn lines(cutter: &mut LineSplitter, bytes: &[u8]) -> Vec<OutputLine> {
        cutter.push(bytes);
        std::iter::from_fn(|| cutter.next()).collect()
    }

    #[test]
    fn a_line_is_the_same_in_one_piece_and_in_many() {
        let mut cutter = LineSplitter::default();
        assert_eq!(
            lines(&mut cutter, b"a\n\nbc\nd"),
            [whole("a"), whole(""), whole("bc")]
        );
        assert_eq!(cutter.buffered_bytes(), 1);
        assert_eq!(lines(&mut cutter, b"e\n"), [whole("de")]);
        assert_eq!(lines(&mut cutter, b"no newline"), []);
        assert_eq!(cutter.finish(), Some(whole("no newline")));
        assert_eq!(cutter.finish(), None);
    }

    #[test]
    fn a_line_over_the_limit_is_counted_and_the_next_one_is_read() {
        let mut cutter = LineSplitter::default();
        let most = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(lines(&mut cutter, &most), []);
        assert_eq!(lines(&mut cutter, b"\n"), [OutputLine::Whole(most.clone())]);
        assert_eq!(lines(&mut cutter, &most), []);
        assert_eq!(lines(&mut cutter, b"x"), []);
        assert_eq!(cutter.buffered_bytes(), 0);
        let over = || OutputLine::TooLong {
            length: MAX_LINE_BYTES as u64 + 2,
            beginning: vec![b'x'; BEGINNING_BYTES],
        };
        assert_eq!(lines(&mut cutter, b"x\nnext\n"), [over(), whole("next")]);
        let at_once = [&most[..], b"xx\n"].concat();
        assert_eq!(lines(&mut cutter, &at_once), [over()]);
    }
}
