//! Tests of operators' commands on tasks and of diagnoses.

pub(crate) mod diagnosis;
pub(crate) mod force;
pub(crate) mod verb_table;
