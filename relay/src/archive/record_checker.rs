//! Checks the references between records. Takes records and changes in the order of a dump or
//! an export, so that it checks one state although the relay continues. Uses about 40 bytes for
//! each task.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::record_references::{RecordReferences, record_references};
use crate::body_files::BodyHash;
use crate::store::{RecordKey, RecordKind};

/// A problem found by a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyFinding {
    /// Machine code: `unreadable`, `undecodable`, `reference`, `journal`, `watermark`, `body`,
    /// `output`, `gap`.
    pub kind: &'static str,
    /// The record, page or file that has the problem.
    pub key: String,
    /// The explanation for people.
    pub message: String,
}

impl VerifyFinding {
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
const HAS_KEY: u8 = 8;
const HAS_BODY_CLAIM: u8 = 16;
const GOAL: u8 = 32;

#[derive(Debug, Default)]
pub(super) struct RecordChecker {
    /// Which records each task has, as flags.
    tasks: HashMap<Uuid, u8>,
    /// Long prompts, by the task that refers to them.
    pub(super) bodies: HashMap<Uuid, BodyHash>,
    /// Records that this version cannot decode. A later change of the same key removes the
    /// entry.
    undecodable: BTreeMap<RecordKey, String>,
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl RecordChecker {
    /// Adds the present value of a record. Returns its references, if it can be decoded.
    pub(super) fn put(&mut self, key: &RecordKey, body: &[u8]) -> Option<RecordReferences> {
        self.records += 1;
        self.bytes += body.len() as u64;
        self.set_flag(key);
        match record_references(key, body) {
            Ok(references) => {
                self.undecodable.remove(key);
                self.note_references(&references);
                Some(references)
            }
            Err(reason) => {
                self.undecodable.insert(key.clone(), reason);
                None
            }
        }
    }

    /// Adds a record that exists but cannot be read. The page check reports it, so here it only
    /// counts as present.
    pub(super) fn unreadable(&mut self, key: &RecordKey) {
        self.set_flag(key);
    }

    pub(super) fn delete(&mut self, key: &RecordKey) {
        self.undecodable.remove(key);
        let Some((task, flag)) = task_flag(key) else {
            return;
        };
        // An idempotency key lives as long as its task, and deleting it does not name the task.
        let removed = if flag == SPEC { SPEC | HAS_KEY } else { flag };
        if flag == SPEC {
            self.bodies.remove(&task);
        }
        if let Some(flags) = self.tasks.get_mut(&task) {
            *flags &= !removed;
            if *flags == 0 {
                self.tasks.remove(&task);
            }
        }
    }

    fn set_flag(&mut self, key: &RecordKey) {
        if let Some((task, flag)) = task_flag(key) {
            *self.tasks.entry(task).or_default() |= flag;
        }
    }

    fn note_references(&mut self, references: &RecordReferences) {
        match references {
            RecordReferences::Spec {
                task,
                body: Some(body),
            } => drop(self.bodies.insert(*task, *body)),
            RecordReferences::Idempotency { task } => {
                *self.tasks.entry(*task).or_default() |= HAS_KEY
            }
            RecordReferences::Spec { body: None, .. }
            | RecordReferences::Task { .. }
            | RecordReferences::Other => {}
        }
    }

    fn claims(&self, task: Uuid) -> bool {
        let flags = self.tasks.get(&task).copied();
        flags.unwrap_or_default() & HAS_BODY_CLAIM != 0
    }

    /// Number of tasks that have a specification.
    pub(super) fn tasks(&self) -> u64 {
        let whole = self.tasks.values().filter(|flags| **flags & SPEC != 0);
        whole.count() as u64
    }

    /// The problems after all records were added, ordered by id.
    pub(super) fn findings(&self) -> Vec<VerifyFinding> {
        let undecodable = self.undecodable.iter();
        let mut findings: Vec<VerifyFinding> = undecodable
            .map(|(key, reason)| VerifyFinding::new("undecodable", key, reason.clone()))
            .collect();
        let mut wrong: Vec<(Uuid, &'static str)> = self
            .tasks
            .iter()
            .filter_map(|(task, flags)| Some((*task, inconsistency(*flags)?)))
            .collect();
        let unclaimed = self.bodies.keys().filter(|task| !self.claims(**task));
        wrong.extend(unclaimed.map(|task| (*task, "the task's long prompt has no claim record")));
        wrong.sort_unstable();
        let inconsistent = wrong
            .into_iter()
            .map(|(task, what)| VerifyFinding::new("reference", format_args!("task/{task}"), what));
        findings.extend(inconsistent);
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
        Some("the specification has no task record")
    } else if has(HAS_BODY_CLAIM) && !has(SPEC) {
        Some("a long prompt is claimed for a task that does not exist")
    } else if has(GOAL) && !has(SPEC) {
        Some("progress or a checkpoint exists for a task that does not exist")
    } else if has(HAS_KEY) && !has(SPEC) {
        Some("an idempotency key refers to a task that does not exist")
    } else {
        None
    }
}

fn task_flag(key: &RecordKey) -> Option<(Uuid, u8)> {
    match key {
        RecordKey::Spec { task, .. } => Some((*task, SPEC)),
        RecordKey::Live { task, .. } => Some((*task, LIVE)),
        RecordKey::Done { task, .. } => Some((*task, DONE)),
        RecordKey::Body { task, .. } => Some((*task, HAS_BODY_CLAIM)),
        RecordKey::Progress { task, .. } | RecordKey::Checkpoint { task, .. } => {
            Some((*task, GOAL))
        }
        RecordKey::Meta(_)
        | RecordKey::Control { .. }
        | RecordKey::Idempotency { .. }
        | RecordKey::Profile { .. }
        | RecordKey::Token { .. }
        | RecordKey::Daemon { .. } => None,
    }
}

/// Whether an export without tokens leaves this record out.
pub(super) fn is_credential(key: &RecordKey) -> bool {
    key.kind() == RecordKind::Token
}
