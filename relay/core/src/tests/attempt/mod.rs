//! Tests of one attempt: leases, frame checks, deadlines, losses, late results, resumed
//! conversations.

pub(crate) mod conversation_resume;
pub(crate) mod deadlines;
pub(crate) mod frame_checks;
pub(crate) mod late_result;
pub(crate) mod lease;
pub(crate) mod loss;
