//! Skipped phases, feeding, bounds and the end: how facts move the timers of one attempt.

use uuid::Uuid;

use super::*;
use crate::id::InputId;
use crate::record::{Phase, TimerKind};
use crate::spec::Profile;
use crate::time::Moment;

pub(super) const SLACK: u64 = 2_000;
pub(super) const GRACE: u64 = 5_000;

/// Eight limits, all different, so that a mix-up shows.
pub(super) fn profile() -> Profile {
    Profile {
        process_start_ms: Some(15_000),
        prompt_write_ms: Some(5_000),
        first_event_ms: Some(90_000),
        first_visible_event_ms: Some(110_000),
        stream_idle_ms: Some(120_000),
        tool_idle_ms: Some(300_000),
        user_input_ms: Some(600_000),
        cleanup_term_ms: Some(3_000),
    }
}

pub(super) fn limits(profile: &Profile) -> Limits<'_> {
    Limits {
        profile,
        queue_ms: 86_400_000,
        accept_ms: 10_000,
        total_ms: 7_200_000,
        lease_ttl_ms: 30_000,
        cleanup_term_ms: profile.cleanup_term_ms.unwrap_or(2_000),
        slack_ms: SLACK,
        grace_ms: GRACE,
    }
}

/// An attempt's timers with their profile and a clock that tests set by hand.
pub(super) struct Bench {
    pub(super) set: TimerSet,
    pub(super) profile: Profile,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::with(profile())
    }

    pub(super) fn with(profile: Profile) -> Self {
        let set = TimerSet::default();
        Self { set, profile }
    }

    /// Confirmed at moment 0 and at this phase since then.
    pub(super) fn at_phase(phase: Phase) -> Self {
        let mut bench = Self::new();
        bench.tell(0, Fact::LeaseConfirmed);
        bench.tell(0, Fact::Phase(phase));
        bench
    }

    pub(super) fn tell(&mut self, at: u64, fact: Fact) -> &mut Self {
        self.set.on_fact(&fact, Moment(at), &limits(&self.profile));
        self
    }

    pub(super) fn fires(&self, key: &TimerKey) -> Option<u64> {
        self.set.fires_at(key).map(|at| at.0)
    }
}

pub(super) fn tool(name: &str) -> ToolCallId {
    name.into()
}

pub(super) fn input(n: u128) -> InputId {
    InputId(Uuid::from_u128(n))
}

/// This phase and every later one: a later phase implies the earlier.
pub(super) fn from(phase: Phase) -> Vec<Fact> {
    let once = [
        Phase::Accepted,
        Phase::Queued,
        Phase::Started,
        Phase::AgentStarted,
        Phase::PromptWritten,
        Phase::FirstEventSeen,
        Phase::FirstVisibleEventSeen,
    ];
    let later = once.into_iter().filter(|step| *step >= phase);
    let mut facts: Vec<Fact> = later.map(Fact::Phase).collect();
    facts.push(Fact::Phase(Phase::CleanupStarted));
    facts.push(Fact::CancelSent);
    facts
}

pub(super) fn agent_acts() -> Vec<Fact> {
    vec![
        Fact::Output { tool: None },
        Fact::ToolStarted(tool("x")),
        Fact::InputAsked(input(9)),
    ]
}

#[test]
fn a_skipped_phase_arms_what_outlives_it() {
    let mut bench = Bench::new();
    bench.tell(0, Fact::Offered);
    bench.tell(500, Fact::Phase(Phase::FirstEventSeen));
    assert_eq!(bench.fires(&TimerKey::FirstVisibleEvent), Some(112_500));
    assert_eq!(bench.fires(&TimerKey::StreamIdle), Some(122_500));
    for gone in [
        TimerKey::Accept,
        TimerKey::ProcessStart,
        TimerKey::PromptWrite,
        TimerKey::FirstEvent,
    ] {
        assert!(!bench.set.is_armed(&gone), "{gone:?}");
    }
    assert_eq!(bench.set.reached(), Some(Phase::FirstEventSeen));
}

#[test]
fn a_phase_that_comes_twice_or_backwards_changes_nothing() {
    let mut bench = Bench::at_phase(Phase::FirstEventSeen);
    let before = bench.set.clone();
    for phase in [
        Phase::Started,
        Phase::AgentStarted,
        Phase::PromptWritten,
        Phase::FirstEventSeen,
    ] {
        bench.tell(60_000, Fact::Phase(phase));
    }
    assert_eq!(bench.set, before);
}

#[test]
fn heartbeats_feed_nothing_and_every_other_phase_feeds_stream_idle() {
    let mut bench = Bench::at_phase(Phase::FirstEventSeen);
    for second in 1..100 {
        bench.tell(second * 1_000, Fact::Phase(Phase::Heartbeat));
    }
    assert_eq!(bench.fires(&TimerKey::StreamIdle), Some(122_000));
    bench.tell(100_000, Fact::Phase(Phase::Checkpointed));
    assert_eq!(bench.fires(&TimerKey::StreamIdle), Some(222_000));
    bench.tell(110_000, Fact::Output { tool: None });
    assert_eq!(bench.fires(&TimerKey::StreamIdle), Some(232_000));
    // Coalesced activity may be told late: it counts from its own moment and takes nothing back.
    bench.tell(105_000, Fact::Output { tool: None });
    assert_eq!(bench.fires(&TimerKey::StreamIdle), Some(232_000));
}

#[test]
fn tools_are_timed_one_by_one_and_only_their_own_output_feeds_them() {
    let mut bench = Bench::at_phase(Phase::FirstVisibleEventSeen);
    bench.tell(0, Fact::ToolStarted(tool("a")));
    bench.tell(10_000, Fact::ToolStarted(tool("b")));
    bench.tell(
        20_000,
        Fact::Output {
            tool: Some(tool("b")),
        },
    );
    bench.tell(30_000, Fact::Output { tool: None });
    assert_eq!(bench.fires(&TimerKey::ToolIdle(tool("a"))), Some(302_000));
    assert_eq!(bench.fires(&TimerKey::ToolIdle(tool("b"))), Some(322_000));
    bench.tell(40_000, Fact::ToolFinished(tool("a")));
    assert!(!bench.set.is_armed(&TimerKey::ToolIdle(tool("a"))));
    assert_eq!(bench.set.take_due(Moment(322_000)), Some(TimerKey::Lease));
    let due = bench.set.take_due(Moment(322_000));
    assert_eq!(due, Some(TimerKey::ToolIdle(tool("b"))));
}

#[test]
fn an_empty_profile_arms_only_the_relays_own_timers_and_a_kill() {
    for profile in [Profile::default(), {
        Profile {
            process_start_ms: Some(0),
            prompt_write_ms: Some(0),
            first_event_ms: Some(0),
            first_visible_event_ms: Some(0),
            stream_idle_ms: Some(0),
            tool_idle_ms: Some(0),
            user_input_ms: Some(0),
            cleanup_term_ms: None,
        }
    }] {
        let mut bench = Bench::with(profile);
        bench.tell(0, Fact::Offered).tell(0, Fact::LeaseConfirmed);
        for fact in [from(Phase::Started), agent_acts()].concat() {
            if !matches!(fact, Fact::CancelSent | Fact::Phase(Phase::CleanupStarted)) {
                bench.tell(1, fact);
            }
        }
        let kinds = |set: &TimerSet| -> Vec<TimerKind> {
            set.budgets(Moment(1)).iter().map(|b| b.timer).collect()
        };
        assert_eq!(kinds(&bench.set), [TimerKind::Total, TimerKind::Lease]);
        bench.tell(2, Fact::CancelSent);
        assert_eq!(bench.fires(&TimerKey::CleanupTerm), Some(2 + 2_000 + SLACK));
    }
}

#[test]
fn a_lease_lasts_from_its_newest_renewal_plus_grace_and_never_shrinks() {
    let mut bench = Bench::new();
    bench.tell(0, Fact::Offered);
    bench.tell(4_000, Fact::LeaseConfirmed);
    assert_eq!(bench.fires(&TimerKey::Lease), Some(39_000));
    bench.tell(
        5_000,
        Fact::Renewed {
            until: Moment(605_000),
        },
    );
    bench.tell(
        9_000,
        Fact::Renewed {
            until: Moment(39_000),
        },
    );
    assert_eq!(bench.fires(&TimerKey::Lease), Some(610_000));
    let shown: Vec<Armed> = bench.set.armed().collect();
    assert!(shown.contains(&Armed::Running {
        key: TimerKey::Lease,
        limit_ms: 30_000,
        limit_at: Moment(605_000),
        fires_at: Moment(610_000),
    }));
    bench.tell(10_000, Fact::Ended);
    bench.tell(
        11_000,
        Fact::Renewed {
            until: Moment(900_000),
        },
    );
    assert_eq!(bench.set.next(), None);
}

#[test]
fn nothing_new_is_timed_once_cleanup_has_begun() {
    let mut bench = Bench::at_phase(Phase::PromptWritten);
    bench.tell(1_000, Fact::CancelSent);
    for fact in [from(Phase::FirstEventSeen), agent_acts()].concat() {
        bench.tell(2_000, fact);
    }
    let kinds: Vec<TimerKind> = bench
        .set
        .budgets(Moment(2_000))
        .iter()
        .map(|b| b.timer)
        .collect();
    assert_eq!(
        kinds,
        [TimerKind::CleanupTerm, TimerKind::Total, TimerKind::Lease]
    );
    assert_eq!(bench.fires(&TimerKey::CleanupTerm), Some(6_000));
}

#[test]
fn an_ended_attempt_hears_nothing() {
    let mut bench = Bench::at_phase(Phase::FirstEventSeen);
    bench.tell(1, Fact::Ended);
    for fact in [
        from(Phase::Accepted),
        agent_acts(),
        vec![Fact::Queued, Fact::Offered],
    ]
    .concat()
    {
        bench.tell(2, fact);
    }
    assert_eq!((bench.set.next(), bench.set.armed().count()), (None, 0));
}

#[test]
fn open_tools_and_inputs_are_bounded() {
    let mut bench = Bench::at_phase(Phase::FirstEventSeen);
    for n in 0..MAX_OPEN as u128 + 3 {
        bench.tell(0, Fact::ToolStarted(tool(&n.to_string())));
        bench.tell(0, Fact::InputAsked(input(n)));
    }
    assert_eq!(bench.set.untracked(), 3);
    assert!(!bench.set.has_room_for_input());
    assert_eq!(bench.set.armed().count(), 2 * MAX_OPEN + 3);
    bench.tell(0, Fact::InputClosed(input(0)));
    assert!(bench.set.has_room_for_input());
}
