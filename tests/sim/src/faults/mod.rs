//! Faults during the storm: cuts, crashes, stalls, suspended machines, replayed frames, and
//! data replaced by an older copy. Each fault is enabled by an option of the seed. No fault is
//! injected after healing has begun.

pub(crate) mod data_import;
pub(crate) mod fault_injection;
pub(crate) mod replayed_frames;
pub(crate) mod suspension;
