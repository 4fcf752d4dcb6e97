//! Tests of restarts and unreadable records, and histories that the simulation or a review found to go wrong.

pub(crate) mod restart;
pub(crate) mod review_findings;
pub(crate) mod simulation_findings;
pub(crate) mod unreadable_record;
