//! The roles of credentials: what a token may be used for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Role of a credential. Its position in the enum is stored, so new roles are only appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// May call everything, including token management.
    Admin,
    /// Manages tasks, inputs, daemons and profiles of its tenant.
    Operator,
    /// Submits work and follows it.
    Submitter,
    /// Answers permission requests and questions, and reads.
    Answerer,
    /// An agent that holds leases itself, within its agent scope.
    Agent,
    /// A worker machine. It may open its own daemon link and nothing else.
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

    /// Whether a token of this role may cover every tenant. Only administrators and the daemons
    /// of a shared fleet need that.
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
