//! The shim as a process, with this test as its daemon: real children, real signals, real
//! disks.

mod attempt_end;
mod full_disk;
mod output;
mod peer_check;
mod shim_fixture;
mod start;
mod start_cost;
mod stdin;
mod traced;
mod versions;
