//! The attempts that one session may speak for, and what it remembers of each: acknowledgements and fresh activity.
//!
//! Pure bookkeeping of one stream. Nothing here decides about an attempt; the core does.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use baton_core::ids::{AttemptId, SessionId};
use baton_core::io::session_input::{FrameRef, OutputActivity, OutputSignal};
use baton_core::time::MonotonicTime;

/// Longest wait until output activity is told to the core.
const ACTIVITY_INTERVAL_MS: u64 = 1_000;
/// Tool calls of one attempt whose first output is remembered; later ones are told at the next flush.
const TOOLS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct SessionAttempts {
    attempts: HashMap<AttemptId, SessionAttempt>,
    /// Some output did not fit on the disk.
    disk_full: bool,
}

#[derive(Debug)]
struct SessionAttempt {
    frame_ref: FrameRef,
    flush_interval_ms: u64,
    acked_control: u64,
    acked_offset: u64,
    /// All that the daemon has of it came in order on this stream, or is not wanted any more: output that is missing at
    /// its last word will never come.
    has_full_replay: bool,
    /// It may not go on: its output is no longer taken.
    is_abandoned: bool,
    /// Its output does not fit on the disk for now, so nothing behind it is taken.
    disk_wait: Option<DiskWait>,
    /// Number of a terminal frame that proved the processes' end: once acknowledged, nothing more will come.
    final_seq: Option<u64>,
    /// The most that the core was told of its output.
    reported_sign: Option<OutputSignal>,
    reported_tools: Vec<Arc<str>>,
    unreported: Option<UnreportedActivity>,
}

/// What the daemon says meanwhile and will say again on its next stream.
#[derive(Clone, Copy, Debug, Default)]
struct DiskWait {
    /// Number of the end that came before its output.
    end_seq: Option<u64>,
}

/// Activity that the core has not been told yet.
#[derive(Debug)]
struct UnreportedActivity {
    sign: OutputSignal,
    tools: Vec<Arc<str>>,
    output_end: u64,
    due: MonotonicTime,
}

/// What one acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttemptAck {
    pub(super) attempt: AttemptId,
    pub(super) control_seq: u64,
    pub(super) offset: u64,
}

impl SessionAttempts {
    /// From now on the session may speak for it. `idle_ms` is its stream_idle limit, if it has one.
    pub(super) fn insert(&mut self, re: FrameRef, idle_ms: Option<u64>, acked: (u64, u64)) {
        let every_ms = idle_ms
            .filter(|idle| *idle > 0)
            .map_or(ACTIVITY_INTERVAL_MS, |idle| {
                (idle / 8).clamp(1, ACTIVITY_INTERVAL_MS)
            });
        let one = SessionAttempt {
            frame_ref: re,
            flush_interval_ms: every_ms,
            acked_control: acked.0,
            acked_offset: acked.1,
            has_full_replay: false,
            is_abandoned: false,
            disk_wait: None,
            final_seq: None,
            reported_sign: None,
            reported_tools: Vec::new(),
            unreported: None,
        };
        self.attempts.insert(re.attempt, one);
    }

    /// It was listed in Hello, so the daemon replays what it has of it from the acknowledged on.
    pub(super) fn mark_full_replay(&mut self, attempt: AttemptId) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.has_full_replay = true;
        }
    }

    /// The daemon is told that it may not go on. Only its last word is still taken.
    pub(super) fn abandon(&mut self, attempt: AttemptId) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            (one.has_full_replay, one.is_abandoned) = (true, true);
        }
    }

    pub(super) fn is_abandoned(&self, attempt: AttemptId) -> bool {
        self.attempts
            .get(&attempt)
            .is_some_and(|one| one.is_abandoned)
    }

    /// Its output could not be stored. Until the daemon brings it again, on another stream, it is not looked at any more.
    pub(super) fn mark_disk_full(&mut self, attempt: AttemptId) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.disk_wait.get_or_insert_default();
            self.disk_full = true;
        }
    }

    pub(super) fn waits_for_disk(&self, attempt: AttemptId) -> bool {
        let one = self.attempts.get(&attempt);
        one.is_some_and(|one| one.disk_wait.is_some())
    }

    pub(super) fn is_disk_full(&self) -> bool {
        self.disk_full
    }

    /// Whether this control frame has to wait for output that does not fit: an end, and whatever comes behind it.
    pub(super) fn must_wait_for_output(
        &mut self,
        attempt: AttemptId,
        number: u64,
        ends: bool,
    ) -> bool {
        let one = self.attempts.get_mut(&attempt);
        let Some(dry) = one.and_then(|one| one.disk_wait.as_mut()) else {
            return false;
        };
        if ends {
            dry.end_seq.get_or_insert(number);
        }
        dry.end_seq.is_some_and(|end| number >= end)
    }

    /// Whether output that is missing now will never come.
    pub(super) fn has_full_replay(&self, attempt: AttemptId) -> bool {
        self.attempts
            .get(&attempt)
            .is_some_and(|one| one.has_full_replay)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Whether this very ref was given to this session.
    pub(super) fn contains_ref(&self, re: &FrameRef) -> bool {
        self.attempts
            .get(&re.attempt)
            .is_some_and(|one| one.frame_ref == *re)
    }

    pub(super) fn contains(&self, attempt: AttemptId) -> bool {
        self.attempts.contains_key(&attempt)
    }

    /// Notes a terminal frame that proves the end of the processes.
    pub(super) fn note_final_frame(&mut self, attempt: AttemptId, control_seq: u64) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.final_seq = Some(control_seq);
        }
    }

    /// The frame was refused, so it was not the last word.
    pub(super) fn note_refused_frame(&mut self, attempt: AttemptId, control_seq: u64) {
        if let Some(one) = self.attempts.get_mut(&attempt)
            && one.final_seq == Some(control_seq)
        {
            one.final_seq = None;
        }
    }

    pub(super) fn ack_control(
        &mut self,
        attempt: AttemptId,
        control_seq: u64,
    ) -> Option<AttemptAck> {
        let Entry::Occupied(mut entry) = self.attempts.entry(attempt) else {
            return None;
        };
        let one = entry.get_mut();
        one.acked_control = one.acked_control.max(control_seq);
        let acked = one.acked();
        if one.final_seq.is_some_and(|last| last <= acked.control_seq) {
            entry.remove();
        }
        Some(acked)
    }

    pub(super) fn ack_offset(&mut self, attempt: AttemptId, offset: u64) -> Option<AttemptAck> {
        let one = self.attempts.get_mut(&attempt)?;
        if offset <= one.acked_offset {
            return None;
        }
        one.acked_offset = offset;
        Some(one.acked())
    }

    /// Notes output. Returns what must be told at once: the first, the first visible, a tool's first.
    pub(super) fn note_output(
        &mut self,
        session: SessionId,
        seen: OutputObservation<'_>,
        now: MonotonicTime,
    ) -> Option<OutputActivity> {
        let one = self.attempts.get_mut(&seen.attempt)?;
        let urgent = one.note_output(&seen, now);
        if urgent {
            one.take_activity(session)
        } else {
            None
        }
    }

    /// Activity of one attempt that waits; told before each of its control frames, so that order is kept.
    pub(super) fn flush(
        &mut self,
        session: SessionId,
        attempt: AttemptId,
    ) -> Option<OutputActivity> {
        self.attempts.get_mut(&attempt)?.take_activity(session)
    }

    /// All activity that is due.
    pub(super) fn flush_due(
        &mut self,
        session: SessionId,
        now: MonotonicTime,
    ) -> Vec<OutputActivity> {
        let due = |one: &&mut SessionAttempt| {
            one.unreported
                .as_ref()
                .is_some_and(|fresh| fresh.due <= now)
        };
        self.attempts
            .values_mut()
            .filter(due)
            .filter_map(|one| one.take_activity(session))
            .collect()
    }

    pub(super) fn next_flush(&self) -> Option<MonotonicTime> {
        self.attempts
            .values()
            .filter_map(|one| one.unreported.as_ref().map(|fresh| fresh.due))
            .min()
    }
}

/// One chunk of output as the bookkeeping sees it.
#[derive(Debug)]
pub(super) struct OutputObservation<'a> {
    pub(super) attempt: AttemptId,
    pub(super) sign: OutputSignal,
    pub(super) tool: &'a str,
    pub(super) end: u64,
}

impl SessionAttempt {
    fn acked(&self) -> AttemptAck {
        AttemptAck {
            attempt: self.frame_ref.attempt,
            control_seq: self.acked_control,
            offset: self.acked_offset,
        }
    }

    fn note_output(&mut self, seen: &OutputObservation<'_>, now: MonotonicTime) -> bool {
        let due = now + self.flush_interval_ms;
        let fresh = self.unreported.get_or_insert(UnreportedActivity {
            sign: seen.sign,
            tools: Vec::new(),
            output_end: 0,
            due,
        });
        fresh.sign = fresh.sign.max(seen.sign);
        fresh.output_end = fresh.output_end.max(seen.end);
        let known = |tools: &[Arc<str>]| tools.iter().any(|tool| **tool == *seen.tool);
        let first_of_tool = !seen.tool.is_empty()
            && !known(&self.reported_tools)
            && self.reported_tools.len() < TOOLS_MAX;
        if !seen.tool.is_empty() && !known(&fresh.tools) && fresh.tools.len() < TOOLS_MAX {
            fresh.tools.push(seen.tool.into());
        }
        if first_of_tool {
            self.reported_tools.push(seen.tool.into());
        }
        Some(seen.sign) > self.reported_sign || first_of_tool
    }

    fn take_activity(&mut self, session: SessionId) -> Option<OutputActivity> {
        let UnreportedActivity {
            sign,
            tools,
            output_end,
            ..
        } = self.unreported.take()?;
        self.reported_sign = self.reported_sign.max(Some(sign));
        Some(OutputActivity {
            session,
            frame_ref: self.frame_ref,
            signal: sign,
            tools,
            output_end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::ids::{Incarnation, TaskId};
    use uuid::Uuid;

    fn session_attempts() -> (SessionAttempts, SessionId, AttemptId) {
        let re = FrameRef {
            task: TaskId(Uuid::from_u128(1)),
            attempt: AttemptId(Uuid::from_u128(2)),
            number: 1,
            incarnation: Incarnation(Uuid::from_u128(3)),
        };
        let mut held = SessionAttempts::default();
        held.insert(re, Some(4_000), (0, 0));
        (held, SessionId(Uuid::from_u128(4)), re.attempt)
    }

    fn chunk(
        attempt: AttemptId,
        sign: OutputSignal,
        tool: &str,
        end: u64,
    ) -> OutputObservation<'_> {
        OutputObservation {
            attempt,
            sign,
            tool,
            end,
        }
    }

    #[test]
    fn firsts_are_told_at_once_and_the_rest_is_coalesced_with_its_trailing_edge() {
        let (mut held, session, attempt) = session_attempts();
        let at = MonotonicTime(1_000);
        assert!(
            held.note_output(
                session,
                chunk(attempt, OutputSignal::BeforePrompt, "", 5),
                at
            )
            .is_some(),
            "what it says of itself"
        );
        assert!(
            held.note_output(session, chunk(attempt, OutputSignal::Event, "", 10), at)
                .is_some(),
            "the first output"
        );
        assert!(
            held.note_output(
                session,
                chunk(attempt, OutputSignal::VisibleEvent, "", 20),
                at
            )
            .is_some(),
            "the first visible"
        );
        assert!(
            held.note_output(session, chunk(attempt, OutputSignal::Event, "t1", 30), at)
                .is_some(),
            "a tool's first"
        );
        assert!(
            held.note_output(
                session,
                chunk(attempt, OutputSignal::VisibleEvent, "t1", 40),
                at
            )
            .is_none()
        );
        assert!(
            held.note_output(
                session,
                chunk(attempt, OutputSignal::VisibleEvent, "", 50),
                at + 400
            )
            .is_none()
        );
        assert_eq!(
            held.next_flush(),
            Some(at + 500),
            "an eighth of the idle limit"
        );
        assert!(held.flush_due(session, at + 499).is_empty());
        let flushed = held.flush_due(session, at + 500);
        assert_eq!(
            (flushed[0].output_end, flushed[0].signal),
            (50, OutputSignal::VisibleEvent)
        );
        assert_eq!(&*flushed[0].tools[0], "t1");
        assert_eq!(held.next_flush(), None);
    }

    #[test]
    fn an_acknowledged_last_word_frees_the_place_and_foreign_refs_are_not_held() {
        let (mut held, _, attempt) = session_attempts();
        let mut foreign = held.attempts[&attempt].frame_ref;
        assert!(held.contains_ref(&foreign));
        foreign.number = 2;
        assert!(!held.contains_ref(&foreign));
        held.note_final_frame(attempt, 5);
        assert_eq!(
            held.ack_control(attempt, 4).map(|acked| acked.control_seq),
            Some(4)
        );
        assert_eq!(
            held.ack_offset(attempt, 9).map(|acked| acked.offset),
            Some(9)
        );
        assert!(held.ack_offset(attempt, 9).is_none(), "nothing new to say");
        assert_eq!(
            held.ack_control(attempt, 5).map(|acked| acked.offset),
            Some(9)
        );
        assert!(held.ack_control(attempt, 5).is_none());
    }
}
