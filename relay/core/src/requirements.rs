//! What a task needs of a daemon, and whether one has it. Tasks with equal needs are placed as one class.
//!
//! Only what does not change by itself is here: who is connected, busy or sick is the roster's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::id::{DaemonId, TenantId};
use crate::roster::Daemon;
use crate::spec::TaskSpec;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirements {
    pub tenant: TenantId,
    pub daemon: Option<DaemonId>,
    pub agent: String,
    pub labels: BTreeMap<String, String>,
    pub capabilities: BTreeSet<String>,
    /// Name of a workspace root.
    pub workspace: Option<String>,
}

/// One need that a daemon may lack; in the order in which they are explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    Tenant,
    Daemon(DaemonId),
    Agent(&'a str),
    Label(&'a str, &'a str),
    Capability(&'a str),
    Workspace(&'a str),
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Tenant => f.write_str("works for this tenant"),
            Need::Daemon(id) => write!(f, "is daemon {id}"),
            Need::Agent(name) => write!(f, "has the agent {name:?}"),
            Need::Label(key, value) => write!(f, "has the label {key}={value}"),
            Need::Capability(name) => write!(f, "has the capability {name:?}"),
            Need::Workspace(name) => write!(f, "has the workspace {name:?}"),
        }
    }
}

impl Requirements {
    pub fn of(spec: &TaskSpec) -> Self {
        Self {
            tenant: spec.tenant.clone(),
            daemon: spec.target.daemon,
            agent: spec.agent.clone(),
            labels: spec.target.labels.clone(),
            capabilities: spec.target.capabilities.iter().cloned().collect(),
            workspace: spec.workspace.as_ref().and_then(|asked| asked.root.clone()),
        }
    }

    pub fn met_by(&self, daemon: &Daemon) -> bool {
        self.needs().all(|need| self.has(daemon, need))
    }

    /// Each need, the most basic first.
    pub fn needs(&self) -> impl Iterator<Item = Need<'_>> {
        let labels = self.labels.iter().map(|(k, v)| Need::Label(k, v));
        let capabilities = self.capabilities.iter().map(|c| Need::Capability(c));
        [Need::Tenant]
            .into_iter()
            .chain(self.daemon.map(Need::Daemon))
            .chain([Need::Agent(&self.agent)])
            .chain(labels)
            .chain(capabilities)
            .chain(self.workspace.as_deref().map(Need::Workspace))
    }

    pub fn has(&self, daemon: &Daemon, need: Need<'_>) -> bool {
        match need {
            Need::Tenant => daemon.scope.covers(&self.tenant) || mutant!(ScopeIgnored),
            Need::Daemon(id) => daemon.id == id,
            Need::Agent(name) => daemon.agents.contains(name),
            Need::Label(key, value) => daemon.labels.get(key).is_some_and(|has| has == value),
            Need::Capability(name) => daemon.capabilities.contains(name),
            Need::Workspace(name) => daemon.workspaces.contains(name),
        }
    }
}
