//! Turns beyond the first. A turn that ended with a result rests until somebody has looked for the files that the task has
//! to leave: where some are missing, the agent is told which, in the same conversation, and has another turn. What the
//! look found is stored before anything of it goes to the agent, like an answer, so that the next daemon does not
//! find something else and give the same number to another message.

use std::path::Path;

use baton_proto::v1::OutputKind;
use baton_validation::UnmetRequirement;
use serde::{Deserialize, Serialize};

use super::{AgentSession, AgentSessionEvent};
use crate::agents::{TurnEnding, TurnOutcome, TurnUsage};
use crate::deadlines::phase_order::OneTimePhase;
use crate::outbox::OutputLabel;

/// Turns that an agent may have beyond the first. One that has forgotten a file makes it when it is told; one that cannot
/// make it does not learn that by being asked for ever.
pub(crate) const MAX_FURTHER_TURNS: u32 = 2;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct FurtherTurns {
    /// So many it may still have.
    left: u32,
    /// How a turn ended of which it is not known yet whether it was the last.
    resting: Option<TurnEnding>,
    /// What the turns before the one that runs have used.
    used: Option<TurnUsage>,
}

impl AgentSession {
    /// It may make up for files that are missing at the end of a turn.
    pub(crate) fn with_further_turns(mut self) -> Self {
        self.further.left = MAX_FURTHER_TURNS;
        self
    }

    /// A turn has ended. Not every end is the attempt's.
    pub(super) fn on_turn_end(&mut self, end: TurnEnding, told: &mut Vec<AgentSessionEvent>) {
        if self.end.is_some() || self.further.resting.is_some() {
            return;
        }
        let used = TurnUsage::sum(self.further.used.take(), end.usage);
        let end = TurnEnding { usage: used, ..end };
        if self.may_continue(&end) {
            self.further.resting = Some(end);
            // It is an event too, and may be the first.
            told.push(AgentSessionEvent::Phase(OneTimePhase::FirstEventSeen));
        } else {
            self.end = Some(end);
            self.close_stdin(told);
        }
    }

    fn may_continue(&self, end: &TurnEnding) -> bool {
        let has_result = matches!(end.outcome, TurnOutcome::Result(_));
        has_result && self.further.left > 0 && self.translator.further_prompt("").is_some()
    }

    /// Whether somebody has to look for its files before it goes on or ends.
    pub(in crate::attempt) fn awaits_file_check(&self) -> bool {
        self.further.resting.is_some()
    }

    /// Somebody has looked. Where nothing is missing, the turn was the last one.
    pub(in crate::attempt) fn on_files_checked(
        &mut self,
        unmet: &[UnmetRequirement],
        root: &Path,
    ) -> Option<Vec<AgentSessionEvent>> {
        let end = self.further.resting.take()?;
        self.answers += 1;
        let mut told = Vec::new();
        let words = missing_files_prompt(unmet, root);
        match self.translator.further_prompt(&words) {
            Some(message) if !unmet.is_empty() => {
                self.further.left -= 1;
                self.further.used = end.usage;
                told.push(AgentSessionEvent::Phase(
                    OneTimePhase::FirstVisibleEventSeen,
                ));
                told.push(self.missing_files_output(unmet));
                self.queue_message(message, &mut told);
            }
            Some(_) | None => {
                self.end = Some(end);
                self.close_stdin(&mut told);
            }
        }
        Some(told)
    }

    /// Whoever follows has just read a result.
    fn missing_files_output(&mut self, unmet: &[UnmetRequirement]) -> AgentSessionEvent {
        let label = OutputLabel {
            kind: OutputKind::System,
            visible: true,
            tool_call_id: String::new(),
            before_prompt: false,
        };
        let missing = baton_validation::summarize_unmet(unmet, MAX_SHOWN_BYTES);
        let text = format!("{missing}. The agent was told, and has another turn.");
        let text = self.format_output(&label, text);
        AgentSessionEvent::Output(label, text)
    }

    /// The end as it is known now: of a process that is gone a turn that rests was the last.
    pub(super) fn latest_ending(&self) -> Option<&TurnEnding> {
        self.end.as_ref().or(self.further.resting.as_ref())
    }

    /// What was used where the end does not say.
    pub(super) fn used_before(&self) -> Option<TurnUsage> {
        self.further.used.clone()
    }
}

/// Bytes of what people are shown about missing files.
const MAX_SHOWN_BYTES: usize = 4096;

/// What the agent is told.
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
