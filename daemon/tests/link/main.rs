//! The daemon against a scripted relay over real gRPC, with real shims and children.

mod adoption;
mod children;
mod daemon;
mod handing_over;
mod lost_shims;
mod overhead;
mod relay;
mod running;
mod stopping;
mod storing;
mod stream;
#[path = "../shim/traced.rs"]
mod traced;
mod unread;
