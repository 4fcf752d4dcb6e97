//! Turns after the first. When a turn ends with a result, the required files are checked. If
//! some are missing, the agent gets their names in the same conversation and has another turn.
//!
//! The result of the check is stored before anything of it is sent to the agent, like an
//! answer. Otherwise the next daemon could find something else and give the same number to
//! another message.

use std::path::Path;

use baton_proto::v1::OutputKind;
use baton_validation::UnmetRequirement;
use serde::{Deserialize, Serialize};

use super::{AgentSession, AgentSessionEvent};
use crate::agents::{TurnEnding, TurnOutcome, TurnUsage};
use crate::deadlines::phase_order::OneTimePhase;
use crate::outbox::OutputLabel;

/// Turns that an agent may have after the first. An agent that forgot a file creates it when it
/// is asked; one that cannot create it would never stop being asked.
pub(crate) const MAX_FURTHER_TURNS: u32 = 2;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct FurtherTurns {
    /// How many more turns it may have.
    left: u32,
    /// How the last turn ended, while it is not known yet whether it was the final one.
    resting: Option<TurnEnding>,
    /// What the turns before the current one have used.
    used: Option<TurnUsage>,
}

impl AgentSession {
    /// Allows further turns when files are missing at the end of a turn.
    pub(crate) fn with_further_turns(mut self) -> Self {
        self.further.left = MAX_FURTHER_TURNS;
        self
    }

    /// A turn has ended, which need not be the end of the attempt.
    pub(super) fn on_turn_end(&mut self, end: TurnEnding, emitted: &mut Vec<AgentSessionEvent>) {
        if self.end.is_some() || self.further.resting.is_some() {
            return;
        }
        let used = TurnUsage::sum(self.further.used.take(), end.usage);
        let end = TurnEnding { usage: used, ..end };
        if self.may_continue(&end) {
            self.further.resting = Some(end);
            // The end of a turn is an event too, and may be the first.
            emitted.push(AgentSessionEvent::Phase(OneTimePhase::FirstEventSeen));
        } else {
            self.end = Some(end);
            self.close_stdin(emitted);
        }
    }

    fn may_continue(&self, end: &TurnEnding) -> bool {
        let has_result = matches!(end.outcome, TurnOutcome::Result(_));
        has_result && self.further.left > 0 && self.translator.further_prompt("").is_some()
    }

    /// Whether the required files have to be checked before the session goes on or ends.
    pub(in crate::attempt) fn awaits_file_check(&self) -> bool {
        self.further.resting.is_some()
    }

    /// The files were checked. When none is missing, the turn was the last one.
    pub(in crate::attempt) fn on_files_checked(
        &mut self,
        unmet: &[UnmetRequirement],
        root: &Path,
    ) -> Option<Vec<AgentSessionEvent>> {
        let end = self.further.resting.take()?;
        self.answers += 1;
        let mut emitted = Vec::new();
        let prompt = missing_files_prompt(unmet, root);
        match self.translator.further_prompt(&prompt) {
            Some(message) if !unmet.is_empty() => {
                self.further.left -= 1;
                self.further.used = end.usage;
                emitted.push(AgentSessionEvent::Phase(
                    OneTimePhase::FirstVisibleEventSeen,
                ));
                emitted.push(self.missing_files_output(unmet));
                self.queue_message(message, &mut emitted);
            }
            Some(_) | None => {
                self.end = Some(end);
                self.close_stdin(&mut emitted);
            }
        }
        Some(emitted)
    }

    /// Explains to a person who has just read a result why the agent goes on.
    fn missing_files_output(&mut self, unmet: &[UnmetRequirement]) -> AgentSessionEvent {
        let label = OutputLabel {
            kind: OutputKind::System,
            visible: true,
            tool_call_id: String::new(),
            before_prompt: false,
        };
        let missing = baton_validation::summarize_unmet(unmet, MAX_SHOWN_BYTES);
        let text = format!("{missing}. The agent was asked to create them and has another turn.");
        let text = self.format_output(&label, text);
        AgentSessionEvent::Output(label, text)
    }

    /// The end as it is known now. For a process that is gone, a turn that waits for its check
    /// was the last one.
    pub(super) fn latest_ending(&self) -> Option<&TurnEnding> {
        self.end.as_ref().or(self.further.resting.as_ref())
    }

    /// What earlier turns have used, when the end does not include it.
    pub(super) fn used_before(&self) -> Option<TurnUsage> {
        self.further.used.clone()
    }
}

/// The limit for the text that people see about missing files.
const MAX_SHOWN_BYTES: usize = 4096;

/// The prompt of a further turn.
fn missing_files_prompt(unmet: &[UnmetRequirement], root: &Path) -> String {
    let files: Vec<String> = unmet.iter().map(|unmet| format!("- {unmet}\n")).collect();
    format!(
        "Your work is not taken as done yet: files that it has to leave are not there as required.\n{}\
         These paths are relative to {}. Make these files, and then say again what you have done. \
         If you cannot, say why.",
        files.concat(),
        root.display()
    )
}
