//! Counters of a run: a run without faults proves nothing.

use std::ops::AddAssign;

use baton_core::io::effects::CoreMetric;
use baton_core::record::{
    AttemptStateKind, AttentionCause, TimelineEvent, TimelineEventKind, TimerKind,
};

use crate::simulation::Simulation;

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

impl Simulation {
    pub(crate) fn count_core_event(&mut self, count: &CoreMetric) {
        match count {
            CoreMetric::FrameRejected(_) => self.counts.rejected_frames += 1,
            CoreMetric::LateTerminal => self.counts.late_terminals += 1,
            CoreMetric::AdoptedLate => self.counts.adopted_late += 1,
            CoreMetric::StallCredit { .. } => self.counts.credits += 1,
            CoreMetric::ForeignAttempt { .. }
            | CoreMetric::PhaseRegression
            | CoreMetric::UnknownFrame => {}
        }
    }

    pub(crate) fn count_timeline_event(&mut self, event: &TimelineEvent) {
        let counts = &mut self.counts;
        let counted = match (&event.kind, event.state) {
            (
                TimelineEventKind::DeadlineExpired {
                    timer: TimerKind::Lease,
                },
                _,
            ) => &mut counts.expiries,
            (TimelineEventKind::DeadlineExpired { .. }, _) => &mut counts.deadlines,
            (TimelineEventKind::RetryScheduled { .. } | TimelineEventKind::RetryAsked, _) => {
                &mut counts.retries
            }
            (TimelineEventKind::CancelRequested, _) => &mut counts.cancels,
            (TimelineEventKind::Ended { .. }, Some(AttemptStateKind::Completed)) => {
                &mut counts.completions
            }
            (TimelineEventKind::Ended { .. }, Some(AttemptStateKind::Lost)) => &mut counts.losses,
            (
                TimelineEventKind::Ended { .. },
                Some(AttemptStateKind::Failed | AttemptStateKind::TimedOut),
            ) => &mut counts.failures,
            (TimelineEventKind::Offered { .. }, _) => &mut counts.dispatches,
            (TimelineEventKind::Attention(AttentionCause::Blocked), _) => &mut counts.parks,
            (TimelineEventKind::Checkpoint { .. }, _) => &mut counts.checkpoints,
            _ => return,
        };
        *counted += 1;
    }
}
