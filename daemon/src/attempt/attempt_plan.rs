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
    /// Its working directory is the agent's word for it; what it is started in is found when the workspace is.
    pub(crate) child: ChildSpec,
    pub(crate) stdin: ChildStdin,
    pub(crate) deadlines: DeadlineLimits,
    /// From TERM to KILL.
    pub(crate) cleanup_term: Duration,
    /// What its agent may say through tools, where it has some.
    pub(crate) tools: Option<ToolGrant>,
    /// What it has to leave.
    pub(crate) required_files: Option<RequiredFiles>,
    /// What a command is told of the attempts before it.
    pub(crate) resume: Option<ResumeContext>,
}

/// What goes to the child's stdin, and so how it is understood.
#[derive(Clone, Debug)]
pub(crate) enum ChildStdin {
    /// All at once; what comes back is output.
    Prompt(Bytes),
    /// A coding agent is talked to.
    AgentSession(Box<AgentSession>),
}

/// What all attempts of a daemon share.
#[derive(Clone, Debug)]
pub(crate) struct AttemptEnvironment {
    pub(crate) shim: ShimProgram,
    pub(crate) daemon_id: String,
    pub(crate) instance_id: String,
    pub(crate) boot_id: String,
    /// The daemon's name, for people.
    pub(crate) daemon_name: String,
    /// Where attempts have control groups.
    pub(crate) control_groups: Option<ControlGroups>,
    pub(crate) clock: Clock,
}

/// One attempt as it is handed to its task.
#[derive(Debug)]
pub(crate) struct AttemptRunInput {
    pub(crate) attempt_id: String,
    pub(crate) task_id: String,
    /// Where it works; none for the daemon's own work directory.
    pub(crate) workspace: Option<workspace::WorkspacePlan>,
    pub(crate) cleanup_term: Duration,
    /// What it has to leave.
    pub(crate) required_files: Option<RequiredFiles>,
    /// The attempt's own directory.
    pub(crate) directory: PathBuf,
    pub(crate) transcript_reader: TranscriptReader,
    /// Where the fold goes on, and from where on it must remember what it was told before.
    pub(crate) position: u64,
    pub(crate) replay_from: u64,
    pub(crate) shim_contact: ShimContact,
}

/// How the attempt's shim stands when the task begins.
#[derive(Debug)]
pub(crate) enum ShimContact {
    /// It is to be started.
    Launch {
        plan: Box<AttemptPlan>,
        token: LeaseToken,
    },
    /// It was started by a daemon before this one, and has answered.
    Adopted(Box<ReachedShim>),
    /// It has not answered.
    Unreachable,
    /// It is gone. What it left behind may still be there, unless the machine was started since.
    Gone { same_boot: bool },
}
