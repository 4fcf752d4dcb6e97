//! Reads output frames and recorded cuts: their kind, reason and end.

use baton_core::io::session_input::OutputSignal;
use baton_proto::v1;

use crate::output::CutReason;

/// Largest number of bytes that one cut may cover. No child writes more within a lease.
pub(super) const CUT_BYTES_MAX: u64 = 1 << 40;

/// The activity signal of a chunk. Visible output counts as output after the prompt, even if
/// the daemon marks it otherwise.
pub(super) fn activity_sign(sent: &v1::Stream) -> OutputSignal {
    match (sent.visible, sent.before_prompt) {
        (true, _) => OutputSignal::VisibleEvent,
        (false, false) => OutputSignal::Event,
        (false, true) => OutputSignal::BeforePrompt,
    }
}

/// The kind of a chunk as the one byte that the log stores: the kind in the low bits,
/// visibility in the highest bit. A number that does not fit is stored as 0. A number of a
/// newer protocol that fits is stored unchanged.
pub(super) fn output_kind(sent: &v1::Stream) -> u8 {
    let kind = u8::try_from(sent.kind).ok();
    let kind = kind.filter(|kind| *kind < VISIBLE_BIT).unwrap_or(0);
    if sent.visible {
        kind | VISIBLE_BIT
    } else {
        kind
    }
}

/// Bit in the kind of a stored chunk that marks visible output.
pub(crate) const VISIBLE_BIT: u8 = 0x80;

/// The reason of a cut. A reason of a newer protocol is accepted as unknown: the bytes are
/// lost, and without the cut the output would keep a gap.
pub(super) fn cut_reason(sent: &v1::OutputCut) -> Option<CutReason> {
    let Ok(reason) = v1::CutReason::try_from(sent.reason) else {
        return Some(CutReason::Unknown);
    };
    match reason {
        v1::CutReason::WorkerCrash if sent.length_unknown => Some(CutReason::RecorderLost),
        v1::CutReason::DaemonOverflow => Some(CutReason::DaemonOverflow),
        v1::CutReason::DiskFull => Some(CutReason::DiskFull),
        v1::CutReason::LineTooLong => Some(CutReason::LineTooLong),
        v1::CutReason::WorkerCrash => Some(CutReason::WorkerCrash),
        // Only the relay itself makes cuts for these reasons.
        v1::CutReason::AttemptLimit
        | v1::CutReason::Retention
        | v1::CutReason::Corrupt
        | v1::CutReason::NotReceived
        | v1::CutReason::Unspecified => None,
    }
}

pub(super) fn cut_end(sent: &v1::OutputCut) -> Option<u64> {
    let end = sent.offset.checked_add(sent.length)?;
    (sent.length <= CUT_BYTES_MAX).then_some(end)
}
