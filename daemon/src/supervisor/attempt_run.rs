//! Starts the tasks of attempts and handles what they report.

use baton_proto::codes;
use tokio::task::{Id, JoinError};
use tracing::info;

use super::Supervisor;
use super::attempt_tasks::AttemptTaskKind;
use crate::agents::{AttemptVerdict, judge_ending};
use crate::attempt::{
    AttemptEnding, AttemptEvent, AttemptRunInput, ChildStdin, ShimContact, TranscriptReader,
};
use crate::process::TerminationOutcome;
use crate::storage::conversation_store::{ConversationStore, ConversationTurn};
use crate::supervised_attempt::{AttemptStart, SupervisedAttempt};

impl Supervisor {
    /// Starts the task of an attempt whose lease was confirmed.
    pub(super) fn start_attempt(&mut self, start: AttemptStart) {
        let AttemptStart {
            plan,
            token,
            dir,
            control,
        } = start;
        info!(attempt_id = %plan.attempt_id, "lease confirmed; starting");
        let reader = TranscriptReader::new(plan.deadlines);
        let transcript_reader = match &plan.stdin {
            ChildStdin::Prompt(_) => reader,
            ChildStdin::AgentSession(session) => reader.with_agent_session(session.clone()),
        };
        let input = AttemptRunInput {
            attempt_id: plan.attempt_id.clone(),
            task_id: plan.task_id.clone(),
            workspace: Some(plan.workspace.clone()),
            cleanup_term: plan.cleanup_term,
            required_files: plan.required_files.clone(),
            directory: self.attempt_dirs.attempt_dir(dir).path().to_owned(),
            transcript_reader,
            position: 0,
            replay_from: 0,
            shim_contact: ShimContact::Launch {
                plan: Box::new(plan),
                token,
            },
        };
        self.tasks.run(input, control, self.identity.daemon_id());
        let shortest_ttl = self.attempts.shortest_ttl();
        self.relay.shorten_for_lease(shortest_ttl, self.clock.now());
    }

    pub(super) fn on_attempt_event(&mut self, id: &str, event: AttemptEvent) {
        let relay_expected = self.relay.is_expected();
        let attempt = self.attempts.get(id);
        if let AttemptEvent::Ended(ending) = &event
            && let Some(turn) = attempt.and_then(SupervisedAttempt::conversation)
        {
            record_turn(&mut self.conversations, turn, ending, self.clock.wall());
        }
        self.attempts.update(id, |attempt, clock| {
            attempt.on_event(event, clock);
            attempt.update_backpressure(relay_expected);
        });
    }

    /// A task has ended. One that panicked has to be replaced: its attempt must not keep its slot
    /// and its lease.
    pub(super) fn on_task_ended(&mut self, joined: Result<(Id, ()), JoinError>) {
        let is_running = |supervisor: &Self, id: &str| {
            let attempt = supervisor.attempts.get(id);
            attempt.is_some_and(SupervisedAttempt::is_running)
        };
        match self.tasks.on_joined(joined) {
            Some(AttemptTaskKind::Run(id)) if is_running(self, &id) => self.tasks.clean_up(id),
            // The cleanup has failed too, so nothing is proved: the fence waits for the lease.
            Some(AttemptTaskKind::CleanUp(id)) if is_running(self, &id) => {
                let ending = AttemptEnding::daemon_fault(TerminationOutcome::default());
                self.on_attempt_event(&id, AttemptEvent::Ended(ending));
            }
            Some(AttemptTaskKind::Run(_) | AttemptTaskKind::CleanUp(_)) | None => {}
        }
    }
}

/// Records the agent's current id of the conversation for the next turn. A conversation that the
/// agent could not resume is removed, so that the next turn begins a new one.
fn record_turn(
    conversations: &mut ConversationStore,
    turn: &ConversationTurn,
    ending: &AttemptEnding,
    now: std::time::SystemTime,
) {
    match judge_ending(ending) {
        AttemptVerdict::Failed(failed) if failed.code == codes::RESUME_FAILED => {
            conversations.remove(&turn.key);
        }
        AttemptVerdict::Complete(_)
        | AttemptVerdict::Failed(_)
        | AttemptVerdict::Withdrawn { .. }
        | AttemptVerdict::Stopped => {
            let Some(summary) = &ending.agent_summary else {
                return;
            };
            let usage = summary.end.as_ref().and_then(|end| end.usage.as_ref());
            if let Some(session) = &summary.conversation {
                conversations.record_turn(turn, session, usage, now);
            }
        }
    }
}
