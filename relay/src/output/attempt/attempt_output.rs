//! What the log knows about the output of one attempt: its ends, its extents and who is listening.
//!
//! Pure state; the index locks it and the writer feeds it. Extents describe durable bytes only, so whatever a reader
//! finds here can be read. `join` is the only way in, for live frames and for recovery alike.

use super::listeners::AttemptListeners;
use crate::output::error::OutputAppendError;
use crate::output::piece::{CutReason, OutputEnd, OutputPiece};
use crate::output::segment::extent::{AttemptExtents, ExtentContent, StoredExtent};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SealPhase {
    Open,
    /// The seal is queued; nothing more is accepted.
    Sealing,
    Sealed,
}

#[derive(Debug)]
pub(crate) struct AttemptOutput {
    /// Everything below fell to retention.
    pub(crate) base: u64,
    pub(crate) extents: Vec<StoredExtent>,
    pub(crate) end: u64,
    pub(crate) durable: u64,
    pub(crate) after_control_seq: u64,
    /// Accepted payload bytes, against the attempt's limit.
    pub(crate) stored: u64,
    pub(crate) stored_durable: u64,
    cut: u64,
    /// Changes when accepted bytes are taken back; queued jobs of an older generation are void.
    pub(crate) generation: u64,
    pub(crate) phase: SealPhase,
    /// Boxed and absent by default: most known attempts have ended and have no listener.
    pub(crate) listeners: Option<Box<AttemptListeners>>,
}

/// Where the attempt is, for someone who waits for it to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputPosition {
    pub(crate) end: OutputEnd,
    pub(crate) generation: u64,
}

/// What a follower at some offset should do next.
#[derive(Debug)]
pub(crate) enum FollowStep {
    FromTail(Vec<OutputPiece>),
    ReadDisk,
    Wait,
    End,
}

impl AttemptOutput {
    pub(crate) fn new(generation: u64) -> Self {
        Self {
            base: 0,
            extents: Vec::new(),
            end: 0,
            durable: 0,
            after_control_seq: 0,
            stored: 0,
            stored_durable: 0,
            cut: 0,
            generation,
            phase: SealPhase::Open,
            listeners: None,
        }
    }

    pub(crate) fn output_end(&self) -> OutputEnd {
        OutputEnd {
            end: self.end,
            durable: self.durable,
            after_control_seq: self.after_control_seq,
            cut_bytes: self.cut,
            open_bytes: self.extents.last().map_or(0, StoredExtent::open_bytes),
            sealed: self.phase == SealPhase::Sealed,
        }
    }

    pub(crate) fn position(&self) -> OutputPosition {
        OutputPosition {
            end: self.output_end(),
            generation: self.generation,
        }
    }

    pub(crate) fn has_no_output(&self) -> bool {
        self.end == 0 && self.extents.is_empty()
    }

    /// Nothing is stored and nobody listens: the entry may go.
    pub(crate) fn is_removable(&self) -> bool {
        let stored_nowhere =
            self.has_no_output() || (self.phase == SealPhase::Sealed && self.extents.is_empty());
        stored_nowhere && self.listeners.as_ref().is_none_or(|live| live.is_idle())
    }

    /// Where the new part of `from..to` starts; None when all of it is there already.
    pub(crate) fn new_part(&self, from: u64, to: u64) -> Result<Option<u64>, OutputAppendError> {
        if from > self.end {
            return Err(OutputAppendError::Gap { expected: self.end });
        }
        if to <= self.end {
            return Ok(None);
        }
        match self.phase {
            SealPhase::Open => Ok(Some(self.end)),
            SealPhase::Sealing | SealPhase::Sealed => {
                Err(OutputAppendError::Sealed { end: self.end })
            }
        }
    }

    /// Adds a durable extent. What it leaves open before itself is damage and becomes a cut; counts those.
    pub(crate) fn join(&mut self, extent: StoredExtent) -> u64 {
        if extent.content == ExtentContent::Cut(CutReason::Retention)
            && extent.offset < self.durable
        {
            self.replace_by_retention_cut(extent);
            return 0;
        }
        if let Some(last) = self
            .extents
            .last_mut()
            .filter(|last| last.same_place(&extent))
        {
            let grown = StoredExtent {
                offset: last.offset,
                len: extent.end() - last.offset,
                ..extent
            };
            self.cut += grown.cut_bytes() - last.cut_bytes();
            self.stored_durable += grown.stored_bytes() - last.stored_bytes();
            *last = grown;
            self.durable = extent.end();
            return 0;
        }
        if extent.end() <= self.durable {
            return 0;
        }
        let damage = extent.offset > self.durable;
        if damage {
            let hole = StoredExtent::cut(
                self.durable,
                extent.offset,
                extent.segment,
                CutReason::Corrupt,
            );
            self.push(hole);
        }
        self.push(StoredExtent {
            offset: self.durable,
            len: extent.end() - self.durable,
            ..extent
        });
        u64::from(damage)
    }

    fn push(&mut self, extent: StoredExtent) {
        self.cut += extent.cut_bytes();
        self.stored_durable += extent.stored_bytes();
        self.durable = extent.end();
        self.extents.push(extent);
    }

    /// A retention record over what is already known: written so that the end outlives the dropped segments. It
    /// also wins over segments whose removal a crash undid.
    fn replace_by_retention_cut(&mut self, extent: StoredExtent) {
        self.base = extent.offset;
        self.durable = self.durable.max(extent.end());
        self.cut = extent.end();
        self.extents.clear();
        self.extents.push(extent);
    }

    /// Takes over what one recovered segment holds. `dropped_before` says that older segments fell to retention.
    pub(crate) fn absorb_segment(
        &mut self,
        part: AttemptExtents,
        segment: u32,
        dropped_before: bool,
    ) -> u64 {
        let starts_at = part
            .extents
            .first()
            .map(|first| first.offset)
            .or(part.sealed_at);
        if self.has_no_output() && dropped_before {
            self.base = starts_at.unwrap_or(0);
            self.durable = self.base;
            self.cut = self.base;
        }
        let mut damage = 0;
        for extent in part.extents {
            damage += self.join(extent);
        }
        if let Some(sealed_at) = part.sealed_at {
            if sealed_at > self.durable {
                self.push(StoredExtent::cut(
                    self.durable,
                    sealed_at,
                    segment,
                    CutReason::Corrupt,
                ));
                damage += 1;
            }
            self.phase = SealPhase::Sealed;
        }
        self.after_control_seq = self.after_control_seq.max(part.after_control_seq);
        self.end = self.durable;
        self.stored = self.stored_durable;
        damage
    }

    /// Forgets that anything accepted and not durable was ever taken.
    pub(crate) fn discard_unsynced(&mut self, generation: u64) {
        self.end = self.durable;
        self.stored = self.stored_durable;
        self.generation = generation;
        if self.phase == SealPhase::Sealing {
            self.phase = SealPhase::Open;
        }
        self.notify_listeners();
    }

    /// Drops what lies in segments up to `segment`.
    pub(crate) fn drop_through(&mut self, segment: u32) {
        let gone = self
            .extents
            .partition_point(|extent| extent.segment <= segment);
        let lost: u64 = self
            .extents
            .drain(..gone)
            .map(|extent| extent.stored_bytes())
            .sum();
        self.extents.shrink_to_fit();
        self.cut += lost;
        self.base = self
            .extents
            .first()
            .map_or(self.durable, |first| first.offset);
    }

    pub(crate) fn step(&self, at: u64) -> FollowStep {
        if at >= self.durable {
            return if self.phase == SealPhase::Sealed {
                FollowStep::End
            } else {
                FollowStep::Wait
            };
        }
        let tail = self.listeners.as_ref().and_then(|live| live.tail_from(at));
        tail.map_or(FollowStep::ReadDisk, FollowStep::FromTail)
    }

    /// Tells listeners where the attempt's output stands, and lets go of them after the last word.
    pub(crate) fn notify_listeners(&mut self) {
        let end = self.output_end();
        if let Some(live) = &mut self.listeners {
            live.publish_end(end);
            if end.sealed && live.followers == 0 {
                self.listeners = None;
            }
        }
    }
}
