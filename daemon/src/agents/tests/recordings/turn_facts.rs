//! Facts of one turn, in a form that can be compared between the adapter and the independent
//! reader.

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
    /// Input, output, cache read, cache write, cost.
    pub(super) used: Option<String>,
    pub(super) outcome: StatedOutcome,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum StatedOutcome {
    #[default]
    Open,
    Result(String),
    /// With its failure code.
    Failed(String),
    Interrupted,
    /// It did not succeed; the kind of failure is not stated.
    NotSuccessful,
}

impl StatedOutcome {
    /// Whether the adapter's outcome agrees with the stated one.
    pub(super) fn agrees_with(&self, adapter: &Self) -> bool {
        match (self, adapter) {
            (Self::NotSuccessful, Self::Failed(_) | Self::Interrupted) => true,
            (stated, adapter) => stated == adapter,
        }
    }
}

/// Facts of the turns according to the adapter.
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
                let tool = tool.expect("a tool must end in the turn in which it began");
                *tool += if *failed { " failed" } else { " done" };
            }
            AgentEvent::InputAsked(input) => {
                inputs.insert(input.key.clone(), now.inputs.len());
                now.inputs.push(match &input.kind {
                    AgentInputKind::Permission(permission) => {
                        format!("permission({})", permission.tool_name)
                    }
                    AgentInputKind::Questions(questions) => {
                        format!("questions({})", questions.len())
                    }
                });
            }
            AgentEvent::InputAnswered { key } => now.inputs[inputs[key]] += " answered",
            AgentEvent::InputWithdrawn { key, .. } => now.inputs[inputs[key]] += " withdrawn",
            AgentEvent::Ended(ending) => {
                now.used = ending.usage.as_ref().map(event_text::usage_text);
                now.outcome = match &ending.outcome {
                    TurnOutcome::Result(text) => StatedOutcome::Result(text.clone()),
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

/// Differences between the two lists of turns.
pub(super) fn differences(stated: &[TurnFacts], translated: &[TurnFacts]) -> Vec<String> {
    if stated.len() != translated.len() {
        let counts = format!(
            "{} turns are stated, {} translated",
            stated.len(),
            translated.len()
        );
        return vec![format!("{counts}:\n  {stated:?}\n  {translated:?}")];
    }
    let mut differences = Vec::new();
    for (at, (stated, translated)) in stated.iter().zip(translated).enumerate() {
        let mut part = |what: &str, same: bool, stated: String, translated: String| {
            if !same {
                differences.push(format!(
                    "turn {at}, {what}: stated {stated}, translated {translated}"
                ));
            }
        };
        let phases = stated.phases == translated.phases;
        part(
            "phases",
            phases,
            show(&stated.phases),
            show(&translated.phases),
        );
        let tools = stated.tools == translated.tools;
        part("tools", tools, show(&stated.tools), show(&translated.tools));
        let inputs = stated.inputs == translated.inputs;
        part(
            "inputs",
            inputs,
            show(&stated.inputs),
            show(&translated.inputs),
        );
        let used = stated.used == translated.used;
        part("usage", used, show(&stated.used), show(&translated.used));
        let outcome = stated.outcome.agrees_with(&translated.outcome);
        part(
            "outcome",
            outcome,
            show(&stated.outcome),
            show(&translated.outcome),
        );
    }
    differences
}

fn show(what: &impl std::fmt::Debug) -> String {
    format!("{what:?}")
}
