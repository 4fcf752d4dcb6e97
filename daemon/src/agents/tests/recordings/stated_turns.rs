//! The turns of a recording as the independent reader states them: facts of its raw lines in
//! the order of its timeline.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::AgentRecording;
use super::raw_lines::{LineFact, RawLineReader, is_event, text_field};
use super::stated_outcomes;
use super::turn_facts::{StatedOutcome, TurnFacts};
use crate::agents::outcome::turn_usage::{TokenCounts, TurnUsage};
use crate::agents::tests::event_text;
use crate::config::AgentWire;

pub(super) fn stated_turns(recording: &AgentRecording) -> Vec<TurnFacts> {
    let (program, scenario) = recording.name.split_once('/').unwrap_or_default();
    let wire = recording.kind();
    let mut assembler = TurnAssembler {
        wire,
        outcome: stated_outcomes::stated_outcome(program, scenario),
        used_before: recording.used_before,
        resuming: recording.resumes().is_some(),
        turns: Vec::new(),
        now: TurnFacts::default(),
        running: false,
        begun: false,
        queued: 0,
        tools: BTreeMap::new(),
        open_tools: BTreeSet::new(),
        inputs: BTreeMap::new(),
        last_text: Default::default(),
    };
    let mut reader = RawLineReader::new(recording.resumes());
    for (out, line) in recording.steps() {
        // A line that is not a message has no facts, and a prompt need not be a message.
        let parsed: Value = serde_json::from_str(&line).unwrap_or_default();
        if out {
            if !parsed.is_object() {
                continue;
            }
            assembler.on_stdout_line(&parsed);
            let facts = reader.facts_of_stdout_line(wire, &parsed);
            facts
                .into_iter()
                .for_each(|fact| assembler.apply_fact(fact));
        } else if wire == AgentWire::CodexExec {
            // It reads only one prompt.
            if !assembler.begun {
                assembler.apply_fact(LineFact::Prompt);
            }
        } else {
            let facts = reader.facts_of_stdin_line(wire, &parsed);
            facts
                .into_iter()
                .for_each(|fact| assembler.apply_fact(fact));
        }
    }
    assembler.exit()
}

/// Assembles facts into turns.
struct TurnAssembler {
    wire: AgentWire,
    outcome: Option<StatedOutcome>,
    used_before: Option<TokenCounts>,
    resuming: bool,
    turns: Vec<TurnFacts>,
    now: TurnFacts,
    running: bool,
    begun: bool,
    queued: usize,
    tools: BTreeMap<String, usize>,
    open_tools: BTreeSet<String>,
    inputs: BTreeMap<String, usize>,
    last_text: (String, String),
}

impl TurnAssembler {
    fn begin(&mut self) {
        self.now = TurnFacts::default();
        self.now.phases.push("prompt");
        (self.running, self.begun) = (true, true);
        self.tools.clear();
        self.last_text = Default::default();
    }

    /// Handles a line of the agent's output. If the prompt was an argument, the first one
    /// begins the turn.
    fn on_stdout_line(&mut self, line: &Value) {
        let begins = match self.wire {
            AgentWire::Claude => {
                text_field(line, "/subtype") == "init" || text_field(line, "/type") == "result"
            }
            AgentWire::CodexExec => true,
            AgentWire::CodexAppServer | AgentWire::Acp => false,
        };
        if begins && !self.begun {
            self.begin();
        }
        if is_event(self.wire, line) {
            self.reach("event");
        }
    }

    fn reach(&mut self, phase: &'static str) {
        if self.running && !self.now.phases.contains(&phase) {
            self.now.phases.push(phase);
        }
    }

    fn apply_fact(&mut self, fact: LineFact) {
        match fact {
            LineFact::Prompt if self.running => self.queued += 1,
            LineFact::Prompt => self.begin(),
            // A failure before the prompt ends the turn that was to begin.
            LineFact::End(outcome) if self.running || !self.begun => self.end(outcome),
            _ if !self.running => {}
            LineFact::Visible => self.reach("visible"),
            LineFact::ToolBegan(id, name) => {
                if !self.tools.contains_key(&id) {
                    self.tools.insert(id.clone(), self.now.tools.len());
                    self.open_tools.insert(id);
                    self.now.tools.push(name);
                }
            }
            LineFact::ToolEnded(id, failed) => self.tool_ended(&id, failed),
            LineFact::Asked(id, what) => {
                self.inputs.insert(id, self.now.inputs.len());
                self.now.inputs.push(what);
            }
            LineFact::Answered(id) => self.input_closed(&id, " answered"),
            LineFact::Withdrawn(id) => self.input_closed(&id, " withdrawn"),
            LineFact::Used(tokens, price) => self.used(tokens, price),
            LineFact::Text(None) => self.last_text = Default::default(),
            LineFact::Text(Some(text)) => self.remember_text(text),
            LineFact::End(_) => {}
        }
    }

    /// Remembers the last message. Text without an id does not belong to a message with one.
    fn remember_text(&mut self, (message, text): (String, String)) {
        if message == self.last_text.0 {
            self.last_text.1 += &text;
        } else if !message.is_empty() {
            self.last_text = (message, text);
        }
    }

    fn tool_ended(&mut self, id: &str, failed: bool) {
        if self.open_tools.remove(id) {
            self.now.tools[self.tools[id]] += if failed { " failed" } else { " done" };
        }
    }

    fn input_closed(&mut self, id: &str, suffix: &str) {
        if let Some(at) = self.inputs.remove(id) {
            self.now.inputs[at] += suffix;
        }
    }

    /// Codex exec reports totals of the whole thread. The earlier total is known from the
    /// previous recording, or unknown.
    fn used(
        &mut self,
        tokens: TokenCounts,
        cost: Option<crate::agents::outcome::turn_usage::DollarAmount>,
    ) {
        let tokens = match (self.wire, self.resuming) {
            (AgentWire::CodexExec, true) => self.used_before.map(|before| tokens.since(before)),
            _ => Some(tokens),
        };
        self.now.used = tokens.map(|tokens| {
            event_text::usage_text(&TurnUsage {
                tokens,
                cost,
                ..TurnUsage::default()
            })
        });
    }

    /// For the first turn, the report's outcome overrides the line's own.
    fn end(&mut self, outcome: StatedOutcome) {
        let outcome = match (
            self.outcome.clone().filter(|_| self.turns.is_empty()),
            outcome,
        ) {
            (Some(stated), _) => stated,
            (None, StatedOutcome::Result(text)) if text.is_empty() => {
                StatedOutcome::Result(self.last_text.1.clone())
            }
            (None, outcome) => outcome,
        };
        for id in std::mem::take(&mut self.open_tools) {
            self.now.tools[self.tools[&id]] += " failed";
        }
        for at in std::mem::take(&mut self.inputs).into_values() {
            self.now.inputs[at] += " withdrawn";
        }
        let mut ended = std::mem::take(&mut self.now);
        ended.outcome = outcome;
        self.turns.push(ended);
        (self.running, self.begun) = (false, true);
        if self.queued > 0 {
            self.queued -= 1;
            self.begin();
        }
    }

    /// The process is gone, and queued prompts will not run.
    fn exit(mut self) -> Vec<TurnFacts> {
        self.queued = 0;
        if self.running || !self.begun {
            self.end(StatedOutcome::NotSuccessful);
        }
        self.turns
    }
}
