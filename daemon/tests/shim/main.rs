//! The shim as a process, with this test in the daemon's place: real children, real signals, real disks.

mod daemon;
mod ending;
mod figures;
mod full_disk;
mod output;
mod start;
mod stdin;
mod traced;
mod versions;
mod visitors;
