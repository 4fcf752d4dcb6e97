//! Flags and values that more than one command has, and how they are parsed.
//! task_flags holds the flags of a submission, task_spec turns them into a TaskSpec.
//! Pure: opens no connection, reads no file, prints nothing.
//! clap derives flag names from these identifiers: renaming a field or a variant needs an explicit
//! name.

pub(crate) mod duration;
pub(crate) mod pairs;
pub(crate) mod permission_rule;
pub(crate) mod required_file;
pub(crate) mod shared_args;
pub(crate) mod size;
pub(crate) mod task_flags;
pub(crate) mod task_spec;
