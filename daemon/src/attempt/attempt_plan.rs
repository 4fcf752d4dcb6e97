//! What a task gets to run an attempt with: the plan of the attempt, how its shim is reached, and
//! what all attempts of the daemon share.

use std::path::PathBuf;
use std::time::Duration;

use baton_proto::v1::{LeaseToken, ResumeContext};
use bytes::Bytes;

use super::{AgentSession, ReachedShim, TranscriptReader};
use crate::clock::Clock;
use crate::deadlines::DeadlineLimits;
use crate::machine::control_groups::ControlGroups;
use crate::process::ChildSpec;
use crate::receipts::RequiredFiles;
use crate::shim::client::ShimProgram;
use crate::tools::ToolGrant;
use crate::workspace;

/// What to run and under which limits.
#[derive(Clone, Debug)]
pub(crate) struct AttemptPlan {
    pub(crate) attempt_id: String,
    pub(crate) task_id: String,
    pub(crate) workspace: workspace::WorkspacePlan,
    /// Its working directory is the configured one; the real one is known when the workspace
    /// has been prepared.
    pub(crate) child: ChildSpec,
    pub(crate) stdin: ChildStdin,
    pub(crate) deadlines: DeadlineLimits,
    /// From SIGTERM to SIGKILL.
    pub(crate) cleanup_term: Duration,
    /// What the agent may do through its tools, if it has any.
    pub(crate) tools: Option<ToolGrant>,
    /// The files that the attempt has to leave.
    pub(crate) required_files: Option<RequiredFiles>,
    /// What a command gets of the attempts before this one.
    pub(crate) resume: Option<ResumeContext>,
}

/// What is written to the child's stdin, which also decides how its output is read.
#[derive(Clone, Debug)]
pub(crate) enum ChildStdin {
    /// The whole prompt at once; everything that the child prints is output.
    Prompt(Bytes),
    /// A session with a coding agent.
    AgentSession(Box<AgentSession>),
}

/// What all attempts of a daemon share.
#[derive(Clone, Debug)]
pub(crate) struct AttemptEnvironment {
    pub(crate) shim: ShimProgram,
    pub(crate) daemon_id: String,
    pub(crate) instance_id: String,
    pub(crate) boot_id: String,
    /// The daemon's name, for operators.
    pub(crate) daemon_name: String,
    /// `None` where attempts have no control groups.
    pub(crate) control_groups: Option<ControlGroups>,
    pub(crate) clock: Clock,
}

/// Everything that an attempt's task starts with.
#[derive(Debug)]
pub(crate) struct AttemptRunInput {
    pub(crate) attempt_id: String,
    pub(crate) task_id: String,
    /// Where the attempt works; `None` for the daemon's own work directory.
    pub(crate) workspace: Option<workspace::WorkspacePlan>,
    pub(crate) cleanup_term: Duration,
    /// The files that the attempt has to leave.
    pub(crate) required_files: Option<RequiredFiles>,
    /// The attempt's own directory.
    pub(crate) directory: PathBuf,
    pub(crate) transcript_reader: TranscriptReader,
    /// Where the transcript is read on, and from where it is replayed to restore the reader's
    /// state.
    pub(crate) position: u64,
    pub(crate) replay_from: u64,
    pub(crate) shim_contact: ShimContact,
}

/// How the attempt's shim can be reached when the task begins.
#[derive(Debug)]
pub(crate) enum ShimContact {
    /// It has to be started.
    Launch {
        plan: Box<AttemptPlan>,
        token: LeaseToken,
    },
    /// An earlier daemon started it, and it has answered.
    Adopted(Box<ReachedShim>),
    /// It has not answered.
    Unreachable,
    /// It is gone. Processes that it left may still run, unless the machine was restarted
    /// since.
    Gone { same_boot: bool },
}
