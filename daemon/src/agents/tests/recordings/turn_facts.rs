//! What one turn came to, in words that two readers can compare: the adapter, and one that only counts lines.

use std::collections::BTreeMap;

use super::super::event_text;
use crate::agents::adapter::agent_event::{AgentEvent, AgentInputKind, TurnOutcome, TurnPhase};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TurnFacts {
    pub(super) phases: Vec<&'static str>,
    /// In the order in which they began.
    pub(super) tools: Vec<String>,
    /// In the order in which they were asked.
    pub(super) inputs: Vec<String>,
    /// Input, output, cache read, cache write, price.
    pub(super) used: Option<String>,
    pub(super) outcome: StatedOutcome,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum StatedOutcome {
    #[default]
    Open,
    Result(String),
    /// By its code.
    Failed(String),
    Interrupted,
    /// It did not end well; nobody says in which way.
    NotSuccessful,
}

impl StatedOutcome {
    /// Whether what the adapter says is what was stated.
    pub(super) fn agrees_with(&self, adapter: &Self) -> bool {
        match (self, adapter) {
            (Self::NotSuccessful, Self::Failed(_) | Self::Interrupted) => true,
            (stated, told) => stated == told,
        }
    }
}

/// Turns as the adapter tells them.
pub(super) fn facts_of_adapter(events: &[AgentEvent]) -> Vec<TurnFacts> {
    let mut turns = Vec::new();
    let mut now = TurnFacts::default();
    let mut tools = BTreeMap::new();
    let mut inputs = BTreeMap::new();
    for event in events {
        match event {
            AgentEvent::Phase(phase) => now.phases.push(match phase {
                TurnPhase::PromptWritten => "prompt",
                TurnPhase::FirstEventSeen => "event",
                TurnPhase::FirstVisibleEventSeen => "visible",
            }),
            AgentEvent::ToolStarted { id, name } => {
                tools.insert(id.clone(), now.tools.len());
                now.tools.push(name.clone());
            }
            AgentEvent::ToolFinished { id, failed } => {
                let tool = tools.get(id).and_then(|at| now.tools.get_mut(*at));
                let tool = tool.expect("a tool ends in the turn in which it began");
                *tool += if *failed { " failed" } else { " done" };
            }
            AgentEvent::InputAsked(input) => {
                inputs.insert(input.key.clone(), now.inputs.len());
                now.inputs.push(match &input.kind {
                    AgentInputKind::Permission(asked) => format!("permission({})", asked.tool_name),
                    AgentInputKind::Questions(asked) => format!("questions({})", asked.len()),
                });
            }
            AgentEvent::InputAnswered { key } => now.inputs[inputs[key]] += " answered",
            AgentEvent::InputWithdrawn { key, .. } => now.inputs[inputs[key]] += " withdrawn",
            AgentEvent::Ended(ending) => {
                now.used = ending.usage.as_ref().map(event_text::usage_text);
                now.outcome = match &ending.outcome {
                    TurnOutcome::Result(words) => StatedOutcome::Result(words.clone()),
                    TurnOutcome::Failed(failure) => {
                        StatedOutcome::Failed(failure.code().to_owned())
                    }
                    TurnOutcome::Interrupted => StatedOutcome::Interrupted,
                };
                turns.push(std::mem::take(&mut now));
            }
            AgentEvent::Output(_)
            | AgentEvent::Conversation(_)
            | AgentEvent::Write(_)
            | AgentEvent::Malformed { .. }
            | AgentEvent::Repaired { .. }
            | AgentEvent::LineCut { .. } => {}
        }
    }
    turns
}

/// Where two tellings of the same turns part.
pub(super) fn differences(stated: &[TurnFacts], told: &[TurnFacts]) -> Vec<String> {
    if stated.len() != told.len() {
        let counts = format!("{} turns are stated, {} told", stated.len(), told.len());
        return vec![format!("{counts}:\n  {stated:?}\n  {told:?}")];
    }
    let mut differences = Vec::new();
    for (at, (stated, told)) in stated.iter().zip(told).enumerate() {
        let mut part = |what: &str, same: bool, stated: String, told: String| {
            if !same {
                differences.push(format!("turn {at}, {what}: stated {stated}, told {told}"));
            }
        };
        let phases = stated.phases == told.phases;
        part("phases", phases, show(&stated.phases), show(&told.phases));
        let tools = stated.tools == told.tools;
        part("tools", tools, show(&stated.tools), show(&told.tools));
        let inputs = stated.inputs == told.inputs;
        part("inputs", inputs, show(&stated.inputs), show(&told.inputs));
        let used = stated.used == told.used;
        part("usage", used, show(&stated.used), show(&told.used));
        let outcome = stated.outcome.agrees_with(&told.outcome);
        part(
            "outcome",
            outcome,
            show(&stated.outcome),
            show(&told.outcome),
        );
    }
    differences
}

fn show(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}")
}
