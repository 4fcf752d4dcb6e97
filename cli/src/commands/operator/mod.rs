//! Commands of the Operator service: inspect, retry, force, complete, pause, tokens, profiles, relay information.
//! Commands that change something require a reason.
//! No decision is made here; the relay checks permissions.

pub(crate) mod attempts;
pub(crate) mod complete;
pub(crate) mod force;
pub(crate) mod info;
pub(crate) mod inspect;
pub(crate) mod pause;
pub(crate) mod profile;
pub(crate) mod release_inherited;
pub(crate) mod retry;
pub(crate) mod scheduler;
pub(crate) mod token;
