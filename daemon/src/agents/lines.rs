//! Bytes in, whole lines out, however the bytes were chunked.

use serde::{Deserialize, Serialize};

/// A longer line is counted and thrown away.
pub(crate) const LINE_MAX: usize = 4 * 1024 * 1024;

/// So much of it is kept: enough to see what it would have been.
const BEGINNING: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
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
pub(crate) struct LineCutter {
    #[serde(skip)]
    held: Vec<u8>,
    /// Of `held`: before this, lines were taken.
    #[serde(skip)]
    taken: usize,
    /// Of what is left: so much has no newline in it.
    #[serde(skip)]
    searched: usize,
    thrown_away: u64,
    /// Of what is thrown away.
    #[serde(default)]
    beginning: Vec<u8>,
}

impl LineCutter {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.held.drain(..std::mem::take(&mut self.taken));
        self.held.extend_from_slice(bytes);
    }

    /// The next line that has its end.
    pub(crate) fn next(&mut self) -> Option<Line> {
        let rest = &self.held[self.taken + self.searched..];
        let Some(at) = rest.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.held();
            self.throw_away_too_much();
            return None;
        };
        let length = self.searched + at;
        let line = self.line(length);
        self.taken += length + 1;
        self.searched = 0;
        Some(line)
    }

    /// No more comes: a last line without its newline.
    pub(crate) fn finish(&mut self) -> Option<Line> {
        let length = self.held();
        let empty = length == 0 && self.thrown_away == 0;
        let line = (!empty).then(|| self.line(length));
        self.taken += length;
        self.searched = 0;
        line
    }

    /// Bytes that were pushed and would have to be pushed again after a restart.
    pub(crate) fn held(&self) -> usize {
        self.held.len() - self.taken
    }

    fn line(&mut self, length: usize) -> Line {
        if self.thrown_away > 0 || length > LINE_MAX {
            self.note_beginning();
            let before = std::mem::take(&mut self.thrown_away);
            return Line::TooLong {
                length: before + length as u64,
                beginning: std::mem::take(&mut self.beginning),
            };
        }
        Line::Whole(self.held[self.taken..self.taken + length].to_vec())
    }

    fn note_beginning(&mut self) {
        if self.thrown_away == 0 {
            let rest = &self.held[self.taken..];
            self.beginning = rest[..BEGINNING.min(rest.len())].to_vec();
        }
    }

    fn throw_away_too_much(&mut self) {
        let length = self.held();
        if self.thrown_away > 0 || length > LINE_MAX {
            self.note_beginning();
            self.thrown_away += length as u64;
            self.held = Vec::new();
            self.taken = 0;
            self.searched = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    fn lines(cutter: &mut LineCutter, bytes: &[u8]) -> Vec<Line> {
        cutter.push(bytes);
        std::iter::from_fn(|| cutter.next()).collect()
    }

    #[test]
    fn a_line_is_the_same_in_one_piece_and_in_many() {
        let mut cutter = LineCutter::default();
        assert_eq!(
            lines(&mut cutter, b"a\n\nbc\nd"),
            [whole("a"), whole(""), whole("bc")]
        );
        assert_eq!(cutter.held(), 1);
        assert_eq!(lines(&mut cutter, b"e\n"), [whole("de")]);
        assert_eq!(lines(&mut cutter, b"no newline"), []);
        assert_eq!(cutter.finish(), Some(whole("no newline")));
        assert_eq!(cutter.finish(), None);
    }

    #[test]
    fn a_line_over_the_limit_is_counted_and_the_next_one_is_read() {
        let mut cutter = LineCutter::default();
        let most = vec![b'x'; LINE_MAX];
        assert_eq!(lines(&mut cutter, &most), []);
        assert_eq!(lines(&mut cutter, b"\n"), [Line::Whole(most.clone())]);
        assert_eq!(lines(&mut cutter, &most), []);
        assert_eq!(lines(&mut cutter, b"x"), []);
        assert_eq!(cutter.held(), 0);
        let over = || Line::TooLong {
            length: LINE_MAX as u64 + 2,
            beginning: vec![b'x'; BEGINNING],
        };
        assert_eq!(lines(&mut cutter, b"x\nnext\n"), [over(), whole("next")]);
        let at_once = [&most[..], b"xx\n"].concat();
        assert_eq!(lines(&mut cutter, &at_once), [over()]);
    }
}
