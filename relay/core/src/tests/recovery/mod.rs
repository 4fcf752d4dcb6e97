//! Tests of restarts and unreadable records, and regression tests for findings of the
//! simulation and of a review.

pub(crate) mod restart;
pub(crate) mod review_findings;
pub(crate) mod simulation_findings;
pub(crate) mod unreadable_record;
