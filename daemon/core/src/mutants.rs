//! Named one-line faults in the daemon's decisions. They test the simulation, which must find
//! each of them.
//!
//! As in `relay/core/src/mutants.rs`, they exist only in builds with the feature `mutants`, and
//! at most one is active, chosen at run time and for the current thread. In every other build
//! `mutant!` is `false` and the compiler removes the guarded code.

/// Whether this build contains the faults.
pub fn are_built_in() -> bool {
    cfg!(feature = "mutants")
}

#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        crate::mutants::is(crate::mutants::Mutant::$name)
    };
}

#[cfg(feature = "mutants")]
mod active {
    use std::cell::Cell;

    macro_rules! mutants {
        ($($name:ident = $what:literal,)*) => {
            /// One fault.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Mutant { $($name,)* }

            impl Mutant {
                pub const ALL: &'static [Mutant] = &[$(Mutant::$name,)*];

                /// Describes the fault.
                pub fn what(self) -> &'static str {
                    match self { $(Mutant::$name => $what,)* }
                }
            }
        };
    }

    mutants! {
        LeaseFromNewestBeat = "a renewal counts from the newest heartbeat instead of the one it answers",
        LeaseWithGrace = "the daemon counts a lease a quarter longer than granted",
        TermTooLate = "TERM is sent only when KILL is due",
        KillAtLimit = "KILL is sent at the limit instead of before it",
        TermIsEnough = "a process that ignores TERM is not killed",
        StopForgotten = "an order to stop does not move KILL to an earlier time",
        LostRightIgnored = "an attempt with an expired lease may start and send frames",
        AckTakesUnacked = "an acknowledgement also removes the frame after it",
        AckTakesOutput = "an acknowledgement inside a chunk removes the whole chunk",
        ReplaySkipped = "a new stream does not resend unacknowledged frames",
        CutNotRecorded = "output beyond the limit is dropped without a cut record",
        OutputUnbounded = "unacknowledged output is kept without a limit",
        SentBeforeStored = "frames are sent before they are written to disk",
        SentBeforeSynced = "frames that need a sync are sent before it",
        ProgressAhead = "the transcript position moves ahead of the stored frame",
        NumbersReused = "after a take-over, frame numbers that the relay already has are reused",
        ImageForgets = "a rewritten outbox file lacks its oldest frame",
        BackoffIgnoresLease = "the reconnect delay ignores the remaining lease",
        BackoffIgnoresLastWords = "unreported results do not shorten the reconnect delay",
        DeadStreamKept = "unanswered heartbeats do not end the stream",
    }

    thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Activates this fault for the daemons of the current thread; `None` removes it.
    pub fn activate(mutant: Option<Mutant>) {
        ACTIVE.set(mutant);
    }

    pub(crate) fn is(mutant: Mutant) -> bool {
        ACTIVE.get() == Some(mutant)
    }
}

#[cfg(feature = "mutants")]
pub(crate) use active::is;
#[cfg(feature = "mutants")]
pub use active::{Mutant, activate};
