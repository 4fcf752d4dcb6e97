//! The common interface to every kind of coding agent: bytes in, events out. Pure: no clock, no
//! randomness, no files. Its state can be stored and restored. The caller passes every message
//! that is written to the agent's stdin through [`AgentTranslator::on_written`], so that the
//! transcript alone determines the events.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::acp::AcpAdapter;
use super::agent_event::{AgentEvent, AgentExit, AgentInputAnswer, InputKey, StdinMessage};
use super::claude::ClaudeAdapter;
use super::codex::{CodexAppServer, CodexExec};
use super::json_rpc;
use super::json_rpc::OversizedMessage;
use super::line_splitter::{LineSplitter, OutputLine};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgentTranslator {
    wire: AgentAdapter,
    /// The prompt, for wires whose first message it is.
    prompt: String,
    stdout: LineSplitter,
    lines: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum AgentAdapter {
    Claude(ClaudeAdapter),
    CodexAppServer(CodexAppServer),
    CodexExec(CodexExec),
    Acp(AcpAdapter),
}

impl AgentTranslator {
    pub(crate) fn new(wire: AgentAdapter, prompt: impl Into<String>) -> Self {
        Self {
            wire,
            prompt: prompt.into(),
            stdout: LineSplitter::default(),
            lines: 0,
        }
    }

    /// The first message to write. Called once: a prompt may be long and is dropped after this.
    pub(crate) fn first_message(&mut self) -> StdinMessage {
        let prompt = std::mem::take(&mut self.prompt);
        match &self.wire {
            AgentAdapter::Claude(_) => ClaudeAdapter::prompt_message(&prompt),
            AgentAdapter::CodexAppServer(_) => CodexAppServer::initialize_request(),
            AgentAdapter::CodexExec(_) => CodexExec::prompt_message(&prompt),
            AgentAdapter::Acp(_) => AcpAdapter::initialize_request(),
        }
    }

    pub(crate) fn push_stdout(&mut self, bytes: &[u8]) {
        self.stdout.push(bytes);
    }

    /// Events of the next line. Messages that result from one line are written before the next
    /// line is read, so that the chunking of the bytes has no effect.
    pub(crate) fn next_events(&mut self) -> Option<Vec<AgentEvent>> {
        let line = self.stdout.next()?;
        let mut out = Vec::new();
        self.on_line(line, &mut out);
        Some(out)
    }

    /// Bytes of stdout that have produced no event yet.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.stdout.buffered_bytes()
    }

    fn on_line(&mut self, line: OutputLine, out: &mut Vec<AgentEvent>) {
        self.lines += 1;
        let bytes = match line {
            OutputLine::Whole(bytes) => bytes,
            OutputLine::TooLong { length, beginning } => {
                out.push(AgentEvent::LineCut { length });
                self.on_oversized_line(&String::from_utf8_lossy(&beginning), out);
                return;
            }
        };
        let line = self.lines;
        // An invalid byte in a long answer must not invalidate the whole answer.
        let text = String::from_utf8_lossy(&bytes);
        let byte_order_mark = if line == 1 { "\u{feff}" } else { "" };
        let json = text.strip_prefix(byte_order_mark).unwrap_or(&text).trim();
        if json.is_empty() {
            return;
        }
        let Some((read, message)) = json_rpc::parse_json(json) else {
            out.push(AgentEvent::Malformed { line });
            return;
        };
        if !self.on_message(&read, &message, out) {
            out.push(AgentEvent::Malformed { line });
        } else if matches!((&text, &read), (Cow::Owned(_), _) | (_, Cow::Owned(_))) {
            out.push(AgentEvent::Repaired { line });
        }
    }

    fn on_message(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) -> bool {
        match &mut self.wire {
            AgentAdapter::Claude(claude) => claude.on_message(json, message, out),
            AgentAdapter::CodexAppServer(server) => server.on_message(json, message, out),
            AgentAdapter::CodexExec(exec) => exec.on_message(json, message, out),
            AgentAdapter::Acp(acp) => acp.on_message(json, message, out),
        }
    }

    /// The agent may wait for a response to the discarded line, or the line may have been the
    /// response to a request.
    fn on_oversized_line(&mut self, beginning: &str, out: &mut Vec<AgentEvent>) {
        match &mut self.wire {
            AgentAdapter::Claude(_) => {
                out.extend(ClaudeAdapter::oversized_response(beginning).map(AgentEvent::Write))
            }
            AgentAdapter::CodexAppServer(server) => {
                server.on_oversized_message(&OversizedMessage::read(beginning), out)
            }
            AgentAdapter::CodexExec(_) => {}
            AgentAdapter::Acp(acp) => {
                acp.on_oversized_message(&OversizedMessage::read(beginning), out)
            }
        }
    }

    /// Records a message written to the agent's stdin. An empty message only closes stdin.
    pub(crate) fn on_written(&mut self, bytes: &[u8]) -> Vec<AgentEvent> {
        let mut out = Vec::new();
        if bytes.is_empty() {
            return out;
        }
        if let AgentAdapter::CodexExec(exec) = &mut self.wire {
            exec.on_written(&mut out);
            return out;
        }
        let Ok(message) = serde_json::from_slice(bytes) else {
            return out;
        };
        match &mut self.wire {
            AgentAdapter::Claude(claude) => claude.on_written(&message, &mut out),
            AgentAdapter::CodexAppServer(server) => server.on_written(&message, &mut out),
            AgentAdapter::Acp(acp) => acp.on_written(&message, &mut out),
            AgentAdapter::CodexExec(_) => {}
        }
        out
    }

    /// Another prompt in the same conversation, after a turn has ended. `None` if the agent
    /// accepts only one prompt or its conversation is not open.
    pub(crate) fn further_prompt(&self, prompt: &str) -> Option<StdinMessage> {
        match &self.wire {
            AgentAdapter::Claude(_) => Some(ClaudeAdapter::prompt_message(prompt)),
            AgentAdapter::CodexAppServer(server) => server.further_prompt(prompt),
            AgentAdapter::CodexExec(_) => None,
            AgentAdapter::Acp(acp) => acp.further_prompt(prompt),
        }
    }

    /// The answer as a message to the agent. `None` if no input with this key is open.
    pub(crate) fn answer_message(
        &self,
        key: &InputKey,
        answer: &AgentInputAnswer,
    ) -> Option<StdinMessage> {
        match &self.wire {
            AgentAdapter::Claude(claude) => claude.answer_message(key, answer),
            AgentAdapter::CodexAppServer(server) => server.answer_message(key, answer),
            AgentAdapter::CodexExec(_) => None,
            AgentAdapter::Acp(acp) => acp.answer_message(key, answer),
        }
    }

    /// Messages that ask the agent to end its turn. Empty if only a signal can do that.
    pub(crate) fn interrupt_messages(&self) -> Vec<StdinMessage> {
        match &self.wire {
            AgentAdapter::Claude(claude) => claude.interrupt_messages(),
            AgentAdapter::CodexAppServer(server) => server.interrupt_messages(),
            AgentAdapter::CodexExec(_) => Vec::new(),
            AgentAdapter::Acp(acp) => acp.interrupt_messages(),
        }
    }

    /// The process ended, with its last output on standard error. A turn without an end has
    /// failed.
    pub(crate) fn on_exit(&mut self, exit: AgentExit, stderr: &str) -> Vec<AgentEvent> {
        let mut out = Vec::new();
        while let Some(events) = self.next_events() {
            out.extend(events);
        }
        if let Some(line) = self.stdout.finish() {
            self.on_line(line, &mut out);
        }
        match &mut self.wire {
            AgentAdapter::Claude(claude) => claude.on_exit(exit, stderr, &mut out),
            AgentAdapter::CodexAppServer(server) => server.on_exit(exit, stderr, &mut out),
            AgentAdapter::CodexExec(exec) => exec.on_exit(exit, stderr, &mut out),
            AgentAdapter::Acp(acp) => acp.on_exit(exit, stderr, &mut out),
        }
        out
    }
}
