//! Permission requests and questions of an attempt: asked, answered, received by the agent,
//! withdrawn, or expired without an answer.

use std::sync::Arc;

use super::{AttemptMachine, EventOutcome};
use crate::attempt::timers::TimerFact;
use crate::ids::InputId;
use crate::io::rejection::Rejection;
use crate::record::{
    InputDecision, InputRecord, InputState, LifecyclePhase, ParkCause, PendingEnd, StoredAnswer,
    TimelineEventKind, TimerKind,
};
use crate::task::size_limits;
use crate::task::spec::{InputTimeoutPolicy, PermissionEffect, TaskSpec};
use crate::time::WallTime;

/// The answer that one of the task's permission rules gives to a request.
#[derive(Clone, Debug)]
pub(crate) struct RuleAnswer {
    rule_number: u32,
    decision: InputDecision,
    /// The rule as written in the task.
    pub(crate) rule_text: Arc<str>,
}

impl RuleAnswer {
    /// None if the rule requires a person to decide.
    pub(crate) fn from_rule(
        spec: &TaskSpec,
        (number, effect): (u32, PermissionEffect),
    ) -> Option<Self> {
        let decision = match effect {
            PermissionEffect::Allow => InputDecision::Allowed,
            PermissionEffect::Deny => InputDecision::Denied,
            PermissionEffect::Ask => return None,
        };
        let rule = spec.permission_rules.get(number as usize - 1)?;
        Some(Self {
            rule_number: number,
            decision,
            rule_text: rule.to_string().into(),
        })
    }

    fn into_answer(self, at: WallTime) -> StoredAnswer {
        StoredAnswer {
            by: format!("rule:{}", self.rule_number).into(),
            at,
            decision: self.decision,
            rule: Some(self.rule_number),
            payload: Arc::from([]),
        }
    }
}

impl AttemptMachine<'_> {
    pub(super) fn open_input(
        &mut self,
        input: InputRecord,
        ruled: Option<RuleAnswer>,
    ) -> EventOutcome {
        let inputs = &mut self.attempt.inputs;
        if inputs.iter().any(|known| known.id == input.id) {
            return EventOutcome::Refused(Rejection::DuplicateInput);
        }
        let (asked, _) = size_limits::open_input_bytes(inputs);
        if asked + input.payload.len() > size_limits::MAX_ASKED_BYTES {
            return EventOutcome::Refused(Rejection::TooManyInputs);
        }
        if inputs.len() >= self.config.max_inputs {
            // Closed inputs are only history: the oldest is removed to make room.
            let closed = |known: &InputRecord| !known.state.is_pending();
            let Some(oldest) = inputs.iter().position(closed) else {
                return EventOutcome::Refused(Rejection::TooManyInputs);
            };
            inputs.remove(oldest);
        }
        self.mark_phase_reached(LifecyclePhase::FirstEventSeen);
        self.attempt.phase = Some(LifecyclePhase::WaitingInput);
        self.update_timers(&TimerFact::InputAsked(input.id));
        self.timeline_events
            .push(TimelineEventKind::InputAsked { input: input.id });
        let id = input.id;
        self.attempt.inputs.push(input);
        self.attempt.state = self.running_state();
        if let Some(ruled) = ruled.filter(|_| !mutant!(RuleUnheard)) {
            self.answer_input(id, ruled.into_answer(self.now.wall));
        }
        EventOutcome::Applied
    }

    pub(super) fn input_mut(&mut self, id: InputId) -> Option<&mut InputRecord> {
        self.attempt.inputs.iter_mut().find(|input| input.id == id)
    }

    pub(super) fn answer_input(&mut self, id: InputId, mut answer: StoredAnswer) -> EventOutcome {
        let (_, answered) = size_limits::open_input_bytes(&self.attempt.inputs);
        let Some(input) = self.input_mut(id) else {
            return EventOutcome::Refused(Rejection::UnknownInput);
        };
        match &input.state {
            // Earlier answers are not confirmed by the daemon yet. The client can send this one
            // again after that.
            InputState::Open
                if answered + answer.payload.len() > size_limits::MAX_ANSWERED_BYTES =>
            {
                return EventOutcome::Refused(Rejection::TooManyInputs);
            }
            InputState::Open => {}
            InputState::Answered(_) if mutant!(AnswerReplaced) => {}
            InputState::Withdrawn
            | InputState::Expired
            | InputState::Superseded(_)
            | InputState::Received(_)
                if mutant!(LateAnswerTaken) => {}
            InputState::Answered(given)
            | InputState::Received(given)
            | InputState::Superseded(Some(given)) => {
                return if size_limits::is_same_answer(given, &answer) {
                    EventOutcome::Ignored
                } else {
                    EventOutcome::Refused(Rejection::AnswerConflict)
                };
            }
            InputState::Withdrawn | InputState::Expired | InputState::Superseded(None) => {
                return EventOutcome::Refused(Rejection::InputClosed);
            }
        }
        size_limits::clip_actor(&mut answer);
        let approved = answer.decision == InputDecision::Allowed;
        input.state = InputState::Answered(answer);
        // An approved action may have had side effects.
        self.attempt.retry_safe &= !approved;
        self.update_timers(&TimerFact::InputAnswered(id));
        self.timeline_events
            .push(TimelineEventKind::InputAnswered { input: id });
        EventOutcome::Applied
    }

    /// An answer while the attempt is being ended. It cannot reach the agent, so only a repeat
    /// of a stored answer succeeds.
    pub(super) fn answer_ended_input(&self, id: InputId, answer: &StoredAnswer) -> EventOutcome {
        let asked = self.attempt.inputs.iter().find(|input| input.id == id);
        match asked.and_then(|input| input.state.answer()) {
            Some(given) if size_limits::is_same_answer(given, answer) => EventOutcome::Ignored,
            Some(_) => EventOutcome::Refused(Rejection::AnswerConflict),
            None => EventOutcome::Refused(Rejection::InputClosed),
        }
    }

    pub(super) fn confirm_answer_received(&mut self, id: InputId) -> EventOutcome {
        let Some(input) = self.input_mut(id) else {
            return EventOutcome::Refused(Rejection::UnknownInput);
        };
        let InputState::Answered(answer) = &input.state else {
            return EventOutcome::Refused(Rejection::WrongOrder);
        };
        input.state = InputState::Received(size_limits::shorten_received(answer.clone()));
        self.attempt.phase = Some(LifecyclePhase::InputReceived);
        self.close_input(id);
        self.timeline_events
            .push(TimelineEventKind::InputReceived { input: id });
        EventOutcome::Applied
    }

    pub(super) fn withdraw_input(&mut self, id: InputId) -> EventOutcome {
        let Some(input) = self.input_mut(id) else {
            return EventOutcome::Refused(Rejection::UnknownInput);
        };
        if !input.state.is_pending() {
            return EventOutcome::Refused(Rejection::InputClosed);
        }
        input.state = InputState::Withdrawn;
        self.close_input(id);
        self.timeline_events
            .push(TimelineEventKind::InputClosed { input: id });
        EventOutcome::Applied
    }

    /// Closes an input. It keeps its answer but not the question, so that records stay small.
    fn close_input(&mut self, id: InputId) {
        if let Some(input) = self.input_mut(id) {
            input.payload = Arc::from([]);
        }
        self.update_timers(&TimerFact::InputClosed(id));
        self.attempt.state = self.running_state();
    }

    pub(super) fn expire_input(&mut self, id: InputId) -> EventOutcome {
        let (wall, policy) = (self.now.wall, self.spec.on_input_timeout);
        if self.input_mut(id).is_none() {
            return EventOutcome::Ignored;
        }
        self.timeline_events
            .push(TimelineEventKind::DeadlineExpired {
                timer: TimerKind::UserInput,
            });
        match policy {
            InputTimeoutPolicy::Fail => {
                self.close_expired_input(id);
                self.end_for_deadline(TimerKind::UserInput, None)
            }
            InputTimeoutPolicy::Park => {
                self.close_expired_input(id);
                self.begin_cleanup_or(PendingEnd::Park, |machine| {
                    let receipt = machine.assumed_receipt();
                    machine.park(ParkCause::InputTimeout, receipt)
                })
            }
            InputTimeoutPolicy::Deny => {
                let refusal = StoredAnswer {
                    by: "relay".into(),
                    at: wall,
                    decision: InputDecision::Expired,
                    rule: None,
                    payload: Arc::from([]),
                };
                self.answer_input(id, refusal)
            }
        }
    }

    fn close_expired_input(&mut self, id: InputId) {
        if let Some(input) = self.input_mut(id) {
            input.state = InputState::Expired;
        }
        self.close_input(id);
    }
}
