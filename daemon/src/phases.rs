//! The order of the phases that an attempt enters once. Pure. A later phase implies the earlier ones;
//! one that comes twice or too late is not reported, because the relay would count it as a regression.

/// Phases entered at most once, in their only order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OncePhase {
    Started,
    AgentStarted,
    PromptWritten,
    FirstEventSeen,
    FirstVisibleEventSeen,
    Streaming,
    CleanupStarted,
    CleanupFinished,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PhaseOrder {
    latest: Option<OncePhase>,
}

impl PhaseOrder {
    /// True when `phase` is new and later than all before it: only then it is reported.
    pub(crate) fn enter(&mut self, phase: OncePhase) -> bool {
        let advances = self.latest.is_none_or(|latest| latest < phase);
        if advances {
            self.latest = Some(phase);
        }
        advances
    }

    pub(crate) fn reached(&self, phase: OncePhase) -> bool {
        self.latest.is_some_and(|latest| latest >= phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_phase_is_not_reported_afterwards() {
        let mut order = PhaseOrder::default();
        assert!(order.enter(OncePhase::Started));
        assert!(order.enter(OncePhase::FirstEventSeen));
        assert!(!order.enter(OncePhase::PromptWritten));
        assert!(!order.enter(OncePhase::FirstEventSeen));
        assert!(order.reached(OncePhase::PromptWritten));
        assert!(!order.reached(OncePhase::Streaming));
    }
}
