//! Events as lines of text, for comparison in tests.

use crate::agents::adapter::agent_event::{
    AgentEvent, AgentInput, AgentInputKind, TurnEnding, TurnOutcome, TurnPhase,
};
use crate::agents::outcome::turn_usage::TurnUsage;
use baton_proto::v1::OutputKind;

pub(crate) fn event_text(event: &AgentEvent) -> String {
    match event {
        AgentEvent::Phase(TurnPhase::PromptWritten) => "prompt_written".to_owned(),
        AgentEvent::Phase(TurnPhase::FirstEventSeen) => "first_event_seen".to_owned(),
        AgentEvent::Phase(TurnPhase::FirstVisibleEventSeen) => {
            "first_visible_event_seen".to_owned()
        }
        AgentEvent::Output(output) => {
            let tool = output.tool.iter().map(|tool| format!(" of {tool}"));
            let hidden = if output.visible { "" } else { " (hidden)" };
            let kind = output
                .kind
                .as_str_name()
                .trim_start_matches("OUTPUT_KIND_")
                .to_lowercase();
            let text = match output.kind {
                OutputKind::System | OutputKind::Opaque => String::new(),
                _ => format!(" {:?}", output.text),
            };
            format!("{kind}{}{hidden}{text}", tool.collect::<String>())
        }
        AgentEvent::ToolStarted { id, name } => format!("tool_started {id} {name}"),
        AgentEvent::ToolFinished { id, failed: false } => format!("tool_finished {id}"),
        AgentEvent::ToolFinished { id, failed: true } => format!("tool_finished {id} failed"),
        AgentEvent::InputAsked(input) => input_text(input),
        AgentEvent::InputAnswered { key } => format!("answered {}", key.0),
        AgentEvent::InputWithdrawn { key, reason } => format!("withdrawn {}: {reason}", key.0),
        AgentEvent::Conversation(id) => format!("conversation {id}"),
        AgentEvent::Write(message) => {
            let text = String::from_utf8_lossy(&message.bytes);
            let version = concat!("\"version\":\"", env!("CARGO_PKG_VERSION"), "\"");
            let text = text.replace(version, "\"version\":\"…\"");
            let last = if message.last { " (last)" } else { "" };
            format!("write{last} {}", text.trim_end())
        }
        AgentEvent::Malformed { line } => format!("malformed {line}"),
        AgentEvent::Repaired { line } => format!("mended {line}"),
        AgentEvent::LineCut { length } => format!("cut {length}"),
        AgentEvent::Ended(ending) => ending_text(ending),
    }
}

fn input_text(input: &AgentInput) -> String {
    let tool = input.tool_call_id.as_deref().unwrap_or("-");
    match &input.kind {
        AgentInputKind::Permission(permission) => {
            let scope = if permission.can_allow_for_attempt {
                " or for the attempt"
            } else {
                ""
            };
            let (name, arguments) = (&permission.tool_name, &permission.arguments);
            format!(
                "permission {} of {tool}: {name} {arguments} once{scope}",
                input.key.0
            )
        }
        AgentInputKind::Questions(questions) => {
            let questions = questions.iter().map(|question| {
                let labels = question.options.iter().map(|option| option.label.as_str());
                let labels = labels.collect::<Vec<_>>().join("|");
                let many = if question.multi_select { " many" } else { "" };
                let free = if question.allow_free_text {
                    " or words"
                } else {
                    ""
                };
                format!("{} [{labels}]{many}{free}", question.text)
            });
            let questions = questions.collect::<Vec<_>>().join("; ");
            format!("questions {} of {tool}: {questions}", input.key.0)
        }
    }
}

pub(crate) fn ending_text(ending: &TurnEnding) -> String {
    let usage = ending
        .usage
        .as_ref()
        .map(|usage| format!(" using {}", usage_text(usage)));
    format!(
        "{}{}",
        outcome_text(&ending.outcome),
        usage.unwrap_or_default()
    )
}

pub(crate) fn outcome_text(outcome: &TurnOutcome) -> String {
    match outcome {
        TurnOutcome::Result(text) => format!("result {text:?}"),
        TurnOutcome::Failed(failure) => format!("{} {:?}", failure.code(), failure.message),
        TurnOutcome::Interrupted => "interrupted".to_owned(),
    }
}

/// Input, output, cache read, cache write, cost.
pub(crate) fn usage_text(usage: &TurnUsage) -> String {
    let tokens = usage.tokens;
    let counts = [
        tokens.input,
        tokens.output,
        tokens.cache_read,
        tokens.cache_write,
    ];
    let counts = counts.map(|count| count.to_string()).join("/");
    usage
        .cost
        .map_or(counts.clone(), |cost| format!("{counts} ${cost}"))
}
