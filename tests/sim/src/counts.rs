//! What a run has seen: a run in which nothing went wrong proves nothing.

use std::ops::AddAssign;

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
    settled_kill, settled_unrenewed, credits, removals, full_disks, machine_refusals,
}
