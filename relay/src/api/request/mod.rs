//! What every handler uses on a request before it looks anything up: shape checks, size limits, page tokens, batches, the caller's trace, limits on live streams.
//! Nothing here reads stored state or decides about a task.
//! A failed check becomes an ApiFault; statuses are built in api/error only.

pub(crate) mod batch;
pub(crate) mod caller_trace;
pub mod limits;
pub(crate) mod paging;
pub(crate) mod streams;
pub(crate) mod unimplemented;
pub mod validate;
