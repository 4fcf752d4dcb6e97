//! Deadline profiles: the defaults by turn kind, the profile a task gets, and the accepted
//! ranges.
//!
//! An absent, an empty and a partial profile are different requests: only an absent one is
//! filled with defaults. The stored request is never changed here.

use std::fmt;

use crate::config::Config;
use crate::task::spec::{DeadlineProfile, RequestedProfile, TaskSpec, TurnKind};

/// Lease ttl of a task that requests none.
pub const DEFAULT_LEASE_TTL_MS: u64 = 30_000;
pub use baton_validation::limits::LEASE_TTL_MIN_MS;

const HOUR_MS: u64 = 3_600_000;
/// Total deadline of a turn that only fetches or names something.
const SHORT_TOTAL_MS: u64 = 120_000;
const MAX_MS: u64 = 7 * 24 * HOUR_MS;
const MAX_QUEUE_MS: u64 = 30 * 24 * HOUR_MS;
const MAX_CLEANUP_TERM_MS: u64 = 600_000;

/// The profile that the relay enforces. `named` looks up a stored profile.
pub fn effective_profile(
    spec: &TaskSpec,
    named: impl FnOnce(&str) -> Option<DeadlineProfile>,
) -> Result<DeadlineProfile, UnknownProfile> {
    match &spec.requested_profile {
        RequestedProfile::Absent if spec.argv.is_empty() => Ok(default_for_turn(spec.turn_kind)),
        RequestedProfile::Absent => Ok(default_for_command()),
        RequestedProfile::Named(name) => named(name).ok_or_else(|| UnknownProfile(name.clone())),
        RequestedProfile::Inline(profile) => Ok(profile.clone()),
    }
}

/// The profile of a command that requests none. A silent agent is stuck, but a silent command
/// may be working, so only its start, its cleanup and its total time are limited.
fn default_for_command() -> DeadlineProfile {
    DeadlineProfile {
        process_start_ms: Some(15_000),
        prompt_write_ms: Some(5_000),
        cleanup_term_ms: Some(2_000),
        ..DeadlineProfile::default()
    }
}

/// The profile of an agent's task that requests none.
pub fn default_for_turn(turn: TurnKind) -> DeadlineProfile {
    let start = DeadlineProfile {
        process_start_ms: Some(15_000),
        prompt_write_ms: Some(5_000),
        ..DeadlineProfile::default()
    };
    match turn {
        TurnKind::User => DeadlineProfile {
            first_event_ms: Some(90_000),
            first_visible_event_ms: Some(120_000),
            stream_idle_ms: Some(120_000),
            tool_idle_ms: Some(300_000),
            user_input_ms: Some(600_000),
            cleanup_term_ms: Some(2_000),
            ..start
        },
        TurnKind::Compact => DeadlineProfile {
            first_event_ms: Some(90_000),
            stream_idle_ms: Some(300_000),
            ..start
        },
        TurnKind::SessionTitle | TurnKind::ContextStats | TurnKind::Control => DeadlineProfile {
            first_event_ms: Some(30_000),
            stream_idle_ms: Some(30_000),
            ..start
        },
    }
}

/// Total time of one attempt from its confirmation: as requested, or the default of its turn
/// kind.
pub fn total_ms(spec: &TaskSpec, config: &Config) -> u64 {
    spec.total_ms.unwrap_or(match spec.turn_kind {
        TurnKind::User | TurnKind::Compact => config.total_ms,
        TurnKind::SessionTitle | TurnKind::ContextStats | TurnKind::Control => SHORT_TOTAL_MS,
    })
}

/// How long one attempt may wait for a daemon.
pub fn queue_ms(spec: &TaskSpec, config: &Config) -> u64 {
    spec.queue_ms.unwrap_or(config.queue_ms)
}

/// Time between TERM and KILL. Also set for an empty profile: without a limit, a process that
/// ignores TERM would never be killed.
pub fn cleanup_term_ms(profile: &DeadlineProfile, config: &Config) -> u64 {
    match profile.cleanup_term_ms {
        None | Some(0) => config.cleanup_term_ms,
        Some(ms) => ms,
    }
}

/// Refuses deadlines over a week and a cleanup term over ten minutes, which are surely
/// mistakes.
pub fn check_profile(profile: &DeadlineProfile) -> Result<(), DeadlineOutOfRange> {
    let fields = [
        ("process_start", profile.process_start_ms, MAX_MS),
        ("prompt_write", profile.prompt_write_ms, MAX_MS),
        ("first_event", profile.first_event_ms, MAX_MS),
        (
            "first_visible_event",
            profile.first_visible_event_ms,
            MAX_MS,
        ),
        ("stream_idle", profile.stream_idle_ms, MAX_MS),
        ("tool_idle", profile.tool_idle_ms, MAX_MS),
        ("user_input", profile.user_input_ms, MAX_MS),
        ("cleanup_term", profile.cleanup_term_ms, MAX_CLEANUP_TERM_MS),
    ];
    fields
        .into_iter()
        .try_for_each(|(name, ms, max_ms)| check_range(name, ms.unwrap_or(0), 0, max_ms))
}

/// Checks `queue`, which like `total` is not part of the profile and cannot be switched off.
pub fn check_queue(ms: u64) -> Result<(), DeadlineOutOfRange> {
    check_range("queue", ms, 1, MAX_QUEUE_MS)
}

pub fn check_total(ms: u64) -> Result<(), DeadlineOutOfRange> {
    check_range("total", ms, 1, MAX_MS)
}

pub fn check_lease_ttl(ms: u64, config: &Config) -> Result<(), DeadlineOutOfRange> {
    check_range("lease", ms, LEASE_TTL_MIN_MS, config.max_lease_ms)
}

fn check_range(
    name: &'static str,
    ms: u64,
    min_ms: u64,
    max_ms: u64,
) -> Result<(), DeadlineOutOfRange> {
    if (min_ms..=max_ms).contains(&ms) {
        return Ok(());
    }
    Err(DeadlineOutOfRange {
        name,
        ms,
        min_ms,
        max_ms,
    })
}

/// The request names a profile that is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProfile(pub String);

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no deadline profile is called {:?}; `baton profile list` shows the stored profiles",
            self.0
        )
    }
}

impl std::error::Error for UnknownProfile {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineOutOfRange {
    pub name: &'static str,
    pub ms: u64,
    pub min_ms: u64,
    pub max_ms: u64,
}

impl fmt::Display for DeadlineOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeadlineOutOfRange {
            name,
            ms,
            min_ms,
            max_ms,
        } = self;
        write!(
            f,
            "{name} of {ms} ms is out of range; give {min_ms} to {max_ms} ms"
        )
    }
}

impl std::error::Error for DeadlineOutOfRange {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{config, task_spec};

    const TURNS: [TurnKind; 5] = [
        TurnKind::User,
        TurnKind::SessionTitle,
        TurnKind::ContextStats,
        TurnKind::Compact,
        TurnKind::Control,
    ];

    fn none(_: &str) -> Option<DeadlineProfile> {
        None
    }

    fn asks(requested_profile: RequestedProfile, turn_kind: TurnKind) -> TaskSpec {
        TaskSpec {
            requested_profile,
            turn_kind,
            ..task_spec()
        }
    }

    #[test]
    fn absent_empty_and_partial_profiles_are_distinguished() {
        let partial = DeadlineProfile {
            stream_idle_ms: Some(7),
            tool_idle_ms: Some(0),
            ..DeadlineProfile::default()
        };
        for turn in TURNS {
            let absent = effective_profile(&asks(RequestedProfile::Absent, turn), none).unwrap();
            assert_eq!(absent, default_for_turn(turn));
            assert_ne!(absent, DeadlineProfile::default());
            let empty = asks(RequestedProfile::Inline(DeadlineProfile::default()), turn);
            assert_eq!(
                effective_profile(&empty, none),
                Ok(DeadlineProfile::default())
            );
            let inline = asks(RequestedProfile::Inline(partial.clone()), turn);
            assert_eq!(effective_profile(&inline, none), Ok(partial.clone()));
        }
    }

    #[test]
    fn a_named_profile_is_used_and_an_unknown_name_is_refused() {
        let slow = DeadlineProfile {
            first_event_ms: Some(9),
            ..DeadlineProfile::default()
        };
        let asked = asks(RequestedProfile::Named("slow".into()), TurnKind::User);
        let known = |name: &str| (name == "slow").then(|| slow.clone());
        assert_eq!(effective_profile(&asked, known), Ok(slow.clone()));
        let refused = effective_profile(&asked, none);
        assert_eq!(refused, Err(UnknownProfile("slow".into())));
    }

    #[test]
    fn a_command_gets_idle_deadlines_only_on_request() {
        let mut command = asks(RequestedProfile::Absent, TurnKind::User);
        command.argv = vec!["make".into()];
        let profile = effective_profile(&command, none).unwrap();
        let silence = [
            profile.first_event_ms,
            profile.first_visible_event_ms,
            profile.stream_idle_ms,
        ];
        assert_eq!(silence, [None; 3]);
        assert!(profile.process_start_ms.is_some() && profile.cleanup_term_ms.is_some());
        assert!(check_profile(&profile).is_ok());
        let asked = DeadlineProfile {
            stream_idle_ms: Some(7),
            ..DeadlineProfile::default()
        };
        command.requested_profile = RequestedProfile::Inline(asked.clone());
        assert_eq!(effective_profile(&command, none), Ok(asked));
    }

    #[test]
    fn defaults_differ_by_turn_kind_and_pass_their_own_check() {
        let user = default_for_turn(TurnKind::User);
        let all = [
            user.process_start_ms,
            user.prompt_write_ms,
            user.first_event_ms,
            user.first_visible_event_ms,
            user.stream_idle_ms,
            user.tool_idle_ms,
            user.user_input_ms,
            user.cleanup_term_ms,
        ];
        let expected = [
            15_000, 5_000, 90_000, 120_000, 120_000, 300_000, 600_000, 2_000,
        ];
        assert_eq!(all, expected.map(Some));
        assert_eq!(
            default_for_turn(TurnKind::Compact).stream_idle_ms,
            Some(300_000)
        );
        assert_eq!(
            default_for_turn(TurnKind::Control).first_event_ms,
            Some(30_000)
        );
        assert_eq!(default_for_turn(TurnKind::Control).tool_idle_ms, None);
        assert!(
            TURNS
                .iter()
                .all(|turn| check_profile(&default_for_turn(*turn)).is_ok())
        );
        let totals = TURNS.map(|turn_kind| {
            let spec = TaskSpec {
                turn_kind,
                ..task_spec()
            };
            total_ms(&spec, &config())
        });
        assert_eq!(totals, [7_200_000, 120_000, 120_000, 7_200_000, 120_000]);
        let own = TaskSpec {
            total_ms: Some(5),
            queue_ms: Some(6),
            ..task_spec()
        };
        let both = |spec| (total_ms(spec, &config()), queue_ms(spec, &config()));
        assert_eq!((both(&own), both(&task_spec()).1), ((5, 6), 86_400_000));
    }

    #[test]
    fn limits_out_of_range_are_refused_by_name() {
        let slow_kill = DeadlineProfile {
            cleanup_term_ms: Some(600_001),
            ..DeadlineProfile::default()
        };
        assert_eq!(check_profile(&slow_kill).unwrap_err().name, "cleanup_term");
        assert!(check_profile(&DeadlineProfile::default()).is_ok());
        assert!(check_queue(0).is_err() && check_total(0).is_err() && check_total(1).is_ok());
        let lease = |ms| check_lease_ttl(ms, &config()).is_ok();
        let edges = [4_999, 5_000, 86_400_000, 86_400_001].map(lease);
        assert_eq!(edges, [false, true, true, false]);
    }

    #[test]
    fn cleanup_has_a_limit_even_without_a_profile() {
        let with = |ms| DeadlineProfile {
            cleanup_term_ms: ms,
            ..DeadlineProfile::default()
        };
        let of = |ms| cleanup_term_ms(&with(ms), &config());
        assert_eq!((of(None), of(Some(0)), of(Some(9))), (2_000, 2_000, 9));
    }
}
