//! Faults of a stream or a frame. A faulty frame is answered with a rejection and the stream
//! goes on. A link fault ends that stream only, and never an attempt.

use baton_proto::codes::refusals;

/// Why a frame is rejected. A rejected frame changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    #[error("the frame has no ref; every attempt frame needs its whole ref")]
    MissingRef,
    #[error("{0} is not an id; send the ref of the dispatch unchanged")]
    MalformedId(&'static str),
    #[error("{0} is blank; it needs a value")]
    Blank(&'static str),
    #[error("{field} has {size} bytes; the limit is {limit}")]
    TooLong {
        field: &'static str,
        size: usize,
        limit: usize,
    },
    #[error("{field} has {count} entries; the limit is {limit}; send the rest in further frames")]
    TooMany {
        field: &'static str,
        count: usize,
        limit: usize,
    },
    #[error("tool_input_sha256 is not the digest of tool_input; send the bytes that were hashed")]
    DigestMismatch,
    #[error("control_seq is wrong: control frames are numbered from 1, output frames have 0")]
    WrongNumber,
    #[error("the relay has no such attempt of this daemon")]
    UnknownAttempt,
    #[error("the output has a gap before this offset; replay it from the last acknowledged byte")]
    OutputGap,
    #[error("an output cut needs a length and a reason that daemons may use")]
    BadCut,
}

impl FrameFault {
    /// The stable machine code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MissingRef => "missing_ref",
            Self::MalformedId(_) => "malformed_id",
            Self::Blank(_) => "blank",
            Self::TooLong { .. } => "too_large",
            Self::TooMany { .. } => "too_many",
            Self::DigestMismatch => "digest_mismatch",
            Self::WrongNumber => "wrong_number",
            Self::UnknownAttempt => refusals::UNKNOWN_ATTEMPT,
            Self::OutputGap => refusals::OUTPUT_GAP,
            Self::BadCut => "bad_cut",
        }
    }

    /// The faulty field.
    pub fn field(&self) -> &'static str {
        match self {
            Self::MissingRef => "ref",
            Self::MalformedId(field)
            | Self::Blank(field)
            | Self::TooLong { field, .. }
            | Self::TooMany { field, .. } => field,
            Self::DigestMismatch => "tool_input_sha256",
            Self::WrongNumber => "control_seq",
            Self::UnknownAttempt => "ref.attempt_id",
            Self::OutputGap => "stream.offset",
            Self::BadCut => "output_cut",
        }
    }
}

/// Why a stream is refused before it becomes a session. `api/error/status.rs` maps each fault
/// to a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    #[error("no Hello arrived within {0} s; send it as the first frame")]
    HelloTimeout(u64),
    #[error("the first frame of a stream must be Hello")]
    HelloNotFirst,
    #[error("the stream ended before Hello")]
    EndedBeforeHello,
    #[error("the first frame cannot be decoded; check that all text is UTF-8")]
    Undecodable,
    #[error("Hello.{field}: {what}")]
    BadHello {
        field: &'static str,
        what: &'static str,
    },
    #[error("protocol version {0} is not supported; this relay supports version 1")]
    Version(u32),
    #[error(
        "this daemon id belongs to another credential; use its token, or start with an empty data directory"
    )]
    ForeignDaemon,
    #[error("the relay is stopping; connect again")]
    Stopping,
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::io::rejection::Rejection;

    #[test]
    fn codes_that_daemons_react_to_are_the_same_on_both_sides() {
        assert_eq!(Rejection::Gap.as_str(), refusals::GAP);
        assert_eq!(Rejection::ContractUnmet.as_str(), refusals::CONTRACT_UNMET);
        assert_eq!(
            Rejection::UnknownAttempt.as_str(),
            refusals::UNKNOWN_ATTEMPT
        );
    }
}
