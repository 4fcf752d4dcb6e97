//! The machine under a test: its processes, disks, files, clocks and boot id. This module reads
//! /proc and mounts disks; it makes no gRPC calls.

pub(crate) mod directory_copy;
pub(crate) mod file_lease;
pub(crate) mod mounted_disk;
pub(crate) mod process_census;
pub(crate) mod process_lifetime;
pub(crate) mod test_boot_id;
pub(crate) mod test_clock;
