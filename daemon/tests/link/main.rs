//! The daemon against a scripted relay over real gRPC, with real shims and children.

mod adoption;
mod attempt_stop;
mod children;
mod command_run;
mod disk_contents;
mod fake_relay;
mod hand_over;
mod lost_shims;
mod start_overhead;
mod stream;
mod stuck_shims;
mod test_daemon;
#[path = "../shim/traced.rs"]
mod traced;
mod unread_stdin;
