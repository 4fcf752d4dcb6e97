//! The tasks of attempts: each drives one shim and tells what happens there. What it tells becomes frames in `held`.

use baton_proto::codes;
use tracing::info;

use super::Supervisor;
use super::attempt_tasks::AttemptTaskKind;
use crate::agents::{AttemptVerdict, judge_ending};
use crate::attempt::{
    self, AttemptChannels, AttemptEnding, AttemptEnvironment, AttemptEvent, AttemptRunInput,
    ChildStdin, ShimContact, TranscriptReader,
};
use crate::supervised_attempt::{AttemptControlReceivers, AttemptStart};

impl Supervisor {
    /// What starts once its lease is confirmed.
    pub(super) fn start_attempt(&mut self, start: AttemptStart) {
        let AttemptStart {
            plan,
            token,
            dir,
            control: bits,
        } = start;
        info!(attempt_id = %plan.attempt_id, "lease confirmed; starting");
        let fold = TranscriptReader::new(plan.deadlines);
        let fold = match &plan.stdin {
            ChildStdin::Prompt(_) => fold,
            ChildStdin::AgentSession(talk) => fold.with_agent_session(talk.clone()),
        };
        let errand = AttemptRunInput {
            attempt_id: plan.attempt_id.clone(),
            task_id: plan.task_id.clone(),
            workspace: Some(plan.workspace.clone()),
            cleanup_term: plan.cleanup_term,
            required_files: plan.required_files.clone(),
            directory: self.attempt_dirs.attempt_dir(dir).path().to_owned(),
            transcript_reader: fold,
            position: 0,
            replay_from: 0,
            shim_contact: ShimContact::Launch {
                plan: Box::new(plan),
                token,
            },
        };
        self.spawn_attempt_task(errand, bits);
        let now = self.clock.now();
        let shortest = self.shortest_ttl();
        if let Some((live, ttl)) = self.live_session.as_mut().zip(shortest) {
            live.heartbeats.shorten_for_lease(ttl, now);
        }
    }

    /// The task that an attempt has from here to its end.
    pub(super) fn spawn_attempt_task(
        &mut self,
        errand: AttemptRunInput,
        bits: AttemptControlReceivers,
    ) {
        let lines = AttemptChannels {
            stop: bits.stop,
            pause_output: bits.pause_output,
            lease: bits.lease,
            received_position: bits.received_position,
            consumed: bits.consumed,
            stored_answers: bits.stored_answers,
            outcome_fixed: bits.outcome_fixed,
            answers: bits.answers,
            lease_delivered: bits.lease_delivered,
            events: self.event_sender.clone(),
        };
        let id = errand.attempt_id.clone();
        let workshop = AttemptEnvironment {
            // The relay may have given it meanwhile.
            daemon_id: self.identity.daemon_id().to_owned(),
            ..self.attempt_environment.clone()
        };
        let task = self
            .tasks
            .spawn(attempt::run_attempt(errand, lines, workshop))
            .id();
        self.task_kinds.insert(task, AttemptTaskKind::Run(id));
    }

    pub(super) fn on_attempt_event(&mut self, id: &str, event: AttemptEvent) {
        if let AttemptEvent::Ended(ending) = &event {
            self.record_conversation(id, ending);
        }
        let keeping_up = self.is_relay_expected();
        if let Some(held) = self.supervised.get_mut(id) {
            held.on_event(event, &self.clock);
            held.update_backpressure(keeping_up);
            self.enqueue(id);
        }
    }

    /// The next turn goes on with what the agent calls the conversation now, or begins anew if it knows it no more.
    fn record_conversation(&mut self, id: &str, ending: &AttemptEnding) {
        let held = self.supervised.get(id);
        let Some(conversing) = held.and_then(|held| held.conversation.as_ref()) else {
            return;
        };
        match judge_ending(ending) {
            AttemptVerdict::Failed(failing) if failing.code == codes::RESUME_FAILED => {
                self.conversations.remove(&conversing.key);
            }
            AttemptVerdict::Complete(_)
            | AttemptVerdict::Failed(_)
            | AttemptVerdict::Withdrawn { .. }
            | AttemptVerdict::Stopped => {
                let Some(spoken) = &ending.agent_summary else {
                    return;
                };
                let usage = spoken.end.as_ref().and_then(|end| end.usage.as_ref());
                if let Some(session) = &spoken.conversation {
                    let now = self.clock.wall();
                    self.conversations
                        .record_turn(conversing, session, usage, now);
                }
            }
        }
    }

    /// Whether the relay is there to take what attempts say, or is expected any moment.
    pub(super) fn is_relay_expected(&self) -> bool {
        self.live_session.is_some() || self.relay_awaited_until.is_some()
    }
}
