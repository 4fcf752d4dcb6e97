//! Helpers that handlers apply to a request before any lookup: field checks, size limits, page
//! tokens, batches, the caller's trace and limits on live streams. This folder reads no stored
//! state and makes no decision about tasks. A failed check becomes an `ApiFault`; statuses are
//! built in `api/error`.

pub(crate) mod batch;
pub(crate) mod caller_trace;
pub mod limits;
pub(crate) mod paging;
pub(crate) mod streams;
pub(crate) mod unimplemented;
pub mod validate;
