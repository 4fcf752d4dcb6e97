//! What can be wrong with a stream or a frame. A frame's fault is answered and the stream goes on; a link's fault ends
//! that stream only, and never an attempt.

use baton_proto::codes::refusals;

/// A frame that means nothing the relay can act on. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    #[error("the frame names no attempt; every attempt frame carries its whole ref")]
    MissingRef,
    #[error("{0} is not an id; echo the ref of the dispatch unchanged")]
    MalformedId(&'static str),
    #[error("{0} is blank; it needs a value")]
    Blank(&'static str),
    #[error("{field} has {size} bytes and may have {limit}")]
    TooLong {
        field: &'static str,
        size: usize,
        limit: usize,
    },
    #[error("{field} has {count} entries and may have {limit}; send the rest in further frames")]
    TooMany {
        field: &'static str,
        count: usize,
        limit: usize,
    },
    #[error("tool_input_sha256 is not the digest of tool_input; send the bytes that were hashed")]
    DigestMismatch,
    #[error("control frames are numbered from 1, output has number 0")]
    WrongNumber,
    #[error("the relay knows no such attempt of this daemon")]
    UnknownAttempt,
    #[error("output continues at another offset; replay from the last acknowledged byte")]
    OutputGap,
    #[error("a cut must have a length and a known reason")]
    BadCut,
}

impl FrameFault {
    /// Stable machine code.
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

    /// The field at fault, where there is one.
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

/// Why a stream is refused before it became a session. `api/status.rs` gives each its status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkFault {
    #[error("no Hello came within {0} s; send it first")]
    HelloTimeout(u64),
    #[error("the first frame of a stream must be Hello")]
    HelloNotFirst,
    #[error("the stream ended before Hello")]
    EndedBeforeHello,
    #[error("the first frame cannot be decoded; text is UTF-8")]
    Undecodable,
    #[error("Hello.{field}: {what}")]
    BadHello {
        field: &'static str,
        what: &'static str,
    },
    #[error("protocol version {0} is not spoken here; this relay speaks 1")]
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
    fn what_daemons_act_on_is_spelled_alike_on_both_sides() {
        assert_eq!(Rejection::Gap.as_str(), refusals::GAP);
        assert_eq!(Rejection::ContractUnmet.as_str(), refusals::CONTRACT_UNMET);
        assert_eq!(
            Rejection::UnknownAttempt.as_str(),
            refusals::UNKNOWN_ATTEMPT
        );
    }
}
