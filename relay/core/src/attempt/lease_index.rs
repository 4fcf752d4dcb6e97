//! Which attempts are leased, and of which tasks.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use crate::ids::{AttemptId, TaskId, TokenId};

#[derive(Debug, Default)]
pub(crate) struct LeaseIndex {
    leased: HashMap<AttemptId, TaskId>,
    /// Those of them that agents hold themselves, by their credentials.
    of_agents: BTreeMap<(TokenId, AttemptId), TaskId>,
}

impl LeaseIndex {
    pub(crate) fn insert_daemon_lease(&mut self, attempt: AttemptId, task: TaskId) {
        self.leased.insert(attempt, task);
    }

    pub(crate) fn insert_agent_lease(&mut self, token: TokenId, attempt: AttemptId, task: TaskId) {
        self.leased.insert(attempt, task);
        self.of_agents.insert((token, attempt), task);
    }

    /// `token` is the credential of the agent that held it itself.
    pub(crate) fn remove(&mut self, attempt: AttemptId, token: Option<TokenId>) {
        self.leased.remove(&attempt);
        if let Some(token) = token {
            self.of_agents.remove(&(token, attempt));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leased.is_empty()
    }

    pub(crate) fn task_of(&self, attempt: AttemptId) -> Option<TaskId> {
        self.leased.get(&attempt).copied()
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.leased.values().copied()
    }

    /// Tasks whose lease this agent holds itself.
    pub(crate) fn tasks_of_agent(&self, token: TokenId) -> impl Iterator<Item = TaskId> {
        let own = (token, AttemptId(Uuid::nil()))..=(token, AttemptId(Uuid::max()));
        self.of_agents.range(own).map(|(_, task)| *task)
    }
}
