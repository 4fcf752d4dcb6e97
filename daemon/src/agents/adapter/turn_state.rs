//! State of a turn that all adapters need: reached phases, running tools, open inputs, and that
//! a turn ends only once. Part of the state that survives a restart.

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::v1::OutputKind;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::agent_event::{
    AgentEvent, AgentInput, AgentInputKind, AgentOutput, InputKey, ToolPermission, TurnEnding,
    TurnOutcome, TurnPhase,
};
use super::recent_memory::RecentIds;
use crate::agents::outcome::failure::TurnFailure;
use crate::agents::outcome::turn_usage::TurnUsage;

/// Bytes of a final text that are kept.
pub(crate) const MAX_RESULT_BYTES: usize = baton_proto::codes::MAX_RESULT_BYTES;

/// One of this many lines without an event of their own is forwarded as output.
const SILENT_LINES_PER_SIGN: u32 = 16;

/// Limit of open tools (the same as the relay's) and of a tool id's length. A tool beyond the
/// limit is treated as plain output, and the stream's idle timer applies to it.
const MAX_OPEN_TOOLS: usize = 256;
const MAX_TOOL_ID_BYTES: usize = 1024;

/// Largest arguments that can be shown to a person completely.
const MAX_ARGUMENTS_BYTES: usize = 256 * 1024;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct TurnState {
    state: TurnStage,
    /// Prompts that were written while a turn was running.
    queued: u32,
    phase: Option<TurnPhase>,
    open_tools: BTreeSet<String>,
    /// Ended tools: a late message about one does not start it again.
    #[serde(default, rename = "over")]
    ended_tools: RecentIds,
    /// Lines that were not forwarded, counted per open tool; the empty key is for no tool.
    #[serde(default, rename = "silent")]
    silent_lines: BTreeMap<String, u32>,
    /// Open requests, each with the context that its answer needs.
    #[serde(rename = "asked")]
    open_inputs: BTreeMap<InputKey, String>,
    conversation: Option<String>,
    /// The agent was asked to stop.
    interrupted: bool,
    /// The last text message, for a result that does not repeat it.
    #[serde(rename = "words")]
    last_message: LastMessage,
    /// The last visible output was text.
    #[serde(rename = "after_words")]
    last_visible_is_text: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum TurnStage {
    #[default]
    NotBegun,
    Running,
    Ended,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct LastMessage {
    message: Option<String>,
    text: String,
}

impl TurnState {
    /// A prompt was written. One that is written during a turn gets its own turn afterwards.
    pub(crate) fn on_prompt_written(&mut self, out: &mut Vec<AgentEvent>) {
        if self.state == TurnStage::Running {
            self.queued += 1;
        } else {
            self.begin(out);
        }
    }

    /// The agent has begun. Needed when the prompt was a command-line argument and not written
    /// to stdin.
    pub(crate) fn begin_if_not_begun(&mut self, out: &mut Vec<AgentEvent>) {
        if self.state == TurnStage::NotBegun {
            self.begin(out);
        }
    }

    fn begin(&mut self, out: &mut Vec<AgentEvent>) {
        self.state = TurnStage::Running;
        self.interrupted = false;
        self.ended_tools.clear();
        self.silent_lines.clear();
        self.last_message = LastMessage::default();
        self.last_visible_is_text = false;
        self.phase = None;
        self.reach_phase(TurnPhase::PromptWritten, out);
    }

    fn reach_phase(&mut self, phase: TurnPhase, out: &mut Vec<AgentEvent>) {
        if self.state == TurnStage::Running && self.phase.is_none_or(|reached| reached < phase) {
            self.phase = Some(phase);
            out.push(AgentEvent::Phase(phase));
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == TurnStage::Running
    }

    /// The agent is alive and works on the prompt.
    pub(crate) fn mark_active(&mut self, out: &mut Vec<AgentEvent>) {
        self.reach_phase(TurnPhase::FirstEventSeen, out);
    }

    /// Output outside a turn, such as a replayed conversation, is not visible.
    pub(crate) fn push_output(
        &mut self,
        kind: OutputKind,
        visible: bool,
        text: impl Into<String>,
        tool: Option<&str>,
        out: &mut Vec<AgentEvent>,
    ) {
        let text = text.into();
        if text.is_empty() {
            return;
        }
        self.mark_active(out);
        let visible = visible && self.is_running();
        if visible {
            self.reach_phase(TurnPhase::FirstVisibleEventSeen, out);
            self.last_visible_is_text = kind == OutputKind::Text;
        }
        out.push(AgentEvent::Output(AgentOutput {
            kind,
            visible,
            text,
            tool: tool.map(str::to_owned),
        }));
    }

    /// A line without an event of its own, such as a piece of a tool's input. There may be
    /// thousands of them. One of [`SILENT_LINES_PER_SIGN`] is forwarded, because the idle
    /// timers of the agent or tool would expire without any output.
    pub(crate) fn push_silent_activity(
        &mut self,
        json: &str,
        tool: Option<&str>,
        out: &mut Vec<AgentEvent>,
    ) {
        self.mark_active(out);
        let tool = tool.filter(|tool| self.is_tool_open(tool));
        let lines = self.silent_lines.entry(tool.unwrap_or_default().to_owned());
        let lines = lines.or_default();
        *lines = (*lines + 1) % SILENT_LINES_PER_SIGN;
        if *lines == 0 {
            self.push_output(OutputKind::System, false, json, tool, out);
        }
    }

    /// Output of the program that does not belong to the turn, such as the commands that it
    /// offers. It does not show that the agent works on the prompt.
    pub(crate) fn push_aside(&self, text: &str, out: &mut Vec<AgentEvent>) {
        out.push(AgentEvent::Output(AgentOutput {
            kind: OutputKind::System,
            visible: false,
            text: text.to_owned(),
            tool: None,
        }));
    }

    /// Text of the agent. `message` is its id, if any. A new message begins on a new line.
    pub(crate) fn push_text(
        &mut self,
        text: &str,
        message: Option<&str>,
        out: &mut Vec<AgentEvent>,
    ) {
        let is_new_message =
            self.last_message.message.as_deref() != message && self.last_visible_is_text;
        self.remember_text(text, message);
        let text = match text {
            "" => String::new(),
            text if is_new_message => format!("\n{text}"),
            text => text.to_owned(),
        };
        self.push_output(OutputKind::Text, true, text, None, out);
    }

    /// Remembers the last message without an event. Text without an id never replaces a message
    /// with one: it comes from the program and not from the agent.
    pub(crate) fn remember_text(&mut self, text: &str, message: Option<&str>) {
        if self.last_message.message.as_deref() != message {
            if message.is_none() {
                return;
            }
            self.last_message = LastMessage {
                message: message.map(str::to_owned),
                text: String::new(),
            };
        }
        let room = MAX_RESULT_BYTES.saturating_sub(self.last_message.text.len());
        self.last_message.text.push_str(truncate(text, room));
    }

    /// Text from here on is a new message.
    pub(crate) fn forget_text(&mut self) {
        self.last_message = LastMessage::default();
    }

    pub(crate) fn last_text(&self) -> &str {
        &self.last_message.text
    }

    /// A tool beyond the limit has no start event.
    pub(crate) fn on_tool_started(&mut self, id: &str, name: &str, out: &mut Vec<AgentEvent>) {
        self.mark_active(out);
        let is_new = self.is_running() && !self.ended_tools.contains(id);
        let fits = self.open_tools.len() < MAX_OPEN_TOOLS && id.len() <= MAX_TOOL_ID_BYTES;
        if is_new && fits && self.open_tools.insert(id.to_owned()) {
            out.push(AgentEvent::ToolStarted {
                id: id.to_owned(),
                name: name.to_owned(),
            });
        }
    }

    pub(crate) fn is_tool_open(&self, tool: &str) -> bool {
        self.open_tools.contains(tool)
    }

    pub(crate) fn on_tool_finished(&mut self, id: &str, failed: bool, out: &mut Vec<AgentEvent>) {
        self.mark_active(out);
        if self.open_tools.remove(id) {
            self.silent_lines.remove(id);
            self.ended_tools.insert(id);
            out.push(AgentEvent::ToolFinished {
                id: id.to_owned(),
                failed,
            });
        }
    }

    pub(crate) fn set_conversation(&mut self, id: &str, out: &mut Vec<AgentEvent>) {
        if !id.is_empty() && self.conversation.as_deref() != Some(id) {
            self.conversation = Some(id.to_owned());
            out.push(AgentEvent::Conversation(id.to_owned()));
        }
    }

    pub(crate) fn conversation(&self) -> Option<&str> {
        self.conversation.as_deref()
    }

    /// `needs` is stored and returned with the answer.
    pub(crate) fn open_input(
        &mut self,
        input: AgentInput,
        needs: String,
        out: &mut Vec<AgentEvent>,
    ) {
        self.mark_active(out);
        self.open_inputs.insert(input.key.clone(), needs);
        out.push(AgentEvent::InputAsked(input));
    }

    pub(crate) fn answer_context(&self, key: &InputKey) -> Option<&str> {
        self.open_inputs.get(key).map(String::as_str)
    }

    /// An answer was written to the agent.
    pub(crate) fn close_answered(&mut self, key: &InputKey, out: &mut Vec<AgentEvent>) {
        if self.open_inputs.remove(key).is_some() {
            out.push(AgentEvent::InputAnswered { key: key.clone() });
        }
    }

    pub(crate) fn close_withdrawn(
        &mut self,
        key: &InputKey,
        reason: &str,
        out: &mut Vec<AgentEvent>,
    ) {
        if self.open_inputs.remove(key).is_some() {
            out.push(AgentEvent::InputWithdrawn {
                key: key.clone(),
                reason: reason.to_owned(),
            });
        }
    }

    pub(crate) fn open_inputs(&self) -> impl Iterator<Item = &InputKey> {
        self.open_inputs.keys()
    }

    pub(crate) fn mark_interrupted(&mut self) {
        self.interrupted = true;
    }

    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Ends the turn and closes its open tools and inputs. A second end of the same turn is
    /// ignored.
    pub(crate) fn end_turn(
        &mut self,
        outcome: TurnOutcome,
        usage: Option<TurnUsage>,
        out: &mut Vec<AgentEvent>,
    ) {
        if self.state == TurnStage::Ended {
            return;
        }
        self.close_open_items("the turn is over", out);
        self.state = TurnStage::Ended;
        out.push(AgentEvent::Ended(TurnEnding { outcome, usage }));
        if self.queued > 0 {
            self.queued -= 1;
            self.begin(out);
        }
    }

    pub(crate) fn fail_turn(&mut self, failure: TurnFailure, out: &mut Vec<AgentEvent>) {
        self.end_turn(TurnOutcome::Failed(failure), None, out);
    }

    /// The process is gone, so queued prompts will not run.
    pub(crate) fn on_process_end(
        &mut self,
        failure: impl FnOnce() -> TurnFailure,
        out: &mut Vec<AgentEvent>,
    ) {
        self.queued = 0;
        if self.state != TurnStage::Ended {
            let outcome = TurnOutcome::Failed(failure());
            self.end_turn(outcome, None, out);
        }
        self.close_open_items("the agent has ended", out);
    }

    fn close_open_items(&mut self, reason: &str, out: &mut Vec<AgentEvent>) {
        for key in std::mem::take(&mut self.open_inputs).into_keys() {
            let reason = reason.to_owned();
            out.push(AgentEvent::InputWithdrawn { key, reason });
        }
        for id in std::mem::take(&mut self.open_tools) {
            self.ended_tools.insert(&id);
            out.push(AgentEvent::ToolFinished { id, failed: true });
        }
    }
}

/// A permission request that is bound to what a person will see. `None` if the arguments are
/// too long to be shown completely.
pub(crate) fn permission_input(
    tool_name: &str,
    arguments: &str,
    description: &str,
    can_allow_for_attempt: bool,
) -> Option<AgentInputKind> {
    if arguments.len() > MAX_ARGUMENTS_BYTES {
        return None;
    }
    let name = tool_name.trim();
    Some(AgentInputKind::Permission(ToolPermission {
        tool_name: truncate(if name.is_empty() { "tool" } else { name }, 256).to_owned(),
        arguments: arguments.to_owned(),
        digest: Sha256::digest(arguments.as_bytes()).into(),
        description: truncate(description, 4096).to_owned(),
        can_allow_for_attempt,
    }))
}

/// Sent to an agent whose request cannot be shown to a person.
pub(crate) const TOO_LONG_TO_SHOW: &str = "the arguments are too long to be shown to a person, so the request is refused; make them smaller";

/// At most `max` bytes, cut at a character boundary.
pub(crate) fn truncate(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max.min(text.len()))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::outcome::failure::FailureClass;

    fn ended(events: &[AgentEvent]) -> usize {
        let ends = events
            .iter()
            .filter(|event| matches!(event, AgentEvent::Ended(_)));
        ends.count()
    }

    #[test]
    fn a_turn_ends_once_and_closes_open_tools_and_inputs() {
        let (mut turn, mut out) = (TurnState::default(), Vec::new());
        turn.on_prompt_written(&mut out);
        turn.on_tool_started("t", "Bash", &mut out);
        turn.on_tool_started("t", "Bash", &mut out);
        let kind = permission_input("Bash", "{}", "", false).unwrap();
        let key = InputKey("k".to_owned());
        let input = AgentInput {
            key: key.clone(),
            tool_call_id: None,
            kind,
        };
        turn.open_input(input, String::new(), &mut out);
        turn.end_turn(TurnOutcome::Interrupted, None, &mut out);
        turn.end_turn(TurnOutcome::Result("late".to_owned()), None, &mut out);
        assert_eq!(ended(&out), 1);
        let withdrawn = AgentEvent::InputWithdrawn {
            key,
            reason: "the turn is over".to_owned(),
        };
        assert!(out.contains(&withdrawn));
        let starts = out
            .iter()
            .filter(|event| matches!(event, AgentEvent::ToolStarted { .. }));
        assert_eq!(starts.count(), 1);
    }

    #[test]
    fn a_prompt_during_a_turn_gets_its_own_turn() {
        let (mut turn, mut out) = (TurnState::default(), Vec::new());
        turn.on_prompt_written(&mut out);
        turn.on_prompt_written(&mut out);
        turn.end_turn(TurnOutcome::Result(String::new()), None, &mut out);
        assert!(turn.is_running());
        turn.end_turn(TurnOutcome::Result(String::new()), None, &mut out);
        turn.on_process_end(|| TurnFailure::new(FailureClass::NoResult, "no"), &mut out);
        assert_eq!(ended(&out), 2);
    }

    #[test]
    fn text_without_a_message_id_does_not_become_the_result() {
        let (mut turn, mut out) = (TurnState::default(), Vec::new());
        turn.on_prompt_written(&mut out);
        turn.push_text("Warning", None, &mut out);
        turn.push_text("Hel", Some("m"), &mut out);
        turn.push_text("lo", Some("m"), &mut out);
        turn.push_text("Warning", None, &mut out);
        assert_eq!(turn.last_text(), "Hello");
    }

    #[test]
    fn arguments_too_long_to_show_cannot_be_asked() {
        assert!(permission_input("Bash", &"x".repeat(MAX_ARGUMENTS_BYTES), "", false).is_some());
        assert!(
            permission_input("Bash", &"x".repeat(MAX_ARGUMENTS_BYTES + 1), "", false).is_none()
        );
    }
}
