//! How facts change the timers of one attempt: skipped phases, restarts, bounds and the end.

use uuid::Uuid;

use super::*;
use crate::ids::InputId;
use crate::record::{LifecyclePhase, TimerKind};
use crate::task::spec::DeadlineProfile;
use crate::time::MonotonicTime;

pub(super) const SLACK: u64 = 2_000;
pub(super) const GRACE: u64 = 5_000;

/// Eight different limits, so that a mix-up of two timers fails a test.
pub(super) fn profile() -> DeadlineProfile {
    DeadlineProfile {
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

pub(super) fn limits(profile: &DeadlineProfile) -> TimerLimits<'_> {
    TimerLimits {
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

/// An attempt's timers with their profile; tests pass the time explicitly.
pub(super) struct TimerSetFixture {
    pub(super) set: TimerSet,
    pub(super) profile: DeadlineProfile,
}

impl TimerSetFixture {
    pub(super) fn new() -> Self {
        Self::with(profile())
    }

    pub(super) fn with(profile: DeadlineProfile) -> Self {
        let set = TimerSet::default();
        Self { set, profile }
    }

    /// Confirmed and at this phase since time 0.
    pub(super) fn at_phase(phase: LifecyclePhase) -> Self {
        let mut fixture = Self::new();
        fixture.apply_fact(0, TimerFact::LeaseConfirmed);
        fixture.apply_fact(0, TimerFact::Phase(phase));
        fixture
    }

    pub(super) fn apply_fact(&mut self, at: u64, fact: TimerFact) -> &mut Self {
        self.set
            .on_fact(&fact, MonotonicTime(at), &limits(&self.profile));
        self
    }

    pub(super) fn fires_at_ms(&self, key: &TimerKey) -> Option<u64> {
        self.set.fires_at(key).map(|at| at.0)
    }
}

pub(super) fn tool(name: &str) -> ToolCallId {
    name.into()
}

pub(super) fn input(n: u128) -> InputId {
    InputId(Uuid::from_u128(n))
}

/// This phase and every later one, because a later phase implies the earlier ones.
pub(super) fn phases_from(phase: LifecyclePhase) -> Vec<TimerFact> {
    let once = [
        LifecyclePhase::Accepted,
        LifecyclePhase::Queued,
        LifecyclePhase::Started,
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstEventSeen,
        LifecyclePhase::FirstVisibleEventSeen,
    ];
    let later = once.into_iter().filter(|step| *step >= phase);
    let mut facts: Vec<TimerFact> = later.map(TimerFact::Phase).collect();
    facts.push(TimerFact::Phase(LifecyclePhase::CleanupStarted));
    facts.push(TimerFact::CancelSent);
    facts
}

pub(super) fn agent_activity() -> Vec<TimerFact> {
    vec![
        TimerFact::Output { tool: None },
        TimerFact::ToolStarted(tool("x")),
        TimerFact::InputAsked(input(9)),
    ]
}

#[test]
fn a_skipped_phase_arms_the_timers_that_outlast_it() {
    let mut fixture = TimerSetFixture::new();
    fixture.apply_fact(0, TimerFact::Offered);
    fixture.apply_fact(500, TimerFact::Phase(LifecyclePhase::FirstEventSeen));
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::FirstVisibleEvent),
        Some(112_500)
    );
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), Some(122_500));
    for gone in [
        TimerKey::Accept,
        TimerKey::ProcessStart,
        TimerKey::PromptWrite,
        TimerKey::FirstEvent,
    ] {
        assert!(!fixture.set.is_armed(&gone), "{gone:?}");
    }
    assert_eq!(fixture.set.reached(), Some(LifecyclePhase::FirstEventSeen));
}

#[test]
fn a_repeated_or_earlier_phase_changes_nothing() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    let before = fixture.set.clone();
    for phase in [
        LifecyclePhase::Started,
        LifecyclePhase::AgentStarted,
        LifecyclePhase::PromptWritten,
        LifecyclePhase::FirstEventSeen,
    ] {
        fixture.apply_fact(60_000, TimerFact::Phase(phase));
    }
    assert_eq!(fixture.set, before);
}

#[test]
fn every_phase_except_heartbeat_restarts_stream_idle() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    for second in 1..100 {
        fixture.apply_fact(second * 1_000, TimerFact::Phase(LifecyclePhase::Heartbeat));
    }
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), Some(122_000));
    fixture.apply_fact(100_000, TimerFact::Phase(LifecyclePhase::Checkpointed));
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), Some(222_000));
    fixture.apply_fact(110_000, TimerFact::Output { tool: None });
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), Some(232_000));
    // Coalesced activity may be applied late. It counts from its own time and shortens nothing.
    fixture.apply_fact(105_000, TimerFact::Output { tool: None });
    assert_eq!(fixture.fires_at_ms(&TimerKey::StreamIdle), Some(232_000));
}

#[test]
fn only_its_own_output_restarts_a_tool_timer() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstVisibleEventSeen);
    fixture.apply_fact(0, TimerFact::ToolStarted(tool("a")));
    fixture.apply_fact(10_000, TimerFact::ToolStarted(tool("b")));
    fixture.apply_fact(
        20_000,
        TimerFact::Output {
            tool: Some(tool("b")),
        },
    );
    fixture.apply_fact(30_000, TimerFact::Output { tool: None });
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::ToolIdle(tool("a"))),
        Some(302_000)
    );
    assert_eq!(
        fixture.fires_at_ms(&TimerKey::ToolIdle(tool("b"))),
        Some(322_000)
    );
    fixture.apply_fact(40_000, TimerFact::ToolFinished(tool("a")));
    assert!(!fixture.set.is_armed(&TimerKey::ToolIdle(tool("a"))));
    assert_eq!(
        fixture.set.take_due(MonotonicTime(322_000)),
        Some(TimerKey::Lease)
    );
    let due = fixture.set.take_due(MonotonicTime(322_000));
    assert_eq!(due, Some(TimerKey::ToolIdle(tool("b"))));
}

#[test]
fn an_empty_profile_arms_only_relay_timers_and_cleanup() {
    for profile in [DeadlineProfile::default(), {
        DeadlineProfile {
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
        let mut fixture = TimerSetFixture::with(profile);
        fixture
            .apply_fact(0, TimerFact::Offered)
            .apply_fact(0, TimerFact::LeaseConfirmed);
        for fact in [phases_from(LifecyclePhase::Started), agent_activity()].concat() {
            if !matches!(
                fact,
                TimerFact::CancelSent | TimerFact::Phase(LifecyclePhase::CleanupStarted)
            ) {
                fixture.apply_fact(1, fact);
            }
        }
        let kinds = |set: &TimerSet| -> Vec<TimerKind> {
            set.budgets(MonotonicTime(1))
                .iter()
                .map(|b| b.timer)
                .collect()
        };
        assert_eq!(kinds(&fixture.set), [TimerKind::Total, TimerKind::Lease]);
        fixture.apply_fact(2, TimerFact::CancelSent);
        assert_eq!(
            fixture.fires_at_ms(&TimerKey::CleanupTerm),
            Some(2 + 2_000 + SLACK)
        );
    }
}

#[test]
fn a_lease_lasts_from_its_newest_renewal_plus_grace_and_never_shrinks() {
    let mut fixture = TimerSetFixture::new();
    fixture.apply_fact(0, TimerFact::Offered);
    fixture.apply_fact(4_000, TimerFact::LeaseConfirmed);
    assert_eq!(fixture.fires_at_ms(&TimerKey::Lease), Some(39_000));
    fixture.apply_fact(
        5_000,
        TimerFact::Renewed {
            until: MonotonicTime(605_000),
        },
    );
    fixture.apply_fact(
        9_000,
        TimerFact::Renewed {
            until: MonotonicTime(39_000),
        },
    );
    assert_eq!(fixture.fires_at_ms(&TimerKey::Lease), Some(610_000));
    let shown: Vec<ArmedTimerView> = fixture.set.armed_timers().collect();
    assert!(shown.contains(&ArmedTimerView::Running {
        key: TimerKey::Lease,
        limit_ms: 30_000,
        limit_at: MonotonicTime(605_000),
        fires_at: MonotonicTime(610_000),
    }));
    fixture.apply_fact(10_000, TimerFact::Ended);
    fixture.apply_fact(
        11_000,
        TimerFact::Renewed {
            until: MonotonicTime(900_000),
        },
    );
    assert_eq!(fixture.set.next_due_at(), None);
}

#[test]
fn no_timer_is_armed_after_cleanup_has_started() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::PromptWritten);
    fixture.apply_fact(1_000, TimerFact::CancelSent);
    for fact in [
        phases_from(LifecyclePhase::FirstEventSeen),
        agent_activity(),
    ]
    .concat()
    {
        fixture.apply_fact(2_000, fact);
    }
    let kinds: Vec<TimerKind> = fixture
        .set
        .budgets(MonotonicTime(2_000))
        .iter()
        .map(|b| b.timer)
        .collect();
    assert_eq!(
        kinds,
        [TimerKind::CleanupTerm, TimerKind::Total, TimerKind::Lease]
    );
    assert_eq!(fixture.fires_at_ms(&TimerKey::CleanupTerm), Some(6_000));
}

#[test]
fn facts_after_the_end_arm_no_timer() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    fixture.apply_fact(1, TimerFact::Ended);
    for fact in [
        phases_from(LifecyclePhase::Accepted),
        agent_activity(),
        vec![TimerFact::Queued, TimerFact::Offered],
    ]
    .concat()
    {
        fixture.apply_fact(2, fact);
    }
    assert_eq!(
        (
            fixture.set.next_due_at(),
            fixture.set.armed_timers().count()
        ),
        (None, 0)
    );
}

#[test]
fn open_tools_and_inputs_are_bounded() {
    let mut fixture = TimerSetFixture::at_phase(LifecyclePhase::FirstEventSeen);
    for n in 0..MAX_OPEN as u128 + 3 {
        fixture.apply_fact(0, TimerFact::ToolStarted(tool(&n.to_string())));
        fixture.apply_fact(0, TimerFact::InputAsked(input(n)));
    }
    assert_eq!(fixture.set.untracked(), 3);
    assert!(!fixture.set.has_room_for_input());
    assert_eq!(fixture.set.armed_timers().count(), 2 * MAX_OPEN + 3);
    fixture.apply_fact(0, TimerFact::InputClosed(input(0)));
    assert!(fixture.set.has_room_for_input());
}
