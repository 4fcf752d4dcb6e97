//! The attempts that one session may speak for, and what it remembers of each: acknowledgements and fresh activity.
//!
//! Pure bookkeeping of one stream. Nothing here decides about an attempt; the core does.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use baton_core::id::{AttemptId, SessionId};
use baton_core::input::{Activity, FrameRef, Sign};
use baton_core::time::Moment;

/// Longest wait until output activity is told to the core.
const ACTIVITY_MS: u64 = 1_000;
/// Tool calls of one attempt whose first output is remembered; later ones are told at the next flush.
const TOOLS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Held {
    attempts: HashMap<AttemptId, One>,
    /// Some output did not fit on the disk.
    lacks_room: bool,
}

#[derive(Debug)]
struct One {
    re: FrameRef,
    every_ms: u64,
    acked_control: u64,
    acked_offset: u64,
    /// All that the daemon has of it came in order on this stream, or is not wanted any more: output that is missing at
    /// its last word will never come.
    is_all: bool,
    /// It may not go on: its output is no longer taken.
    is_given_up: bool,
    /// Its output does not fit on the disk for now, so nothing behind it is taken.
    dry: Option<Dry>,
    /// Number of a terminal frame that proved the processes' end: once acknowledged, nothing more will come.
    last_word: Option<u64>,
    /// The most that the core was told of its output.
    told: Option<Sign>,
    told_tools: Vec<Arc<str>>,
    fresh: Option<Fresh>,
}

/// What the daemon says meanwhile and will say again on its next stream.
#[derive(Clone, Copy, Debug, Default)]
struct Dry {
    /// Number of the end that came before its output.
    end: Option<u64>,
}

/// Activity that the core has not been told yet.
#[derive(Debug)]
struct Fresh {
    sign: Sign,
    tools: Vec<Arc<str>>,
    output_end: u64,
    due: Moment,
}

/// What one acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acked {
    pub(super) attempt: AttemptId,
    pub(super) control_seq: u64,
    pub(super) offset: u64,
}

impl Held {
    /// From now on the session may speak for it. `idle_ms` is its stream_idle limit, if it has one.
    pub(super) fn insert(&mut self, re: FrameRef, idle_ms: Option<u64>, acked: (u64, u64)) {
        let every_ms = idle_ms
            .filter(|idle| *idle > 0)
            .map_or(ACTIVITY_MS, |idle| (idle / 8).clamp(1, ACTIVITY_MS));
        let one = One {
            re,
            every_ms,
            acked_control: acked.0,
            acked_offset: acked.1,
            is_all: false,
            is_given_up: false,
            dry: None,
            last_word: None,
            told: None,
            told_tools: Vec::new(),
            fresh: None,
        };
        self.attempts.insert(re.attempt, one);
    }

    /// It was listed in Hello, so the daemon replays what it has of it from the acknowledged on.
    pub(super) fn replays(&mut self, attempt: AttemptId) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.is_all = true;
        }
    }

    /// The daemon is told that it may not go on. Only its last word is still taken.
    pub(super) fn give_up(&mut self, attempt: AttemptId) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            (one.is_all, one.is_given_up) = (true, true);
        }
    }

    pub(super) fn is_given_up(&self, attempt: AttemptId) -> bool {
        self.attempts
            .get(&attempt)
            .is_some_and(|one| one.is_given_up)
    }

    /// Its output could not be stored. Until the daemon brings it again, on another stream, it is not looked at any more.
    pub(super) fn runs_dry(&mut self, attempt: AttemptId) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.dry.get_or_insert_default();
            self.lacks_room = true;
        }
    }

    pub(super) fn is_dry(&self, attempt: AttemptId) -> bool {
        let one = self.attempts.get(&attempt);
        one.is_some_and(|one| one.dry.is_some())
    }

    pub(super) fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    /// Whether this control frame has to wait for output that does not fit: an end, and whatever comes behind it.
    pub(super) fn waits_for_room(&mut self, attempt: AttemptId, number: u64, ends: bool) -> bool {
        let one = self.attempts.get_mut(&attempt);
        let Some(dry) = one.and_then(|one| one.dry.as_mut()) else {
            return false;
        };
        if ends {
            dry.end.get_or_insert(number);
        }
        dry.end.is_some_and(|end| number >= end)
    }

    /// Whether output that is missing now will never come.
    pub(super) fn is_all(&self, attempt: AttemptId) -> bool {
        self.attempts.get(&attempt).is_some_and(|one| one.is_all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Whether this very ref was given to this session.
    pub(super) fn holds(&self, re: &FrameRef) -> bool {
        self.attempts
            .get(&re.attempt)
            .is_some_and(|one| one.re == *re)
    }

    pub(super) fn speaks_for(&self, attempt: AttemptId) -> bool {
        self.attempts.contains_key(&attempt)
    }

    /// Notes a terminal frame that proves the end of the processes.
    pub(super) fn last_word(&mut self, attempt: AttemptId, control_seq: u64) {
        if let Some(one) = self.attempts.get_mut(&attempt) {
            one.last_word = Some(control_seq);
        }
    }

    /// The frame was refused, so it was not the last word.
    pub(super) fn refused(&mut self, attempt: AttemptId, control_seq: u64) {
        if let Some(one) = self.attempts.get_mut(&attempt)
            && one.last_word == Some(control_seq)
        {
            one.last_word = None;
        }
    }

    pub(super) fn acked_control(&mut self, attempt: AttemptId, control_seq: u64) -> Option<Acked> {
        let Entry::Occupied(mut entry) = self.attempts.entry(attempt) else {
            return None;
        };
        let one = entry.get_mut();
        one.acked_control = one.acked_control.max(control_seq);
        let acked = one.acked();
        if one.last_word.is_some_and(|last| last <= acked.control_seq) {
            entry.remove();
        }
        Some(acked)
    }

    pub(super) fn acked_offset(&mut self, attempt: AttemptId, offset: u64) -> Option<Acked> {
        let one = self.attempts.get_mut(&attempt)?;
        if offset <= one.acked_offset {
            return None;
        }
        one.acked_offset = offset;
        Some(one.acked())
    }

    /// Notes output. Returns what must be told at once: the first, the first visible, a tool's first.
    pub(super) fn output(
        &mut self,
        session: SessionId,
        seen: Seen<'_>,
        now: Moment,
    ) -> Option<Activity> {
        let one = self.attempts.get_mut(&seen.attempt)?;
        let urgent = one.note(&seen, now);
        if urgent { one.tell(session) } else { None }
    }

    /// Activity of one attempt that waits; told before each of its control frames, so that order is kept.
    pub(super) fn flush(&mut self, session: SessionId, attempt: AttemptId) -> Option<Activity> {
        self.attempts.get_mut(&attempt)?.tell(session)
    }

    /// All activity that is due.
    pub(super) fn flush_due(&mut self, session: SessionId, now: Moment) -> Vec<Activity> {
        let due = |one: &&mut One| one.fresh.as_ref().is_some_and(|fresh| fresh.due <= now);
        self.attempts
            .values_mut()
            .filter(due)
            .filter_map(|one| one.tell(session))
            .collect()
    }

    pub(super) fn next_flush(&self) -> Option<Moment> {
        self.attempts
            .values()
            .filter_map(|one| one.fresh.as_ref().map(|fresh| fresh.due))
            .min()
    }
}

/// One chunk of output as the bookkeeping sees it.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) attempt: AttemptId,
    pub(super) sign: Sign,
    pub(super) tool: &'a str,
    pub(super) end: u64,
}

impl One {
    fn acked(&self) -> Acked {
        Acked {
            attempt: self.re.attempt,
            control_seq: self.acked_control,
            offset: self.acked_offset,
        }
    }

    fn note(&mut self, seen: &Seen<'_>, now: Moment) -> bool {
        let due = now + self.every_ms;
        let fresh = self.fresh.get_or_insert(Fresh {
            sign: seen.sign,
            tools: Vec::new(),
            output_end: 0,
            due,
        });
        fresh.sign = fresh.sign.max(seen.sign);
        fresh.output_end = fresh.output_end.max(seen.end);
        let known = |tools: &[Arc<str>]| tools.iter().any(|tool| **tool == *seen.tool);
        let first_of_tool =
            !seen.tool.is_empty() && !known(&self.told_tools) && self.told_tools.len() < TOOLS_MAX;
        if !seen.tool.is_empty() && !known(&fresh.tools) && fresh.tools.len() < TOOLS_MAX {
            fresh.tools.push(seen.tool.into());
        }
        if first_of_tool {
            self.told_tools.push(seen.tool.into());
        }
        Some(seen.sign) > self.told || first_of_tool
    }

    fn tell(&mut self, session: SessionId) -> Option<Activity> {
        let Fresh {
            sign,
            tools,
            output_end,
            ..
        } = self.fresh.take()?;
        self.told = self.told.max(Some(sign));
        Some(Activity {
            session,
            re: self.re,
            sign,
            tools,
            output_end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::id::{Incarnation, TaskId};
    use uuid::Uuid;

    fn held() -> (Held, SessionId, AttemptId) {
        let re = FrameRef {
            task: TaskId(Uuid::from_u128(1)),
            attempt: AttemptId(Uuid::from_u128(2)),
            number: 1,
            incarnation: Incarnation(Uuid::from_u128(3)),
        };
        let mut held = Held::default();
        held.insert(re, Some(4_000), (0, 0));
        (held, SessionId(Uuid::from_u128(4)), re.attempt)
    }

    fn chunk(attempt: AttemptId, sign: Sign, tool: &str, end: u64) -> Seen<'_> {
        Seen {
            attempt,
            sign,
            tool,
            end,
        }
    }

    #[test]
    fn firsts_are_told_at_once_and_the_rest_is_coalesced_with_its_trailing_edge() {
        let (mut held, session, attempt) = held();
        let at = Moment(1_000);
        assert!(
            held.output(session, chunk(attempt, Sign::BeforePrompt, "", 5), at)
                .is_some(),
            "what it says of itself"
        );
        assert!(
            held.output(session, chunk(attempt, Sign::Event, "", 10), at)
                .is_some(),
            "the first output"
        );
        assert!(
            held.output(session, chunk(attempt, Sign::VisibleEvent, "", 20), at)
                .is_some(),
            "the first visible"
        );
        assert!(
            held.output(session, chunk(attempt, Sign::Event, "t1", 30), at)
                .is_some(),
            "a tool's first"
        );
        assert!(
            held.output(session, chunk(attempt, Sign::VisibleEvent, "t1", 40), at)
                .is_none()
        );
        assert!(
            held.output(
                session,
                chunk(attempt, Sign::VisibleEvent, "", 50),
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
            (flushed[0].output_end, flushed[0].sign),
            (50, Sign::VisibleEvent)
        );
        assert_eq!(&*flushed[0].tools[0], "t1");
        assert_eq!(held.next_flush(), None);
    }

    #[test]
    fn an_acknowledged_last_word_frees_the_place_and_foreign_refs_are_not_held() {
        let (mut held, _, attempt) = held();
        let mut foreign = held.attempts[&attempt].re;
        assert!(held.holds(&foreign));
        foreign.number = 2;
        assert!(!held.holds(&foreign));
        held.last_word(attempt, 5);
        assert_eq!(
            held.acked_control(attempt, 4)
                .map(|acked| acked.control_seq),
            Some(4)
        );
        assert_eq!(
            held.acked_offset(attempt, 9).map(|acked| acked.offset),
            Some(9)
        );
        assert!(
            held.acked_offset(attempt, 9).is_none(),
            "nothing new to say"
        );
        assert_eq!(
            held.acked_control(attempt, 5).map(|acked| acked.offset),
            Some(9)
        );
        assert!(held.acked_control(attempt, 5).is_none());
    }
}
