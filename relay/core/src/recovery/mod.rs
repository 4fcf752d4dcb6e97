//! Boot from stored records, damaged records, and inherited tasks after an import or an
//! accepted loss. Runs before the first command of a run; an unreadable record is treated as
//! the most restrictive value it could have had.

pub(crate) mod boot;
pub mod damage;
pub(crate) mod inherited_tasks;
