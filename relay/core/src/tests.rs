//! Whole histories against the core with a fake clock: what a client, a daemon and time do, and what must follow.

mod world;

mod agent_calls;
mod agents;
mod blocking;
mod boot;
mod bounds;
mod cancel;
mod contracts;
mod deadlines;
mod diagnoses;
mod fencing;
mod fleet;
mod forcing;
mod forgetting;
mod found;
mod holding_dispatch;
mod inherited;
mod inputs;
mod late;
mod leases;
mod life;
mod liveness;
mod losses;
mod pausing;
mod picking_up;
mod placing;
mod progress;
mod refusals;
mod repeats;
mod resuming;
mod retention;
mod reviewed;
mod settlement;
mod submitting;
mod verbs;
