//! The deadline profile as the daemon enforces it: the same table as the relay's, without slack, so
//! that the kill is quick and the relay's timers are the second line. Pure: facts and time come in,
//! the first expired deadline comes out. cleanup_term is not here; it is the ladder's grace.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::phases::{OncePhase, PhaseOrder};

/// The effective profile of one attempt. `None` means not armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlines {
    pub process_start: Option<Duration>,
    pub prompt_write: Option<Duration>,
    pub first_event: Option<Duration>,
    pub first_visible_event: Option<Duration>,
    pub stream_idle: Option<Duration>,
    pub tool_idle: Option<Duration>,
    pub cleanup_term: Option<Duration>,
}

/// A deadline that ended the attempt, with the failure code that the relay uses for it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeadlineKind {
    ProcessStart,
    PromptWrite,
    FirstEvent,
    FirstVisibleEvent,
    StreamIdle,
    ToolIdle,
}

impl DeadlineKind {
    pub fn failure_code(self) -> &'static str {
        match self {
            Self::ProcessStart => "process_start_timeout",
            Self::PromptWrite => "prompt_write_timeout",
            Self::FirstEvent => "no_first_event_timeout",
            Self::FirstVisibleEvent => "no_visible_event_timeout",
            Self::StreamIdle => "stream_idle_timeout",
            Self::ToolIdle => "tool_idle_timeout",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::ProcessStart => "process_start",
            Self::PromptWrite => "prompt_write",
            Self::FirstEvent => "first_event",
            Self::FirstVisibleEvent => "first_visible_event",
            Self::StreamIdle => "stream_idle",
            Self::ToolIdle => "tool_idle",
        }
    }
}

/// What happened in the attempt, as far as a timer cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Entered(OncePhase),
    /// Output or an event of the agent. Heartbeats are not activity.
    Activity {
        tool_call_id: Option<String>,
    },
    ToolStarted(String),
    ToolFinished(String),
    InputOpened,
    InputClosed,
}

/// A timer that can stand still. While it does, only what is left of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    Running(Moment),
    Paused(Duration),
}

impl Timer {
    fn pause(&mut self, now: Moment) {
        if let Self::Running(at) = *self {
            *self = Self::Paused(now.until(at));
        }
    }

    fn resume(&mut self, now: Moment) {
        if let Self::Paused(left) = *self {
            *self = Self::Running(now.after(left));
        }
    }
}

#[derive(Debug)]
pub struct Timers {
    limits: Deadlines,
    order: PhaseOrder,
    armed: BTreeMap<DeadlineKind, Timer>,
    tools: BTreeMap<String, Option<Timer>>,
    open_inputs: u32,
    /// The reader is held back because the relay is slow; silence is then not the agent's.
    held_back: bool,
}

impl Timers {
    pub fn new(limits: Deadlines) -> Self {
        Self {
            limits,
            order: PhaseOrder::default(),
            armed: BTreeMap::new(),
            tools: BTreeMap::new(),
            open_inputs: 0,
            held_back: false,
        }
    }

    pub fn apply(&mut self, fact: Fact, now: Moment) {
        match fact {
            Fact::Entered(phase) => self.enter(phase, now),
            Fact::Activity { tool_call_id } => self.on_activity(tool_call_id, now),
            Fact::ToolStarted(id) => {
                self.armed.remove(&DeadlineKind::FirstVisibleEvent);
                self.tools.insert(
                    id,
                    self.limits.tool_idle.map(|l| Timer::Running(now.after(l))),
                );
            }
            Fact::ToolFinished(id) => {
                self.tools.remove(&id);
                self.arm(DeadlineKind::StreamIdle, now);
            }
            Fact::InputOpened => self.open_inputs += 1,
            Fact::InputClosed => self.open_inputs = self.open_inputs.saturating_sub(1),
        }
        self.settle_pauses(now);
    }

    /// While the reader is held back, stream_idle and tool_idle stand still.
    pub fn hold_back(&mut self, held: bool, now: Moment) {
        self.held_back = held;
        self.settle_pauses(now);
    }

    pub fn next_deadline(&self) -> Option<Moment> {
        self.running().map(|(at, _)| at).min()
    }

    /// The deadline that passed first, if any has: equal to its limit counts as passed.
    pub fn expired(&self, now: Moment) -> Option<DeadlineKind> {
        self.running()
            .filter(|(at, _)| *at <= now)
            .min()
            .map(|(_, kind)| kind)
    }

    fn running(&self) -> impl Iterator<Item = (Moment, DeadlineKind)> + '_ {
        let tools = self
            .tools
            .values()
            .flatten()
            .map(|timer| (DeadlineKind::ToolIdle, *timer));
        self.armed
            .iter()
            .map(|(kind, timer)| (*kind, *timer))
            .chain(tools)
            .filter_map(|(kind, timer)| match timer {
                Timer::Running(at) => Some((at, kind)),
                Timer::Paused(_) => None,
            })
    }

    fn enter(&mut self, phase: OncePhase, now: Moment) {
        let prompted = self.order.reached(OncePhase::PromptWritten);
        if !self.order.enter(phase) {
            return;
        }
        if phase >= OncePhase::CleanupStarted {
            self.armed.clear();
            self.tools.clear();
            return;
        }
        self.disarm_before(phase);
        if phase == OncePhase::Started {
            self.arm(DeadlineKind::ProcessStart, now);
        }
        if phase == OncePhase::AgentStarted {
            self.arm(DeadlineKind::PromptWrite, now);
        }
        if phase == OncePhase::PromptWritten {
            self.arm(DeadlineKind::FirstEvent, now);
        }
        // Skipping prompt_written implies it, and so arms what it would have armed.
        if !prompted
            && phase >= OncePhase::PromptWritten
            && phase < OncePhase::FirstVisibleEventSeen
        {
            self.arm(DeadlineKind::FirstVisibleEvent, now);
        }
        if phase >= OncePhase::FirstEventSeen {
            self.arm(DeadlineKind::StreamIdle, now);
        }
    }

    fn disarm_before(&mut self, phase: OncePhase) {
        let ended_by = [
            (DeadlineKind::ProcessStart, OncePhase::AgentStarted),
            (DeadlineKind::PromptWrite, OncePhase::PromptWritten),
            (DeadlineKind::FirstEvent, OncePhase::FirstEventSeen),
            (
                DeadlineKind::FirstVisibleEvent,
                OncePhase::FirstVisibleEventSeen,
            ),
        ];
        for (kind, end) in ended_by {
            if phase >= end {
                self.armed.remove(&kind);
            }
        }
    }

    fn on_activity(&mut self, tool_call_id: Option<String>, now: Moment) {
        if let Some(slot) = tool_call_id.and_then(|id| self.tools.get_mut(&id)) {
            *slot = self
                .limits
                .tool_idle
                .map(|limit| Timer::Running(now.after(limit)));
        }
        if self.armed.contains_key(&DeadlineKind::StreamIdle) {
            self.arm(DeadlineKind::StreamIdle, now);
        }
    }

    fn arm(&mut self, kind: DeadlineKind, now: Moment) {
        let past_events = self.order.reached(OncePhase::CleanupStarted);
        let limit = match kind {
            DeadlineKind::ProcessStart => self.limits.process_start,
            DeadlineKind::PromptWrite => self.limits.prompt_write,
            DeadlineKind::FirstEvent => self.limits.first_event,
            DeadlineKind::FirstVisibleEvent => self.limits.first_visible_event,
            // Idle time counts only between events: before the first one, first_event does.
            DeadlineKind::StreamIdle if !self.order.reached(OncePhase::FirstEventSeen) => None,
            DeadlineKind::StreamIdle => self.limits.stream_idle,
            DeadlineKind::ToolIdle => self.limits.tool_idle,
        };
        if let Some(limit) = limit.filter(|_| !past_events) {
            self.armed.insert(kind, Timer::Running(now.after(limit)));
        }
    }

    fn settle_pauses(&mut self, now: Moment) {
        let waiting = self.open_inputs > 0;
        let idle_stands = waiting || self.held_back || !self.tools.is_empty();
        for (kind, timer) in &mut self.armed {
            let stands = match kind {
                DeadlineKind::StreamIdle => idle_stands,
                DeadlineKind::FirstVisibleEvent => waiting,
                DeadlineKind::ProcessStart
                | DeadlineKind::PromptWrite
                | DeadlineKind::FirstEvent
                | DeadlineKind::ToolIdle => false,
            };
            if stands {
                timer.pause(now)
            } else {
                timer.resume(now)
            }
        }
        for timer in self.tools.values_mut().flatten() {
            if waiting || self.held_back {
                timer.pause(now)
            } else {
                timer.resume(now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn all(limit: u64) -> Deadlines {
        let limit = Some(Duration::from_millis(limit));
        Deadlines {
            process_start: limit,
            prompt_write: limit,
            first_event: limit,
            first_visible_event: limit,
            stream_idle: limit,
            tool_idle: limit,
            cleanup_term: limit,
        }
    }

    fn entered(timers: &mut Timers, phases: &[(OncePhase, u64)]) {
        for (phase, millis) in phases {
            timers.apply(Fact::Entered(*phase), at(*millis));
        }
    }

    fn activity() -> Fact {
        Fact::Activity { tool_call_id: None }
    }

    #[test]
    fn each_phase_arms_its_deadline_and_ends_the_one_before() {
        let mut timers = Timers::new(all(100));
        let steps = [
            (OncePhase::Started, DeadlineKind::ProcessStart),
            (OncePhase::AgentStarted, DeadlineKind::PromptWrite),
            (OncePhase::PromptWritten, DeadlineKind::FirstEvent),
        ];
        for (index, (phase, kind)) in steps.into_iter().enumerate() {
            let now = index as u64 * 10;
            timers.apply(Fact::Entered(phase), at(now));
            assert_eq!(timers.expired(at(now + 99)), None);
            assert_eq!(timers.expired(at(now + 100)), Some(kind));
        }
        timers.apply(Fact::Entered(OncePhase::FirstEventSeen), at(50));
        // first_visible_event still counts from prompt_written.
        assert_eq!(
            timers.expired(at(120)),
            Some(DeadlineKind::FirstVisibleEvent)
        );
        timers.apply(Fact::Entered(OncePhase::FirstVisibleEventSeen), at(60));
        assert_eq!(timers.expired(at(160)), Some(DeadlineKind::StreamIdle));
        timers.apply(activity(), at(150));
        assert_eq!(timers.next_deadline(), Some(at(250)));
        timers.apply(Fact::Entered(OncePhase::CleanupStarted), at(200));
        timers.apply(activity(), at(201));
        assert_eq!(timers.next_deadline(), None);
    }

    #[test]
    fn empty_and_partial_profiles_arm_only_what_they_name() {
        let phases = [
            (OncePhase::Started, 0),
            (OncePhase::AgentStarted, 1),
            (OncePhase::PromptWritten, 2),
            (OncePhase::FirstEventSeen, 3),
        ];
        let mut none = Timers::new(Deadlines::default());
        entered(&mut none, &phases);
        none.apply(Fact::ToolStarted("t".into()), at(4));
        assert_eq!(none.next_deadline(), None);
        let limit = Some(Duration::from_millis(100));
        let mut partial = Timers::new(Deadlines {
            stream_idle: limit,
            ..Deadlines::default()
        });
        entered(&mut partial, &phases);
        assert_eq!(partial.next_deadline(), Some(at(103)));
    }

    #[test]
    fn skipping_prompt_written_ends_its_timer_and_arms_what_follows() {
        let mut timers = Timers::new(all(100));
        entered(
            &mut timers,
            &[
                (OncePhase::AgentStarted, 0),
                (OncePhase::FirstEventSeen, 40),
            ],
        );
        assert_eq!(timers.expired(at(139)), None);
        assert_eq!(
            timers.expired(at(140)),
            Some(DeadlineKind::FirstVisibleEvent)
        );
        timers.apply(Fact::Entered(OncePhase::PromptWritten), at(90));
        assert_eq!(
            timers.expired(at(140)),
            Some(DeadlineKind::FirstVisibleEvent)
        );
    }

    #[test]
    fn stream_idle_stands_still_while_a_tool_runs_and_each_tool_has_its_own_timer() {
        let mut timers = Timers::new(all(100));
        entered(&mut timers, &[(OncePhase::FirstVisibleEventSeen, 0)]);
        timers.apply(Fact::ToolStarted("a".into()), at(60));
        timers.apply(Fact::ToolStarted("b".into()), at(70));
        assert_eq!(timers.expired(at(160)), Some(DeadlineKind::ToolIdle));
        timers.apply(
            Fact::Activity {
                tool_call_id: Some("a".into()),
            },
            at(150),
        );
        assert_eq!(timers.next_deadline(), Some(at(170)));
        timers.apply(Fact::ToolFinished("b".into()), at(165));
        assert_eq!(timers.next_deadline(), Some(at(250)));
        timers.apply(Fact::ToolFinished("a".into()), at(200));
        assert_eq!(timers.expired(at(300)), Some(DeadlineKind::StreamIdle));
    }

    #[test]
    fn waiting_for_a_person_pauses_and_resumes_with_what_was_left() {
        let mut timers = Timers::new(all(100));
        entered(
            &mut timers,
            &[
                (OncePhase::PromptWritten, 0),
                (OncePhase::FirstEventSeen, 10),
            ],
        );
        timers.apply(Fact::ToolStarted("t".into()), at(20));
        timers.apply(Fact::InputOpened, at(50));
        assert_eq!(timers.next_deadline(), None);
        timers.apply(Fact::InputOpened, at(60));
        timers.apply(Fact::InputClosed, at(900));
        assert_eq!(timers.next_deadline(), None);
        timers.apply(Fact::InputClosed, at(1_000));
        // 70 ms of tool_idle were left when the first input opened.
        assert_eq!(timers.expired(at(1_070)), Some(DeadlineKind::ToolIdle));
        assert_eq!(timers.expired(at(1_069)), None);
    }

    #[test]
    fn a_slow_relay_does_not_count_as_a_silent_agent() {
        let mut timers = Timers::new(all(100));
        entered(&mut timers, &[(OncePhase::FirstVisibleEventSeen, 0)]);
        timers.hold_back(true, at(40));
        assert_eq!(timers.next_deadline(), None);
        timers.hold_back(false, at(5_000));
        assert_eq!(timers.next_deadline(), Some(at(5_060)));
    }
}
