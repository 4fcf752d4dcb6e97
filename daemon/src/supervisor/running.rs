//! The tasks of attempts: each drives one shim and tells what happens there. What it tells becomes frames in `held`.

use baton_proto::codes;
use tracing::info;

use super::Supervisor;
use super::duties::Duty;
use crate::agents::{Verdict, judge};
use crate::attempt::{self, AttemptEvent, Contact, Ending, Errand, Fold, Lines, Words, Workshop};
use crate::held::{Bits, Start};

impl Supervisor {
    /// What starts once its lease is confirmed.
    pub(super) fn start(&mut self, start: Start) {
        let Start {
            plan,
            token,
            dir,
            bits,
        } = start;
        info!(attempt_id = %plan.attempt_id, "lease confirmed; starting");
        let fold = Fold::new(plan.deadlines);
        let fold = match &plan.words {
            Words::Prompt(_) => fold,
            Words::Talk(talk) => fold.with_talk(talk.clone()),
        };
        let errand = Errand {
            attempt_id: plan.attempt_id.clone(),
            task_id: plan.task_id.clone(),
            workspace: Some(plan.workspace.clone()),
            cleanup_term: plan.cleanup_term,
            files: plan.files.clone(),
            directory: self.attempts.place(dir).path().to_owned(),
            fold,
            position: 0,
            recall_from: 0,
            contact: Contact::Launch {
                plan: Box::new(plan),
                token,
            },
        };
        self.run_attempt(errand, bits);
        let now = self.clock.now();
        let shortest = self.shortest_ttl();
        if let Some((live, ttl)) = self.live.as_mut().zip(shortest) {
            live.heartbeats.keep_alive(ttl, now);
        }
    }

    /// The task that an attempt has from here to its end.
    pub(super) fn run_attempt(&mut self, errand: Errand, bits: Bits) {
        let lines = Lines {
            stop: bits.stop,
            hold_back: bits.hold_back,
            lease: bits.lease,
            heard: bits.heard,
            consumed: bits.consumed,
            answered: bits.answered,
            fixed: bits.fixed,
            words: bits.words,
            told: bits.told,
            events: self.events.clone(),
        };
        let id = errand.attempt_id.clone();
        let workshop = Workshop {
            // The relay may have given it meanwhile.
            daemon_id: self.identity.daemon_id().to_owned(),
            ..self.workshop.clone()
        };
        let task = self.tasks.spawn(attempt::run(errand, lines, workshop)).id();
        self.duties.insert(task, Duty::Run(id));
    }

    pub(super) fn on_attempt(&mut self, id: &str, event: AttemptEvent) {
        if let AttemptEvent::Ended(ending) = &event {
            self.note_conversation(id, ending);
        }
        let keeping_up = self.is_keeping_up();
        if let Some(held) = self.held.get_mut(id) {
            held.on_event(event, &self.clock);
            held.balance(keeping_up);
            self.enqueue(id);
        }
    }

    /// The next turn goes on with what the agent calls the conversation now, or begins anew if it knows it no more.
    fn note_conversation(&mut self, id: &str, ending: &Ending) {
        let held = self.held.get(id);
        let Some(conversing) = held.and_then(|held| held.conversing.as_ref()) else {
            return;
        };
        match judge(ending) {
            Verdict::Failed(failing) if failing.code == codes::RESUME_FAILED => {
                self.conversations.forget(&conversing.key);
            }
            Verdict::Complete(_)
            | Verdict::Failed(_)
            | Verdict::Withdrawn { .. }
            | Verdict::Stopped => {
                let Some(spoken) = &ending.spoken else { return };
                let usage = spoken.end.as_ref().and_then(|end| end.usage.as_ref());
                if let Some(session) = &spoken.conversation {
                    let now = self.clock.wall();
                    self.conversations.remember(conversing, session, usage, now);
                }
            }
        }
    }

    /// Whether the relay is there to take what attempts say, or is expected any moment.
    pub(super) fn is_keeping_up(&self) -> bool {
        self.live.is_some() || self.awaited_until.is_some()
    }
}
