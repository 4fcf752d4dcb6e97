//! Named one-line breakages of what a worker decides, so that the simulation itself can be tested: each must be found.
//!
//! As in `relay/core/src/mutants.rs`: only in builds of the feature `mutants`, one at a time, chosen at run time and for this
//! thread alone. In every other build `mutant!` is `false`, and the compiler removes what it guards.

/// Whether this build can be broken.
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
            /// One breakage.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Mutant { $($name,)* }

            impl Mutant {
                pub const ALL: &'static [Mutant] = &[$(Mutant::$name,)*];

                /// What is broken.
                pub fn what(self) -> &'static str {
                    match self { $(Mutant::$name => $what,)* }
                }
            }
        };
    }

    mutants! {
        LeaseFromNewestBeat = "a renewal counts from the newest heartbeat and not from the one that it answers",
        LeaseWithGrace = "a worker counts a lease a quarter longer than it was granted",
        TermTooLate = "TERM goes out only when KILL is due",
        KillAtLimit = "KILL goes out at the limit and not before it",
        TermIsEnough = "what ignores TERM is not killed",
        StopForgotten = "an order to stop does not bring KILL forward",
        LostRightIgnored = "an attempt whose lease is over may start and be heard",
        AckTakesUnacked = "an acknowledgement takes the frame behind it, too",
        AckTakesOutput = "an acknowledgement inside a chunk takes all of it",
        ReplaySkipped = "a new stream goes on where the old one broke",
        CutNotRecorded = "output beyond the bound goes without a word",
        OutputUnbounded = "unacknowledged output is kept without a bound",
        SentBeforeStored = "frames leave before the disk has them",
        SentBeforeSynced = "what nobody could say again leaves before it is synced",
        ProgressAhead = "the transcript counts as told before its frame is stored",
        NumbersReused = "after a take-over numbers that the relay knows are used again",
        ImageForgets = "a new file of the outbox lacks its oldest frame",
        BackoffIgnoresLease = "a lost stream is dialed as if no lease ran out",
        BackoffIgnoresLastWords = "results that nobody has heard hurry nobody",
        DeadStreamKept = "heartbeats that nobody answers end no stream",
    }

    thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Breaks the workers of this thread in this way, or mends them.
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
