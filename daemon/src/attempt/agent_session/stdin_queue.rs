//! Messages for an agent's stdin: numbered, bounded, and kept until they are reported as
//! written.

use baton_proto::worker::Stdin;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{AgentSession, AgentSessionEvent};
use crate::agents::{self, AgentEvent, FailureClass, StdinMessage, TurnFailure, TurnPhase};
use crate::shim::STDIN_QUEUE_BYTES_MAX;

/// What may wait for an agent to read it, beside the prompt. An agent that reads its stdin has
/// at most the answers to one batch of its own requests before it.
pub(super) const MAX_UNREAD_BYTES: usize = STDIN_QUEUE_BYTES_MAX;
const UNREAD_FAILURE: &str =
    "the agent sent more requests and did not read the answers on its standard input";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct UnsentMessage {
    pub(super) id: u64,
    pub(super) message: StdinMessage,
    /// The message may be sent when this many answers are stored. Otherwise a daemon that lost
    /// an answer would give its number to another message.
    pub(super) after_answers: u64,
}

impl UnsentMessage {
    fn size(&self) -> usize {
        self.message.bytes.len()
    }
}

impl AgentSession {
    /// Numbers a message. The translator records its meaning now, before the next line is read.
    pub(super) fn queue_message(
        &mut self,
        message: StdinMessage,
        emitted: &mut Vec<AgentSessionEvent>,
    ) {
        self.last_stdin += 1;
        let events = self.translator.on_written(&message.bytes);
        if events.contains(&AgentEvent::Phase(TurnPhase::PromptWritten)) {
            // A further turn has a prompt too; the first one counts.
            self.prompt.get_or_insert(self.last_stdin);
        }
        let unsent = UnsentMessage {
            id: self.last_stdin,
            message,
            after_answers: self.answers,
        };
        self.unread_bytes += self.unread_size(&unsent);
        self.unsent.push_back(unsent);
        emitted.extend(self.apply_events(events));
        self.fail_if_unread(emitted);
    }

    /// Queues a message of the translator. After the end of the turn the agent no longer reads
    /// its stdin.
    pub(super) fn queue_within_turn(
        &mut self,
        message: StdinMessage,
        emitted: &mut Vec<AgentSessionEvent>,
    ) {
        if self.end.is_none() {
            self.queue_message(message, emitted);
        }
    }

    /// Fails an agent that sends requests and never reads the answers: they would fill the
    /// worker's memory and disk.
    fn fail_if_unread(&mut self, emitted: &mut Vec<AgentSessionEvent>) {
        if self.unread_bytes > MAX_UNREAD_BYTES {
            let failure = TurnFailure::new(FailureClass::OutputInvalid, UNREAD_FAILURE);
            let end = agents::TurnEnding {
                outcome: agents::TurnOutcome::Failed(failure),
                usage: None,
            };
            self.apply_event(AgentEvent::Ended(end), emitted);
        }
    }

    /// Messages after `sent` that are not reported as written and may be sent. At most as many
    /// bytes as a shim buffers: a shim that gets more closes the connection and then receives
    /// neither renewals nor orders.
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

    /// The prompt does not count: its length is not the agent's doing.
    pub(super) fn unread_size(&self, unsent: &UnsentMessage) -> usize {
        match self.prompt == Some(unsent.id) {
            true => 0,
            false => unsent.size(),
        }
    }

    /// No further turn follows: closes stdin, so that an agent that reads on finds its end.
    pub(super) fn close_stdin(&mut self, emitted: &mut Vec<AgentSessionEvent>) {
        let closed = self.unsent.iter().any(|unsent| unsent.message.last);
        if !closed {
            let close_message = StdinMessage {
                bytes: Vec::new(),
                last: true,
            };
            self.queue_message(close_message, emitted);
        }
    }
}
