//! Daemons: registry of stored records, roster of live state (sessions, slots, health), Hello
//! and settlement, heartbeats and lease renewal, frames. All fencing checks of daemon frames
//! are in `frame`. This folder does not place tasks (schedule/) and does not decide what a
//! frame's event means (attempt/machine).

pub(crate) mod daemon_registry;
pub(crate) mod frame;
pub(crate) mod frame_check;
pub(crate) mod frame_event;
pub(crate) mod heartbeat;
pub mod roster;
pub(crate) mod session;
