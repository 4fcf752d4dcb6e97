//! The daemon against a scripted relay over real gRPC, with real children.

mod relay;
mod running;
mod stopping;
mod storing;
mod stream;
