//! Operators: they take attempts away, fail, complete and retry tasks, pause tasks, tenants and everything, and some of them
//! go on for too long. What was taken of their words is judged where the relay takes it.

use std::sync::Arc;

use baton_core::effects::{Effects, Reply, Send};
use baton_core::fleet::OperateDaemon;
use baton_core::force::{Operate, Verb};
use baton_core::id::{DaemonId, RequestId, TaskId, TenantId, TenantScope, TokenId};
use baton_core::input::{Actor, Input};
use baton_core::record::{DaemonOperation, EventKind, Operation, TaskRecord};
use uuid::Uuid;

use crate::clients::{Asked, actor};
use crate::judges::Before;
use crate::world::World;

/// What one credential may ask of one task within a minute.
const MOST: usize = 10;
const MINUTE_MS: u64 = 60_000;

/// An operator's word that the relay took, in which of its lives and when.
#[derive(Debug)]
pub(crate) struct Taken {
    boot: u64,
    at: u64,
    who: TokenId,
    task: TaskId,
}

/// A word as it was asked.
#[derive(Debug)]
pub(crate) struct Word {
    request: RequestId,
    who: TokenId,
    task: TaskId,
    operation: Operation,
}

impl Word {
    pub(crate) fn of(operate: &Operate) -> Self {
        Self {
            request: operate.request,
            who: operate.by.token,
            task: operate.task,
            operation: match operate.verb {
                Verb::ForceRelease { .. } => Operation::ForceRelease,
                Verb::ForceFail { .. } => Operation::ForceFail,
                Verb::Retry { .. } => Operation::Retry,
                Verb::Complete {
                    overridden: true, ..
                } => Operation::CompleteOverridden,
                Verb::Complete {
                    overridden: false, ..
                } => Operation::Complete,
                Verb::Pause => Operation::Pause,
                Verb::Unpause => Operation::Unpause,
            },
        }
    }
}

/// Somebody who puts things right after the storm: nobody has asked in this name before.
pub(crate) fn healer(n: u64) -> Actor {
    Actor {
        name: "olga".into(),
        token: TokenId(Uuid::from_u128(0xbeef << 64 | u128::from(n))),
        operator: true,
    }
}

pub(crate) fn on_daemon(
    daemon: DaemonId,
    by: Actor,
    operation: DaemonOperation,
) -> impl FnOnce(RequestId) -> Input {
    move |request| {
        Input::OperateDaemon(Box::new(OperateDaemon {
            request,
            scope: TenantScope::All,
            daemon,
            by,
            reason: Arc::from("look"),
            operation,
        }))
    }
}

pub(crate) fn operate(
    tenant: TenantId,
    task: TaskId,
    by: Actor,
    verb: Verb,
) -> impl FnOnce(RequestId) -> Input {
    move |request| {
        Input::Operate(Box::new(Operate {
            request,
            tenant,
            task,
            by,
            reason: Arc::from("look"),
            verb,
            finished: None,
        }))
    }
}

impl World {
    pub(crate) fn retry_some(&mut self) {
        self.operate_some(Verb::Retry { allow_unsafe: true });
    }

    pub(crate) fn force_some(&mut self) {
        let verb = match self.rng.below(8) {
            0..=3 => Verb::ForceRelease { attempt: None },
            4..=5 => Verb::ForceFail { attempt: None },
            6 => Verb::Complete {
                overridden: true,
                result: Some(Arc::from(*b"by hand")),
            },
            _ => return self.insist(),
        };
        self.counts.forced += 1;
        self.operate_some(verb);
    }

    fn operate_some(&mut self, verb: Verb) {
        if let Some((tenant, task)) = self.some_task() {
            let request = self.ask(operate(tenant, task, actor(), verb));
            self.remember(request, Asked::Operated(task));
        }
    }

    /// A script that went wrong.
    fn insist(&mut self) {
        let Some((tenant, task)) = self.some_task() else {
            return;
        };
        for n in 0..MOST + 4 {
            let verb = if n % 2 == 0 {
                Verb::Pause
            } else {
                Verb::Unpause
            };
            let request = self.ask(operate(tenant.clone(), task, actor(), verb));
            self.remember(request, Asked::Other);
        }
    }

    pub(crate) fn pause_some(&mut self) {
        let (tenant, kind) = (self.some_tenant(), self.rng.below(6));
        let (by, reason) = (actor(), Arc::from("look"));
        let scope = if kind < 4 {
            TenantScope::One(tenant)
        } else {
            TenantScope::All
        };
        let request = match kind {
            0 => return self.operate_some(Verb::Pause),
            1 => return self.operate_some(Verb::Unpause),
            2 | 4 => self.ask(|request| Input::PauseScheduler {
                request,
                scope,
                by,
                reason,
            }),
            _ => self.ask(|request| Input::UnpauseScheduler {
                request,
                scope,
                by,
                reason: None,
            }),
        };
        self.counts.pauses += 1;
        self.remember(request, Asked::Other);
    }

    pub(crate) fn some_tenant(&mut self) -> TenantId {
        let name = if self.rng.chance(60) {
            "acme"
        } else {
            "globex"
        };
        TenantId::new(name).expect("a good name")
    }

    /// Nothing stays paused.
    pub(crate) fn unpause_all(&mut self) {
        let view = &self.relay.store.view;
        let tenants = view.pauses.standing();
        let mut scopes: Vec<TenantScope> = tenants
            .map(|(tenant, _)| TenantScope::One(tenant.clone()))
            .collect();
        if view.scheduler.paused.is_some() {
            scopes.push(TenantScope::All);
        }
        let paused = view.live.values().filter(|r| r.paused.is_some());
        let paused: Vec<_> = paused.map(|r| (r.tenant.clone(), r.task)).collect();
        for scope in scopes {
            let by = healer(self.now);
            self.ask(|request| Input::UnpauseScheduler {
                request,
                scope,
                by,
                reason: None,
            });
        }
        for (tenant, task) in paused {
            let by = healer(self.now);
            self.ask(operate(tenant, task, by, Verb::Unpause));
        }
    }

    /// Not too many, and what was done is on record with who did it.
    pub(crate) fn judge_operated(&mut self, before: &Before, effects: &Effects) {
        let Some(word) = &before.operated else {
            return;
        };
        let reply = effects
            .sends
            .iter()
            .find_map(|outgoing| match &outgoing.send {
                Send::Reply { request, outcome } if *request == word.request => Some(outcome),
                Send::Reply { .. }
                | Send::ToSession { .. }
                | Send::CloseSession { .. }
                | Send::Published { .. } => None,
            });
        let Some(Ok(reply)) = reply else {
            return;
        };
        if let Reply::Task(record) = reply {
            let known = is_on_record(record, word.operation);
            assert!(
                known,
                "audit: {:?} of {} is not on record",
                word.operation, word.task
            );
        }
        let (boot, at) = (self.relay.boot, self.now);
        let taken = Taken {
            boot,
            at,
            who: word.who,
            task: word.task,
        };
        self.relay.taken.push(taken);
        self.relay
            .taken
            .retain(|taken| taken.boot == boot && at - taken.at < MINUTE_MS);
        let same = |taken: &&Taken| (taken.who, taken.task) == (word.who, word.task);
        let count = self.relay.taken.iter().filter(same).count();
        assert!(
            count <= MOST,
            "limit: {count} words on {} within a minute",
            word.task
        );
    }
}

fn is_on_record(record: &TaskRecord, wanted: Operation) -> bool {
    let events = record.timeline.events.iter().rev();
    let mut audits = events.filter_map(|event| match &event.kind {
        EventKind::Forced(audit) => Some(audit.operation),
        _other => None,
    });
    audits.next() == Some(wanted)
}
