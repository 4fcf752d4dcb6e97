//! The requirements of a task and whether a daemon meets them. Tasks with equal requirements
//! are placed as one class.
//!
//! Only static properties are checked here. Whether a daemon is connected, busy or sick is in
//! the roster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::fleet::roster::RosterDaemon;
use crate::ids::{DaemonId, TenantId};
use crate::task::spec::TaskSpec;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskRequirements {
    pub tenant: TenantId,
    pub daemon: Option<DaemonId>,
    pub agent: String,
    pub labels: BTreeMap<String, String>,
    pub capabilities: BTreeSet<String>,
    /// Name of a workspace root.
    pub workspace: Option<String>,
}

/// One requirement that a daemon may lack, in the order in which they are explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonNeed<'a> {
    Tenant,
    Daemon(DaemonId),
    Agent(&'a str),
    Label(&'a str, &'a str),
    Capability(&'a str),
    Workspace(&'a str),
}

impl fmt::Display for DaemonNeed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonNeed::Tenant => f.write_str("works for this tenant"),
            DaemonNeed::Daemon(id) => write!(f, "is daemon {id}"),
            DaemonNeed::Agent(name) => write!(f, "has the agent {name:?}"),
            DaemonNeed::Label(key, value) => write!(f, "has the label {key}={value}"),
            DaemonNeed::Capability(name) => write!(f, "has the capability {name:?}"),
            DaemonNeed::Workspace(name) => write!(f, "has the workspace {name:?}"),
        }
    }
}

impl TaskRequirements {
    pub fn from_spec(spec: &TaskSpec) -> Self {
        Self {
            tenant: spec.tenant.clone(),
            daemon: spec.target.daemon,
            agent: spec.agent.clone(),
            labels: spec.target.labels.clone(),
            capabilities: spec.target.capabilities.iter().cloned().collect(),
            workspace: spec.workspace.as_ref().and_then(|asked| asked.root.clone()),
        }
    }

    pub fn are_met_by(&self, daemon: &RosterDaemon) -> bool {
        self.needs().all(|need| self.meets_need(daemon, need))
    }

    /// Each requirement, the most basic first.
    pub fn needs(&self) -> impl Iterator<Item = DaemonNeed<'_>> {
        let labels = self.labels.iter().map(|(k, v)| DaemonNeed::Label(k, v));
        let capabilities = self.capabilities.iter().map(|c| DaemonNeed::Capability(c));
        [DaemonNeed::Tenant]
            .into_iter()
            .chain(self.daemon.map(DaemonNeed::Daemon))
            .chain([DaemonNeed::Agent(&self.agent)])
            .chain(labels)
            .chain(capabilities)
            .chain(self.workspace.as_deref().map(DaemonNeed::Workspace))
    }

    pub fn meets_need(&self, daemon: &RosterDaemon, need: DaemonNeed<'_>) -> bool {
        match need {
            DaemonNeed::Tenant => daemon.scope.covers(&self.tenant) || mutant!(ScopeIgnored),
            DaemonNeed::Daemon(id) => daemon.id == id,
            DaemonNeed::Agent(name) => daemon.agents.contains(name),
            DaemonNeed::Label(key, value) => daemon.labels.get(key).is_some_and(|has| has == value),
            DaemonNeed::Capability(name) => daemon.capabilities.contains(name),
            DaemonNeed::Workspace(name) => daemon.workspaces.contains(name),
        }
    }
}
