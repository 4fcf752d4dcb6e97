//! The state of one attempt's output: its ends, its extents and its listeners.
//!
//! Pure state; the index locks it and the writer updates it. Extents describe durable bytes
//! only, so everything a reader finds here can be read. `join` is the only way to add an
//! extent, for live frames and for recovery.

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
    /// Retention removed everything below this offset.
    pub(crate) base: u64,
    pub(crate) extents: Vec<StoredExtent>,
    pub(crate) end: u64,
    pub(crate) durable: u64,
    pub(crate) after_control_seq: u64,
    /// Accepted payload bytes, counted against the attempt's limit.
    pub(crate) stored: u64,
    pub(crate) stored_durable: u64,
    cut: u64,
    /// Changes when accepted bytes are discarded. Queued jobs of an older generation are
    /// ignored.
    pub(crate) generation: u64,
    pub(crate) phase: SealPhase,
    /// Boxed and absent by default, because most attempts have ended and have no listener.
    pub(crate) listeners: Option<Box<AttemptListeners>>,
}

/// The attempt's end and generation, for a caller that waits for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputPosition {
    pub(crate) end: OutputEnd,
    pub(crate) generation: u64,
}

/// What a follower at a given offset does next.
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

    /// Nothing is stored and there is no listener, so the entry can be removed.
    pub(crate) fn is_removable(&self) -> bool {
        let stored_nowhere =
            self.has_no_output() || (self.phase == SealPhase::Sealed && self.extents.is_empty());
        stored_nowhere
            && self
                .listeners
                .as_ref()
                .is_none_or(|listeners| listeners.is_idle())
    }

    /// Where the new part of `from..to` starts; `None` if all of it is stored already.
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

    /// Adds a durable extent. A gap before it means damage and becomes a cut. Returns the
    /// number of such cuts.
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

    /// Applies a retention record that covers known output. It is written so that the end
    /// survives the removed segments. It also takes precedence over segments that reappear
    /// because a crash undid their removal.
    fn replace_by_retention_cut(&mut self, extent: StoredExtent) {
        self.base = extent.offset;
        self.durable = self.durable.max(extent.end());
        self.cut = extent.end();
        self.extents.clear();
        self.extents.push(extent);
    }

    /// Adds what one recovered segment contains. With `dropped_before`, retention has removed
    /// older segments.
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

    /// Discards everything that was accepted but is not durable.
    pub(crate) fn discard_unsynced(&mut self, generation: u64) {
        self.end = self.durable;
        self.stored = self.stored_durable;
        self.generation = generation;
        if self.phase == SealPhase::Sealing {
            self.phase = SealPhase::Open;
        }
        self.notify_listeners();
    }

    /// Drops the extents in segments up to `segment`.
    pub(crate) fn drop_through(&mut self, segment: u32) {
        let dropped = self
            .extents
            .partition_point(|extent| extent.segment <= segment);
        let lost: u64 = self
            .extents
            .drain(..dropped)
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
        let tail = self
            .listeners
            .as_ref()
            .and_then(|listeners| listeners.tail_from(at));
        tail.map_or(FollowStep::ReadDisk, FollowStep::FromTail)
    }

    /// Publishes the attempt's end to the listeners, and drops them after the seal.
    pub(crate) fn notify_listeners(&mut self) {
        let end = self.output_end();
        if let Some(listeners) = &mut self.listeners {
            listeners.publish_end(end);
            if end.sealed && listeners.followers == 0 {
                self.listeners = None;
            }
        }
    }
}
