//! An attempt's outbox on the disk: its file, and the one thread that writes all files. What the outbox is, and what of it may
//! leave, is `baton_daemon_core::outbox`; here it speaks of frames.

use std::time::SystemTime;

use baton_daemon_core::outbox as pure;

use crate::frames::Control;

mod codec;
mod file;
mod label;
mod writer;

pub(crate) use file::{Stored, Tail, read};
pub(crate) use label::Label;
pub(crate) use pure::{Acked, Body, CutWhy, Durable, Leaves, OUTPUT_LIMIT, Progress};
pub(crate) use writer::{Found, Job, Report, Writer};

pub(crate) type Outbox = pure::Outbox<Control, Label, SystemTime>;
pub(crate) type Record = pure::Record<Control, Label, SystemTime>;
pub(crate) type Entry = pure::Entry<Control, Label, SystemTime>;
pub(crate) type Logged = pure::Logged<Control, Label, SystemTime>;
