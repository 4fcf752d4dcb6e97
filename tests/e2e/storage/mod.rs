//! The relay's and the daemon's disk: damage, full disks, export, import, retention.
//! Crashes at chosen writes and power loss are in tests/chaos.

pub(crate) mod daemon_disk_full;
pub(crate) mod damaged_exports;
pub(crate) mod damaged_records;
pub(crate) mod damaged_updates;
pub(crate) mod disk_damage;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod relay_disk_full;
pub(crate) mod retention;
