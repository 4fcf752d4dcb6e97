//! What records say of each other. Takes records and changes in order, as a telling or an export gives them, so that it
//! judges one state although the relay goes on. Holds about 40 bytes for each task.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::records::{Fact, fact};
use crate::bodies::BodyHash;
use crate::store::{Key, Kind};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// One word for programs: `unreadable`, `undecodable`, `reference`, `journal`, `watermark`, `body`, `output`, `gap`.
    pub kind: &'static str,
    /// What it is about.
    pub key: String,
    /// In words.
    pub message: String,
}

impl Finding {
    pub(super) fn new(
        kind: &'static str,
        key: impl std::fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            key: key.to_string(),
            message: message.into(),
        }
    }
}

const SPEC: u8 = 1;
const LIVE: u8 = 2;
const DONE: u8 = 4;
const KEYED: u8 = 8;
const CLAIMS: u8 = 16;
const GOAL: u8 = 32;

#[derive(Debug, Default)]
pub(super) struct Checker {
    /// Which records each task has.
    tasks: HashMap<Uuid, u8>,
    /// Long prompts by the task that names them.
    pub(super) bodies: HashMap<Uuid, BodyHash>,
    /// Records that mean nothing to this version; a later change of the same key mends it.
    undecodable: BTreeMap<Key, String>,
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl Checker {
    /// A record as it is now. Gives what it names, if it can be read.
    pub(super) fn put(&mut self, key: &Key, body: &[u8]) -> Option<Fact> {
        self.records += 1;
        self.bytes += body.len() as u64;
        self.mark(key);
        match fact(key, body) {
            Ok(fact) => {
                self.undecodable.remove(key);
                self.note(&fact);
                Some(fact)
            }
            Err(why) => {
                self.undecodable.insert(key.clone(), why);
                None
            }
        }
    }

    /// A record that is there and cannot be read: another one finds that out, here it only counts as being there.
    pub(super) fn unreadable(&mut self, key: &Key) {
        self.mark(key);
    }

    pub(super) fn delete(&mut self, key: &Key) {
        self.undecodable.remove(key);
        let Some((task, flag)) = of_task(key) else {
            return;
        };
        // A submission's key lives as long as the task; its own deletion does not name the task.
        let gone = if flag == SPEC { SPEC | KEYED } else { flag };
        if flag == SPEC {
            self.bodies.remove(&task);
        }
        if let Some(flags) = self.tasks.get_mut(&task) {
            *flags &= !gone;
            if *flags == 0 {
                self.tasks.remove(&task);
            }
        }
    }

    fn mark(&mut self, key: &Key) {
        if let Some((task, flag)) = of_task(key) {
            *self.tasks.entry(task).or_default() |= flag;
        }
    }

    fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Spec {
                task,
                body: Some(body),
            } => drop(self.bodies.insert(*task, *body)),
            Fact::Idempotency { task } => *self.tasks.entry(*task).or_default() |= KEYED,
            Fact::Spec { body: None, .. } | Fact::Task { .. } | Fact::Other => {}
        }
    }

    fn claims(&self, task: Uuid) -> bool {
        let flags = self.tasks.get(&task).copied();
        flags.unwrap_or_default() & CLAIMS != 0
    }

    /// Tasks that have a specification.
    pub(super) fn tasks(&self) -> u64 {
        let whole = self.tasks.values().filter(|flags| **flags & SPEC != 0);
        whole.count() as u64
    }

    /// What is wrong now that everything was heard, in the order of ids.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let undecodable = self.undecodable.iter();
        let mut findings: Vec<Finding> = undecodable
            .map(|(key, why)| Finding::new("undecodable", key, why.clone()))
            .collect();
        let mut wrong: Vec<(Uuid, &'static str)> = self
            .tasks
            .iter()
            .filter_map(|(task, flags)| Some((*task, inconsistency(*flags)?)))
            .collect();
        let unclaimed = self.bodies.keys().filter(|task| !self.claims(**task));
        wrong.extend(unclaimed.map(|task| (*task, "nothing keeps the task's long prompt")));
        wrong.sort_unstable();
        let references = wrong
            .into_iter()
            .map(|(task, what)| Finding::new("reference", format_args!("task/{task}"), what));
        findings.extend(references);
        findings
    }
}

fn inconsistency(flags: u8) -> Option<&'static str> {
    let has = |flag| flags & flag != 0;
    if has(LIVE) && has(DONE) {
        Some("the task is open and finished at the same time")
    } else if (has(LIVE) || has(DONE)) && !has(SPEC) {
        Some("the task's specification is missing")
    } else if has(SPEC) && !has(LIVE) && !has(DONE) {
        Some("the specification's task is missing")
    } else if has(CLAIMS) && !has(SPEC) {
        Some("a long prompt is kept for a task that is not there")
    } else if has(GOAL) && !has(SPEC) {
        Some("progress or a checkpoint is kept for a task that is not there")
    } else if has(KEYED) && !has(SPEC) {
        Some("an idempotency key names a task that is not there")
    } else {
        None
    }
}

fn of_task(key: &Key) -> Option<(Uuid, u8)> {
    match key {
        Key::Spec { task, .. } => Some((*task, SPEC)),
        Key::Live { task, .. } => Some((*task, LIVE)),
        Key::Done { task, .. } => Some((*task, DONE)),
        Key::Body { task, .. } => Some((*task, CLAIMS)),
        Key::Progress { task, .. } | Key::Checkpoint { task, .. } => Some((*task, GOAL)),
        Key::Meta(_)
        | Key::Control { .. }
        | Key::Idempotency { .. }
        | Key::Profile { .. }
        | Key::Token { .. }
        | Key::Daemon { .. } => None,
    }
}

/// Whether an export leaves records of this kind out when tokens are not wanted.
pub(super) fn is_credential(key: &Key) -> bool {
    key.kind() == Kind::Token
}
