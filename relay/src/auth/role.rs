//! What a credential may be used for, in one word each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stored number of each is its position: append only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Everything, tokens included.
    Admin,
    /// Tasks, inputs, daemons and profiles of its tenant.
    Operator,
    /// Submits work and follows it.
    Submitter,
    /// Answers what people are asked, and reads.
    Answerer,
    /// An agent that holds leases itself, within its agent scope.
    Agent,
    /// A worker machine: its own link and nothing else.
    Daemon,
    ReadOnly,
}

impl Role {
    pub const ALL: [Role; 7] = [
        Role::Admin,
        Role::Operator,
        Role::Submitter,
        Role::Answerer,
        Role::Agent,
        Role::Daemon,
        Role::ReadOnly,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Operator => "operator",
            Role::Submitter => "submitter",
            Role::Answerer => "answerer",
            Role::Agent => "agent",
            Role::Daemon => "daemon",
            Role::ReadOnly => "read_only",
        }
    }

    /// Whether a token of this role may cover every tenant: administrators and shared fleets only.
    pub fn may_span_tenants(self) -> bool {
        match self {
            Role::Admin | Role::Daemon => true,
            Role::Operator | Role::Submitter | Role::Answerer | Role::Agent | Role::ReadOnly => {
                false
            }
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
