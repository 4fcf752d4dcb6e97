//! The order of the phases that an attempt enters once. Pure. A later phase implies the earlier
//! ones. A phase that comes twice or too late is not reported, because the relay would count it
//! as a regression.

/// Phases entered at most once, in their only order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OneTimePhase {
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
    latest: Option<OneTimePhase>,
}

impl PhaseOrder {
    /// True when `phase` is new and later than all before it: only then it is reported.
    pub(crate) fn enter(&mut self, phase: OneTimePhase) -> bool {
        let advances = self.latest.is_none_or(|latest| latest < phase);
        if advances {
            self.latest = Some(phase);
        }
        advances
    }

    pub(crate) fn has_reached(&self, phase: OneTimePhase) -> bool {
        self.latest.is_some_and(|latest| latest >= phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_phase_is_not_reported_afterwards() {
        let mut order = PhaseOrder::default();
        assert!(order.enter(OneTimePhase::Started));
        assert!(order.enter(OneTimePhase::FirstEventSeen));
        assert!(!order.enter(OneTimePhase::PromptWritten));
        assert!(!order.enter(OneTimePhase::FirstEventSeen));
        assert!(order.has_reached(OneTimePhase::PromptWritten));
        assert!(!order.has_reached(OneTimePhase::Streaming));
    }
}
