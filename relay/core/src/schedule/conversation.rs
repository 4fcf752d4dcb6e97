//! Conversations in scheduling: the key of a conversation, and the daemon that ran it last.
//!
//! Clients choose conversation names, so a name is unique only within its tenant. The last
//! daemon is a preference and may be forgotten. That only one turn runs at a time is a rule,
//! enforced by `fences`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::ids::{DaemonId, TenantId};
use crate::task::spec::TaskSpec;

/// Limit on remembered conversations; the oldest are dropped first.
const MAX_REMEMBERED: usize = 10_000;

/// The name of a conversation within its tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationKey {
    pub tenant: TenantId,
    pub name: Arc<str>,
}

impl ConversationKey {
    pub fn from_spec(spec: &TaskSpec) -> Option<Self> {
        let name = spec.conversation_id.as_deref()?;
        Some(Self {
            tenant: spec.tenant.clone(),
            name: name.into(),
        })
    }

    /// An identifier that distinguishes the conversations of all tenants without revealing the
    /// tenant or the name.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update((self.tenant.as_str().len() as u64).to_be_bytes());
        digest.update(self.tenant.as_str());
        digest.update(&*self.name);
        digest.finalize().into()
    }
}

/// The daemon that ran each conversation last: its files and the agent's own session state are
/// there.
#[derive(Clone, Debug, Default)]
pub struct ConversationAffinity {
    last: BTreeMap<ConversationKey, DaemonId>,
    order: VecDeque<ConversationKey>,
}

impl ConversationAffinity {
    pub fn remember(&mut self, key: &ConversationKey, daemon: DaemonId) {
        if self.last.insert(key.clone(), daemon).is_some() {
            return;
        }
        self.order.push_back(key.clone());
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.last.remove(&oldest);
        }
    }

    pub fn last_daemon(&self, key: &ConversationKey) -> Option<DaemonId> {
        self.last.get(key).copied()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::samples::tenant;

    #[test]
    fn last_daemons_are_remembered_per_tenant_up_to_a_limit() {
        let key = |tenant_name: &str, name: usize| ConversationKey {
            tenant: tenant(tenant_name),
            name: name.to_string().into(),
        };
        let daemon = DaemonId(Uuid::from_u128(7));
        let mut affinity = ConversationAffinity::default();
        for n in 0..=MAX_REMEMBERED {
            affinity.remember(&key("a", n), daemon);
        }
        assert_eq!(affinity.last_daemon(&key("a", 0)), None);
        assert_eq!(affinity.last_daemon(&key("a", 1)), Some(daemon));
        assert_eq!(affinity.last_daemon(&key("b", 1)), None);
        assert_eq!(affinity.last.len(), affinity.order.len());
    }
}
