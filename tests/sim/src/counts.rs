//! What a run has seen: a run in which nothing went wrong proves nothing.

use std::ops::AddAssign;

use baton_core::effects::Count;
use baton_core::record::{AttemptState, AttentionCause, EventKind, TimelineEvent, TimerKind};

use crate::world::World;

macro_rules! counts {
    ($($name:ident,)*) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $(pub $name: u64,)* }

        impl AddAssign<&Counts> for Counts {
            fn add_assign(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }
        }

        impl Counts {
            pub fn each(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counts! {
    steps, inputs, virtual_s, submits, resubmits, dispatches, processes, completions, failures, losses, expiries,
    deadlines, rejected_frames, late_terminals, adopted_late, retries, cancels, restarts, stalls, cuts, late_arrivals,
    daemon_crashes, daemon_stalls, shim_kills, reboots, holds, holds_granted, unreachable, answers, refused_answers,
    ghosts, disk_errors, one_way_cuts, conflicts, probes, imports, releases, fences, parked, settled_keep, settled_adopt,
    settled_kill, settled_unrenewed, credits, removals, full_disks, machine_refusals, place_refusals,
    suspends, muted, refused_results, kills, dials, images, output_bytes, output_cuts,
    forced, pauses,
    calls, grants, agent_renewals, refused_calls, misuses, repeated_calls, lost_answers, agents_asleep, agents_dead,
    pick_ups, losers, resumes, blocks, parks, progress, checkpoints, listings, agent_ends, truncated,
}

impl World {
    pub(crate) fn count_odd(&mut self, count: &Count) {
        match count {
            Count::FrameRejected(_) => self.counts.rejected_frames += 1,
            Count::LateTerminal => self.counts.late_terminals += 1,
            Count::AdoptedLate => self.counts.adopted_late += 1,
            Count::StallCredit { .. } => self.counts.credits += 1,
            Count::ForeignAttempt { .. } | Count::PhaseRegression | Count::UnknownFrame => {}
        }
    }

    pub(crate) fn count_event(&mut self, event: &TimelineEvent) {
        let counts = &mut self.counts;
        let counted = match (&event.kind, event.state) {
            (
                EventKind::DeadlineExpired {
                    timer: TimerKind::Lease,
                },
                _,
            ) => &mut counts.expiries,
            (EventKind::DeadlineExpired { .. }, _) => &mut counts.deadlines,
            (EventKind::RetryScheduled { .. } | EventKind::RetryAsked, _) => &mut counts.retries,
            (EventKind::CancelRequested, _) => &mut counts.cancels,
            (EventKind::Ended { .. }, Some(AttemptState::Completed)) => &mut counts.completions,
            (EventKind::Ended { .. }, Some(AttemptState::Lost)) => &mut counts.losses,
            (EventKind::Ended { .. }, Some(AttemptState::Failed | AttemptState::TimedOut)) => {
                &mut counts.failures
            }
            (EventKind::Offered { .. }, _) => &mut counts.dispatches,
            (EventKind::Attention(AttentionCause::Blocked), _) => &mut counts.parks,
            (EventKind::Checkpoint { .. }, _) => &mut counts.checkpoints,
            _ => return,
        };
        *counted += 1;
    }
}
