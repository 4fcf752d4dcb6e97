//! The one interface to every kind of coding agent: its bytes in, the same events out. Pure: no clock, no chance, no
//! files. Its state can be stored and taken up again, and whoever drives it passes every message that goes to the
//! agent's stdin through [`Translator::wrote`], so that the transcript alone decides what it says.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::acp::Acp;
use super::claude::Claude;
use super::codex::{AppServer, Exec};
use super::event::{AgentEvent, AgentExit, Answer, InputKey, Message};
use super::lines::{Line, LineCutter};
use super::wire::{self, Cut};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Translator {
    wire: Wire,
    /// The prompt, for wires on which it is the first message.
    prompt: String,
    stdout: LineCutter,
    lines: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Wire {
    Claude(Claude),
    CodexAppServer(AppServer),
    CodexExec(Exec),
    Acp(Acp),
}

impl Translator {
    pub(crate) fn new(wire: Wire, prompt: impl Into<String>) -> Self {
        Self {
            wire,
            prompt: prompt.into(),
            stdout: LineCutter::default(),
            lines: 0,
        }
    }

    /// What is written first. Asked for once: a prompt may be long, and is not kept longer than it is needed.
    pub(crate) fn opening(&mut self) -> Message {
        let prompt = std::mem::take(&mut self.prompt);
        match &self.wire {
            Wire::Claude(_) => Claude::prompt(&prompt),
            Wire::CodexAppServer(_) => AppServer::greeting(),
            Wire::CodexExec(_) => Exec::prompt(&prompt),
            Wire::Acp(_) => Acp::greeting(),
        }
    }

    pub(crate) fn stdout(&mut self, bytes: &[u8]) {
        self.stdout.push(bytes);
    }

    /// What the next line comes to. Line by line: what has to be written because of one is written before the next is
    /// read, so that nothing hangs on how the bytes were cut.
    pub(crate) fn next(&mut self) -> Option<Vec<AgentEvent>> {
        let line = self.stdout.next()?;
        let mut out = Vec::new();
        self.on_line(line, &mut out);
        Some(out)
    }

    /// Bytes of stdout that no event has come of yet.
    pub(crate) fn held(&self) -> usize {
        self.stdout.held()
    }

    fn on_line(&mut self, line: Line, out: &mut Vec<AgentEvent>) {
        self.lines += 1;
        let bytes = match line {
            Line::Whole(bytes) => bytes,
            Line::TooLong { length, beginning } => {
                out.push(AgentEvent::LineCut { length });
                self.on_cut(&String::from_utf8_lossy(&beginning), out);
                return;
            }
        };
        let line = self.lines;
        // A wrong byte in a long answer must not cost the answer.
        let text = String::from_utf8_lossy(&bytes);
        let mark = if line == 1 { "\u{feff}" } else { "" };
        let json = text.strip_prefix(mark).unwrap_or(&text).trim();
        if json.is_empty() {
            return;
        }
        let Some((read, message)) = wire::read(json) else {
            out.push(AgentEvent::Malformed { line });
            return;
        };
        if !self.on_message(&read, &message, out) {
            out.push(AgentEvent::Malformed { line });
        } else if matches!((&text, &read), (Cow::Owned(_), _) | (_, Cow::Owned(_))) {
            out.push(AgentEvent::Mended { line });
        }
    }

    fn on_message(&mut self, json: &str, message: &Value, out: &mut Vec<AgentEvent>) -> bool {
        match &mut self.wire {
            Wire::Claude(claude) => claude.line(json, message, out),
            Wire::CodexAppServer(server) => server.line(json, message, out),
            Wire::CodexExec(exec) => exec.line(json, message, out),
            Wire::Acp(acp) => acp.line(json, message, out),
        }
    }

    /// Somebody may wait for an answer that was thrown away, or for one to what was.
    fn on_cut(&mut self, beginning: &str, out: &mut Vec<AgentEvent>) {
        match &mut self.wire {
            Wire::Claude(_) => out.extend(Claude::cut(beginning).map(AgentEvent::Write)),
            Wire::CodexAppServer(server) => server.cut(&Cut::read(beginning), out),
            Wire::CodexExec(_) => {}
            Wire::Acp(acp) => acp.cut(&Cut::read(beginning), out),
        }
    }

    /// A message goes to the agent's stdin. An empty one, which only closes it, says nothing.
    pub(crate) fn wrote(&mut self, bytes: &[u8]) -> Vec<AgentEvent> {
        let mut out = Vec::new();
        if bytes.is_empty() {
            return out;
        }
        if let Wire::CodexExec(exec) = &mut self.wire {
            exec.wrote(&mut out);
            return out;
        }
        let Ok(message) = serde_json::from_slice(bytes) else {
            return out;
        };
        match &mut self.wire {
            Wire::Claude(claude) => claude.wrote(&message, &mut out),
            Wire::CodexAppServer(server) => server.wrote(&message, &mut out),
            Wire::Acp(acp) => acp.wrote(&message, &mut out),
            Wire::CodexExec(_) => {}
        }
        out
    }

    /// Another prompt in the same conversation, behind a turn that is over. None where the agent takes no second one, or
    /// its conversation is not open.
    pub(crate) fn further(&self, prompt: &str) -> Option<Message> {
        match &self.wire {
            Wire::Claude(_) => Some(Claude::prompt(prompt)),
            Wire::CodexAppServer(server) => server.further(prompt),
            Wire::CodexExec(_) => None,
            Wire::Acp(acp) => acp.further(prompt),
        }
    }

    /// The answer as it has to be written. None when nothing of this key is open.
    pub(crate) fn answer(&self, key: &InputKey, answer: &Answer) -> Option<Message> {
        match &self.wire {
            Wire::Claude(claude) => claude.answer(key, answer),
            Wire::CodexAppServer(server) => server.answer(key, answer),
            Wire::CodexExec(_) => None,
            Wire::Acp(acp) => acp.answer(key, answer),
        }
    }

    /// How the agent is asked to end its turn. Empty where only a signal will do.
    pub(crate) fn interrupt(&self) -> Vec<Message> {
        match &self.wire {
            Wire::Claude(claude) => claude.interrupt(),
            Wire::CodexAppServer(server) => server.interrupt(),
            Wire::CodexExec(_) => Vec::new(),
            Wire::Acp(acp) => acp.interrupt(),
        }
    }

    /// No more bytes come, and this is how the process ended and what it said last on standard error. A turn without
    /// an end has failed.
    pub(crate) fn exited(&mut self, exit: AgentExit, stderr: &str) -> Vec<AgentEvent> {
        let mut out = Vec::new();
        while let Some(events) = self.next() {
            out.extend(events);
        }
        if let Some(line) = self.stdout.finish() {
            self.on_line(line, &mut out);
        }
        match &mut self.wire {
            Wire::Claude(claude) => claude.exited(exit, stderr, &mut out),
            Wire::CodexAppServer(server) => server.exited(exit, stderr, &mut out),
            Wire::CodexExec(exec) => exec.exited(exit, stderr, &mut out),
            Wire::Acp(acp) => acp.exited(exit, stderr, &mut out),
        }
        out
    }
}
