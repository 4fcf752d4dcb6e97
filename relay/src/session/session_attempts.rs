//! The attempts for which one session may send frames, with their acknowledgements and
//! unreported activity.
//!
//! This is bookkeeping of one stream. Decisions about attempts are made by the core.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use baton_core::ids::{AttemptId, SessionId};
use baton_core::io::session_input::{FrameRef, OutputActivity, OutputSignal};
use baton_core::time::MonotonicTime;

/// Longest delay of output activity on its way to the core.
const ACTIVITY_INTERVAL_MS: u64 = 1_000;
/// Number of tool calls of one attempt whose first output is reported at once. Later calls are
/// reported at the next flush.
const TOOLS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct SessionAttempts {
    attempts: HashMap<AttemptId, SessionAttempt>,
    /// Whether some output did not fit on the disk.
    disk_full: bool,
}

#[derive(Debug)]
struct SessionAttempt {
    frame_ref: FrameRef,
    flush_interval_ms: u64,
    acked_control: u64,
    acked_offset: u64,
    /// The daemon has replayed on this stream everything that it has, or its output is no
    /// longer needed. Output that is missing at the terminal frame will therefore never arrive.
    has_full_replay: bool,
    /// The attempt must stop: its output is no longer accepted.
    is_abandoned: bool,
    /// Set while its output does not fit on the disk; later output is not stored then.
    disk_wait: Option<DiskWait>,
    /// control_seq of a terminal frame that proves the end of the processes. Once it is
    /// acknowledged, no more frames follow.
    final_seq: Option<u64>,
    /// The strongest output signal that was reported to the core.
    reported_sign: Option<OutputSignal>,
    reported_tools: Vec<Arc<str>>,
    unreported: Option<UnreportedActivity>,
}

/// State of an attempt whose output waits for disk space. The daemon replays the output on its
/// next stream.
#[derive(Clone, Copy, Debug, Default)]
struct DiskWait {
    /// control_seq of the terminal frame that arrived before its output was stored.
    end_seq: Option<u64>,
}

/// Activity that is not yet reported to the core.
#[derive(Debug)]
struct UnreportedActivity {
    sign: OutputSignal,
    tools: Vec<Arc<str>>,
    output_end: u64,
    due: MonotonicTime,
}

/// One acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttemptAck {
    pub(super) attempt: AttemptId,
    pub(super) control_seq: u64,
    pub(super) offset: u64,
}

impl SessionAttempts {
    /// Allows the session to send frames for this attempt. `idle_ms` is its stream_idle limit,
    /// if it has one.
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

    /// The attempt was listed in Hello, so the daemon replays everything after the acknowledged
    /// position.
    pub(super) fn mark_full_replay(&mut self, attempt: AttemptId) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.has_full_replay = true;
        }
    }

    /// The daemon must stop this attempt. Only its terminal frame is still accepted.
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

    /// The output could not be stored. Its output is ignored until the daemon replays it on
    /// another stream.
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

    /// Whether this control frame must wait for output that does not fit on the disk. That
    /// holds for a terminal frame and for every frame after it.
    pub(super) fn must_wait_for_output(
        &mut self,
        attempt: AttemptId,
        number: u64,
        ends: bool,
    ) -> bool {
        let one = self.attempts.get_mut(&attempt);
        let Some(disk_wait) = one.and_then(|one| one.disk_wait.as_mut()) else {
            return false;
        };
        if ends {
            disk_wait.end_seq.get_or_insert(number);
        }
        disk_wait.end_seq.is_some_and(|end| number >= end)
    }

    /// Whether output that is missing now will never arrive.
    pub(super) fn has_full_replay(&self, attempt: AttemptId) -> bool {
        self.attempts
            .get(&attempt)
            .is_some_and(|one| one.has_full_replay)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Whether this session may send frames with exactly this ref.
    pub(super) fn contains_ref(&self, re: &FrameRef) -> bool {
        self.attempts
            .get(&re.attempt)
            .is_some_and(|one| one.frame_ref == *re)
    }

    pub(super) fn contains(&self, attempt: AttemptId) -> bool {
        self.attempts.contains_key(&attempt)
    }

    /// Records a terminal frame that proves the end of the processes.
    pub(super) fn note_final_frame(&mut self, attempt: AttemptId, control_seq: u64) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.final_seq = Some(control_seq);
        }
    }

    /// The frame was refused, so more frames may follow.
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

    /// Records output. Returns activity that must be reported at once: the first output, the
    /// first visible output, or the first output of a tool.
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

    /// Takes the unreported activity of one attempt. It is reported before each control frame,
    /// so that the order is kept.
    pub(super) fn flush(
        &mut self,
        session: SessionId,
        attempt: AttemptId,
    ) -> Option<OutputActivity> {
        self.attempts.get_mut(&attempt)?.take_activity(session)
    }

    /// Takes all activity that is due.
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

/// One chunk of output, without its bytes.
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
        let mut attempts = SessionAttempts::default();
        attempts.insert(re, Some(4_000), (0, 0));
        (attempts, SessionId(Uuid::from_u128(4)), re.attempt)
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
    fn first_output_is_reported_at_once_and_later_output_is_coalesced() {
        let (mut attempts, session, attempt) = session_attempts();
        let at = MonotonicTime(1_000);
        assert!(
            attempts
                .note_output(
                    session,
                    chunk(attempt, OutputSignal::BeforePrompt, "", 5),
                    at
                )
                .is_some(),
            "the first output before the prompt"
        );
        assert!(
            attempts
                .note_output(session, chunk(attempt, OutputSignal::Event, "", 10), at)
                .is_some(),
            "the first output"
        );
        assert!(
            attempts
                .note_output(
                    session,
                    chunk(attempt, OutputSignal::VisibleEvent, "", 20),
                    at
                )
                .is_some(),
            "the first visible output"
        );
        assert!(
            attempts
                .note_output(session, chunk(attempt, OutputSignal::Event, "t1", 30), at)
                .is_some(),
            "the first output of a tool"
        );
        assert!(
            attempts
                .note_output(
                    session,
                    chunk(attempt, OutputSignal::VisibleEvent, "t1", 40),
                    at
                )
                .is_none()
        );
        assert!(
            attempts
                .note_output(
                    session,
                    chunk(attempt, OutputSignal::VisibleEvent, "", 50),
                    at + 400
                )
                .is_none()
        );
        assert_eq!(
            attempts.next_flush(),
            Some(at + 500),
            "an eighth of the idle limit"
        );
        assert!(attempts.flush_due(session, at + 499).is_empty());
        let flushed = attempts.flush_due(session, at + 500);
        assert_eq!(
            (flushed[0].output_end, flushed[0].signal),
            (50, OutputSignal::VisibleEvent)
        );
        assert_eq!(&*flushed[0].tools[0], "t1");
        assert_eq!(attempts.next_flush(), None);
    }

    #[test]
    fn an_acknowledged_final_frame_removes_its_attempt() {
        let (mut attempts, _, attempt) = session_attempts();
        let mut foreign = attempts.attempts[&attempt].frame_ref;
        assert!(attempts.contains_ref(&foreign));
        foreign.number = 2;
        assert!(!attempts.contains_ref(&foreign));
        attempts.note_final_frame(attempt, 5);
        assert_eq!(
            attempts
                .ack_control(attempt, 4)
                .map(|acked| acked.control_seq),
            Some(4)
        );
        assert_eq!(
            attempts.ack_offset(attempt, 9).map(|acked| acked.offset),
            Some(9)
        );
        assert!(
            attempts.ack_offset(attempt, 9).is_none(),
            "an old offset needs no new acknowledgement"
        );
        assert_eq!(
            attempts.ack_control(attempt, 5).map(|acked| acked.offset),
            Some(9)
        );
        assert!(attempts.ack_control(attempt, 5).is_none());
    }
}
