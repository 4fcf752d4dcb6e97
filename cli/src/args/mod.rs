//! Flags and values that more than one command takes, and how they are parsed.
//! task_flags holds the flags of a submission, task_spec turns them into a TaskSpec.
//! Pure: opens no connection, reads no file, prints nothing.
//! Names of clap arguments come from these identifiers: never rename a field or a variant without an explicit name.

pub(crate) mod duration;
pub(crate) mod pairs;
pub(crate) mod permission_rule;
pub(crate) mod required_file;
pub(crate) mod shared_args;
pub(crate) mod size;
pub(crate) mod task_flags;
pub(crate) mod task_spec;
