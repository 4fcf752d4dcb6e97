//! Permission requests and questions of an attempt: asked, answered, received, withdrawn, or nobody answered.

use std::sync::Arc;

use super::{Machine, Outcome};
use crate::bounds;
use crate::id::InputId;
use crate::record::{
    Answer, Decision, EventKind, InputRecord, InputState, ParkCause, Pending, Phase, TimerKind,
};
use crate::reject::Rejection;
use crate::spec::{OnInputTimeout, PermissionEffect, TaskSpec};
use crate::time::Wall;
use crate::timers::Fact;

/// What a rule of the task says to a request.
#[derive(Clone, Debug)]
pub(crate) struct Ruled {
    number: u32,
    decision: Decision,
    /// The rule as people write it.
    pub(crate) words: Arc<str>,
}

impl Ruled {
    /// None where the rule wants a person asked.
    pub(crate) fn of(spec: &TaskSpec, (number, effect): (u32, PermissionEffect)) -> Option<Self> {
        let decision = match effect {
            PermissionEffect::Allow => Decision::Allowed,
            PermissionEffect::Deny => Decision::Denied,
            PermissionEffect::Ask => return None,
        };
        let rule = spec.permission_rules.get(number as usize - 1)?;
        Some(Self {
            number,
            decision,
            words: rule.to_string().into(),
        })
    }

    fn answer(self, at: Wall) -> Answer {
        Answer {
            by: format!("rule:{}", self.number).into(),
            at,
            decision: self.decision,
            rule: Some(self.number),
            payload: Arc::from([]),
        }
    }
}

impl Machine<'_> {
    pub(super) fn input_asked(&mut self, input: InputRecord, ruled: Option<Ruled>) -> Outcome {
        let inputs = &mut self.attempt.inputs;
        if inputs.iter().any(|known| known.id == input.id) {
            return Outcome::Refused(Rejection::DuplicateInput);
        }
        let (asked, _) = bounds::asked_and_answered(inputs);
        if asked + input.payload.len() > bounds::ASKED_BYTES {
            return Outcome::Refused(Rejection::TooManyInputs);
        }
        if inputs.len() >= self.config.max_inputs {
            // Closed ones are history: the oldest makes room.
            let closed = |known: &InputRecord| !known.state.is_pending();
            let Some(oldest) = inputs.iter().position(closed) else {
                return Outcome::Refused(Rejection::TooManyInputs);
            };
            inputs.remove(oldest);
        }
        self.reach(Phase::FirstEventSeen);
        self.attempt.phase = Some(Phase::WaitingInput);
        self.tell(&Fact::InputAsked(input.id));
        self.notes.push(EventKind::InputAsked { input: input.id });
        let id = input.id;
        self.attempt.inputs.push(input);
        self.attempt.state = self.running_state();
        if let Some(ruled) = ruled.filter(|_| !mutant!(RuleUnheard)) {
            self.answered(id, ruled.answer(self.now.wall));
        }
        Outcome::Applied
    }

    pub(super) fn input_mut(&mut self, id: InputId) -> Option<&mut InputRecord> {
        self.attempt.inputs.iter_mut().find(|input| input.id == id)
    }

    pub(super) fn answered(&mut self, id: InputId, mut answer: Answer) -> Outcome {
        let (_, answered) = bounds::asked_and_answered(&self.attempt.inputs);
        let Some(input) = self.input_mut(id) else {
            return Outcome::Refused(Rejection::UnknownInput);
        };
        match &input.state {
            // The daemon has not confirmed the others yet; it can be said again when it has.
            InputState::Open if answered + answer.payload.len() > bounds::ANSWERED_BYTES => {
                return Outcome::Refused(Rejection::TooManyInputs);
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
                return if bounds::is_same(given, &answer) {
                    Outcome::Ignored
                } else {
                    Outcome::Refused(Rejection::AnswerConflict)
                };
            }
            InputState::Withdrawn | InputState::Expired | InputState::Superseded(None) => {
                return Outcome::Refused(Rejection::InputClosed);
            }
        }
        bounds::clip_actor(&mut answer);
        let approved = answer.decision == Decision::Allowed;
        input.state = InputState::Answered(answer);
        // What a person let through may have had effects.
        self.attempt.retry_safe &= !approved;
        self.tell(&Fact::InputAnswered(id));
        self.notes.push(EventKind::InputAnswered { input: id });
        Outcome::Applied
    }

    /// Nothing reaches the agent any more; what was said before is still what was said.
    pub(super) fn answered_late(&self, id: InputId, answer: &Answer) -> Outcome {
        let asked = self.attempt.inputs.iter().find(|input| input.id == id);
        match asked.and_then(|input| input.state.answer()) {
            Some(given) if bounds::is_same(given, answer) => Outcome::Ignored,
            Some(_) => Outcome::Refused(Rejection::AnswerConflict),
            None => Outcome::Refused(Rejection::InputClosed),
        }
    }

    pub(super) fn input_received(&mut self, id: InputId) -> Outcome {
        let Some(input) = self.input_mut(id) else {
            return Outcome::Refused(Rejection::UnknownInput);
        };
        let InputState::Answered(answer) = &input.state else {
            return Outcome::Refused(Rejection::WrongOrder);
        };
        input.state = InputState::Received(bounds::received(answer.clone()));
        self.attempt.phase = Some(Phase::InputReceived);
        self.input_closed(id);
        self.notes.push(EventKind::InputReceived { input: id });
        Outcome::Applied
    }

    pub(super) fn input_withdrawn(&mut self, id: InputId) -> Outcome {
        let Some(input) = self.input_mut(id) else {
            return Outcome::Refused(Rejection::UnknownInput);
        };
        if !input.state.is_pending() {
            return Outcome::Refused(Rejection::InputClosed);
        }
        input.state = InputState::Withdrawn;
        self.input_closed(id);
        self.notes.push(EventKind::InputClosed { input: id });
        Outcome::Applied
    }

    /// A closed input keeps its answer, not what was asked: records stay small.
    fn input_closed(&mut self, id: InputId) {
        if let Some(input) = self.input_mut(id) {
            input.payload = Arc::from([]);
        }
        self.tell(&Fact::InputClosed(id));
        self.attempt.state = self.running_state();
    }

    pub(super) fn input_expired(&mut self, id: InputId) -> Outcome {
        let (wall, policy) = (self.now.wall, self.spec.on_input_timeout);
        if self.input_mut(id).is_none() {
            return Outcome::Ignored;
        }
        self.notes.push(EventKind::DeadlineExpired {
            timer: TimerKind::UserInput,
        });
        match policy {
            OnInputTimeout::Fail => {
                self.close_expired(id);
                self.deadline_noted(TimerKind::UserInput, None)
            }
            OnInputTimeout::Park => {
                self.close_expired(id);
                self.begin_cleanup_or(Pending::Park, |machine| {
                    let receipt = machine.assumed_receipt();
                    machine.park(ParkCause::InputTimeout, receipt)
                })
            }
            OnInputTimeout::Deny => {
                let refusal = Answer {
                    by: "relay".into(),
                    at: wall,
                    decision: Decision::Expired,
                    rule: None,
                    payload: Arc::from([]),
                };
                self.answered(id, refusal)
            }
        }
    }

    fn close_expired(&mut self, id: InputId) {
        if let Some(input) = self.input_mut(id) {
            input.state = InputState::Expired;
        }
        self.input_closed(id);
    }
}
