//! W3C trace context: the only module that reads and writes `traceparent`.
//!
//! An invalid value is not an error. It is treated as if no value had been sent.

use std::{fmt, str::FromStr};

/// A valid `traceparent`: trace id, span id, flags. Neither id is all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

impl TraceParent {
    /// None if either id is all zero, which W3C forbids.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], sampled: bool) -> Option<Self> {
        let valid = trace_id != [0; 16] && span_id != [0; 8];
        valid.then_some(Self {
            trace_id,
            span_id,
            flags: u8::from(sampled),
        })
    }

    /// Parses a header value. Later versions may have more fields, which are ignored. Version
    /// 00 may not.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let [version] = parse_hex::<1>(parts.next()?)?;
        let (trace_id, span_id) = (
            parse_hex::<16>(parts.next()?)?,
            parse_hex::<8>(parts.next()?)?,
        );
        let [flags] = parse_hex::<1>(parts.next()?)?;
        let tail_fits = version != 0 || parts.next().is_none();
        if version == 0xff || !tail_fits {
            return None;
        }
        Self::new(trace_id, span_id, flags & 1 == 1)
    }

    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    pub fn sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// The same trace with another span as parent.
    pub fn with_span(self, span_id: [u8; 8]) -> Option<Self> {
        Self::new(self.trace_id, span_id, self.sampled())
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        write_hex(f, &self.trace_id)?;
        f.write_str("-")?;
        write_hex(f, &self.span_id)?;
        write!(f, "-{:02x}", self.flags)
    }
}

/// The text is not a valid `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTraceParent;

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or(InvalidTraceParent)
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Exactly 2·N lower-case hex digits.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if text.len() != 2 * N || !text.as_bytes().iter().all(lower) {
        return None;
    }
    let mut out = [0; N];
    for (slot, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *slot = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}
