//! What an agent has to be told on its stdin: numbered, kept until it is known to be written, and bounded.

use baton_proto::worker::Stdin;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{AgentSession, AgentSessionEvent};
use crate::agents::{self, AgentEvent, FailureClass, StdinMessage, TurnFailure, TurnPhase};
use crate::shim::STDIN_QUEUE_BYTES_MAX;

/// What waits for an agent to read beside the prompt. One that reads has a batch of its own requests before it at most.
pub(super) const MAX_UNREAD_BYTES: usize = STDIN_QUEUE_BYTES_MAX;
const UNREAD_FAILURE: &str =
    "the agent asked more and more and did not read the answers on its standard input";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UnsentMessage {
    pub(super) id: u64,
    pub(super) message: StdinMessage,
    /// It may leave when so many answers are stored: a daemon that forgot one would number what follows anew.
    pub(super) after_answers: u64,
}

impl UnsentMessage {
    fn size(&self) -> usize {
        self.message.bytes.len()
    }
}

impl AgentSession {
    /// Numbers a message. What it means to the adapter is noted now, before the next line is read.
    pub(super) fn queue_message(
        &mut self,
        message: StdinMessage,
        told: &mut Vec<AgentSessionEvent>,
    ) {
        self.last_stdin += 1;
        let events = self.translator.on_written(&message.bytes);
        if events.contains(&AgentEvent::Phase(TurnPhase::PromptWritten)) {
            // A further turn has a prompt too.
            self.prompt.get_or_insert(self.last_stdin);
        }
        let unsent = UnsentMessage {
            id: self.last_stdin,
            message,
            after_answers: self.answers,
        };
        self.unread_bytes += self.unread_size(&unsent);
        self.unsent.push_back(unsent);
        told.extend(self.apply_events(events));
        self.fail_if_unread(told);
    }

    /// What the adapter has to say to the agent. Once the turn is over nobody is left to read it.
    pub(super) fn queue_within_turn(
        &mut self,
        message: StdinMessage,
        told: &mut Vec<AgentSessionEvent>,
    ) {
        if self.end.is_none() {
            self.queue_message(message, told);
        }
    }

    /// An agent that asks and asks and never reads what it is told would fill the worker's memory and disk with that.
    fn fail_if_unread(&mut self, told: &mut Vec<AgentSessionEvent>) {
        if self.unread_bytes > MAX_UNREAD_BYTES {
            let failure = TurnFailure::new(FailureClass::OutputInvalid, UNREAD_FAILURE);
            let end = agents::TurnEnding {
                outcome: agents::TurnOutcome::Failed(failure),
                usage: None,
            };
            self.apply_event(AgentEvent::Ended(end), told);
        }
    }

    /// What goes to stdin and is not known to be written: those after `sent`, as far as they may leave.
    /// No more at once than a shim keeps: one that is sent more hangs up, and hears neither renewal nor stop.
    pub(in crate::attempt) fn stdin_after(
        &self,
        sent: u64,
        stored_answers: u64,
    ) -> impl Iterator<Item = Stdin> {
        let mut waiting = 0;
        let kept = self.unsent.iter().take_while(move |unsent| {
            let is_first = waiting == 0;
            waiting += unsent.size();
            is_first || waiting <= STDIN_QUEUE_BYTES_MAX
        });
        let due = kept.filter(move |unsent| unsent.id > sent);
        let due = due.take_while(move |unsent| unsent.after_answers <= stored_answers);
        due.map(|unsent| Stdin {
            id: unsent.id,
            data: Bytes::copy_from_slice(&unsent.message.bytes),
            close: unsent.message.last,
        })
    }

    pub(in crate::attempt) fn on_stdin_done(&mut self, id: u64) {
        while let Some(read) = self.unsent.pop_front_if(|unsent| unsent.id <= id) {
            self.unread_bytes = self.unread_bytes.saturating_sub(self.unread_size(&read));
        }
    }

    /// A long prompt is nothing that the agent brought about.
    pub(super) fn unread_size(&self, unsent: &UnsentMessage) -> usize {
        match self.prompt == Some(unsent.id) {
            true => 0,
            false => unsent.size(),
        }
    }

    /// No further turn is wanted: an agent that reads on finds the end.
    pub(super) fn close_stdin(&mut self, told: &mut Vec<AgentSessionEvent>) {
        let closed = self.unsent.iter().any(|unsent| unsent.message.last);
        if !closed {
            let goodbye = StdinMessage {
                bytes: Vec::new(),
                last: true,
            };
            self.queue_message(goodbye, told);
        }
    }
}
