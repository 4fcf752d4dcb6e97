//! Named one-line faults in the core. They test the simulation, which must detect each of them.
//!
//! They exist only in builds with the feature `mutants`. At most one is active, chosen at run
//! time for the current thread. In every other build `mutant!` is `false`, and the compiler
//! removes the guarded code.

/// Whether this build contains the mutants.
pub fn are_compiled_in() -> bool {
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

                /// A description of the fault.
                pub fn what(self) -> &'static str {
                    match self { $(Mutant::$name => $what,)* }
                }
            }
        };
    }

    mutants! {
        CompleteUnfenced = "a result is taken from any attempt of the task",
        OutputUnfenced = "output of any attempt counts for the newest",
        DuplicateTaken = "a frame that was heard is heard again",
        GapTaken = "a frame is heard though one before it is missing",
        ForeignFrameTaken = "a daemon may speak for another's attempt",
        ProofIgnored = "any lease token will do",
        IncarnationIgnored = "frames of an older life of the data count",
        AckBeforePersist = "frames are acknowledged before they are durable",
        ReplyBeforePersist = "clients are answered before it is durable",
        PublishBeforePersist = "watchers see what is not durable",
        WelcomeBeforePersist = "Welcome does not wait for what it says",
        LateWordUnpublished = "watchers never see what is learned after the end",
        HoldNotStored = "a hold is granted and not stored",
        AttemptIdReused = "a retry has the id of the attempt before",
        SecondTerminalTaken = "a late result replaces what the worker said before",
        TerminalReplaced = "a late result undoes the end of its task",
        LateOverSuccessor = "a late result is adopted though a successor ran",
        LateForEver = "a late result is adopted at any age",
        LateDropped = "no late result is adopted",
        FencesNotAsked = "a successor is leased while its predecessor may run",
        SuccessorUnfenced = "a loss without proof of death leaves no fence",
        ConversationUnfenced = "turns of a conversation do not exclude each other",
        FenceForgottenAtBoot = "fences are not restored",
        BootGraceMissing = "a boot gives leases only what was left of them",
        TimersNotRestored = "a boot arms no timer",
        StallCreditMissing = "a stalled loop credits nothing",
        KeepNotRenewed = "Keep grants a lease that the relay does not count",
        MissingFromHelloKept = "what Hello does not list stays leased",
        BootIdIgnored = "a machine's boot ends nothing",
        OvertakenHelloHeard = "a Hello that was overtaken is heard",
        InheritedNotHeld = "what was inherited is leased at once",
        InheritedIdReused = "an inherited attempt keeps its id in the queue",
        ToolIdleNotDisarmed = "a finished tool's timer runs on",
        HeartbeatFeedsIdle = "heartbeats count as a sign of life of the agent",
        TotalRestartsAtBoot = "a boot gives the total deadline anew",
        FailureCountedTwice = "a failure uses up two attempts of the budget",
        AttemptsUnlimited = "failures are tried again for ever",
        LossesUnlimited = "losses are tried again for ever",
        UnsafeLossRetried = "a loss is retried though it may have had effects",
        DispatchLimitIgnored = "a task is offered for ever",
        PickedUpOfferedAgain = "what was picked up just before its stream broke is offered again",
        ParkedStaysQueued = "a parked task is still in line",
        PauseIgnored = "a paused task is dispatched",
        SchedulerPauseIgnored = "a paused scheduler dispatches",
        SlotsIgnored = "a daemon is given more than it has room for",
        ScopeIgnored = "a daemon is given work of a tenant that is not its own",
        TenantIgnored = "a tenant may act on the tasks of another",
        DrainIgnored = "a drained daemon is offered work",
        AwaitedRemoved = "a finished task is removed while its result may still come",
        FencedRemoved = "a finished task is removed while its processes may run",
        DrainForgotten = "a daemon is forgotten, and with it that it is drained",
        DrainUnaudited = "what an operator does to a daemon is not on record",
        LateAnswerTaken = "an input that is closed takes an answer",
        AnswerReplaced = "a second answer replaces the first",
        RuleUnheard = "a rule of the task does not answer",
        PatternIgnored = "a rule answers whatever the tool is called with",
        OperatorsAllowed = "a rule allows a command with more than it names",
        AnswerUnbound = "an answer is not bound to what was asked",
        ContractIgnored = "a task completes without the files that it needs",
        LateUnjudged = "a late result is taken without the files that it needs",
        ParkRefuses = "a completion that should park for want of files is only refused",
        RefusalForgotten = "a refused completion that is sent again is acknowledged",
        OutputGapTaken = "a result is taken though output before it is missing",
        CancelLosesToResult = "a result wins over a cancel",
        OwnDeadlineForgotten = "what a daemon began to end for a deadline ends as no result",
        FallsBackForEver = "a resume that fails is tried anew without end",
        StaleResumed = "a fallback goes on with the conversation that is gone",
        KeyIgnored = "the same idempotency key makes another task",
        ConflictIgnored = "an idempotency key is taken for something else",
        ForceTakenForReceipt = "an operator's word counts as proof of death",
        ForceReleaseCounted = "an attempt that an operator takes away counts as an offer",
        ForceLimitIgnored = "operators' verbs are not limited",
        OverrideUnrecorded = "a contract that was overridden is not on record",
        TenantPauseIgnored = "a paused tenant's work is dispatched",
        SentOnTwice = "a task that was sent on is sent on again",
        ParkedNotHandedOff = "a parked attempt stays parked when its task goes on",
        LoserMisled = "who comes too late is told that nothing was parked",
        ResumeWordsLost = "what a person says when a task goes on is lost",
        ListedAfterHandOff = "a task is listed as parked after it went on",
        BlockUnwritten = "a block writes no checkpoint",
        ParkKeepsHash = "a parked attempt keeps the hash of its token",
        ParkKeepsSlot = "a parked attempt keeps its slot",
        ParkTakenForReceipt = "a park counts as proof of death",
        CheckpointNumberReused = "a checkpoint has the number of the one before",
        CounterFalls = "what was dropped of the progress is forgotten",
        ProgressForgotten = "an update replaces the progress of before",
        FinishedProgresses = "progress of a finished task is written",
        GrantBeforePersist = "an agent has a lease before it is durable",
        AgentUnfenced = "an agent's token of before speaks for the newest attempt",
        AgentTokenIgnored = "any token of an agent will do",
        StolenLeaseTaken = "an agent may speak for another's lease",
        ExpiredAgentHeard = "an agent renews what has expired",
        AgentsNotCredited = "a stalled loop credits no agent",
        CancelUntold = "a renewal does not tell of a cancel",
        ReleaseIsLoss = "what is given back is counted as a loss",
        BoundIgnored = "more tasks are taken than there is room for",
    }

    thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Activates this fault for the current thread; `None` deactivates it.
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
