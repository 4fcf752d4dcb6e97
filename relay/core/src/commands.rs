//! Re-exports of every command of the core, by subject. Each command is documented where it is
//! defined.

pub use crate::agent::attempt_verb::{
    AgentVerb, BlockAttempt, EndAttempt, ReportAttemptProgress, WriteAttemptCheckpoint,
};
pub use crate::agent::lease_call::{
    AgentCallReply, AgentLeaseCall, AgentLeaseProof, RenewAgentLease, RenewedLease,
};
pub use crate::agent::lease_grant::{AgentCaller, ClaimTask, PickUpTask, StartTask};
pub use crate::fleet::daemon_removal::{ForgetAbsentDaemons, ForgetDaemon};
pub use crate::goal::hand_off::{BlockTask, BlockedTask, GoalOutcome, ResumeTask};
pub use crate::goal::parked_tasks::ListParkedTasks;
pub use crate::goal::progress_report::{UpdateProgress, UpdatedProgress};
pub use crate::operator::daemon_operation::OperateDaemon;
pub use crate::operator::inspection::{FindDaemon, InspectTask, ListDaemons, ShowDaemon};
pub use crate::operator::task_operation::{OperateTask, OperatedTask, TaskOperation};
pub use crate::recovery::inherited_tasks::ReleaseInherited;
pub use crate::schedule::pause::{PauseOutcome, PauseScheduler, UnpauseScheduler};
pub use crate::schedule::scheduler_status::ReadSchedulerStatus;
pub use crate::task::cancel_and_answer::{AnswerInput, CancelTask, CanceledTask};
pub use crate::task::retention::RemoveFinishedTasks;
pub use crate::task::submit::{SubmitTask, SubmittedTask};
