//! Arguments that many commands share: the task, the reason, and JSON output.

use clap::Args;

use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;

/// The task that a command acts on.
#[derive(Args, Clone, Debug)]
pub(crate) struct TaskIdArg {
    /// Id of the task, or a unique prefix of it.
    #[arg(value_name = "TASK")]
    task_id: String,
}

impl TaskIdArg {
    /// Returns the full id.
    pub(crate) async fn resolve(&self, relay: &RelayClient) -> Result<String, CliError> {
        id_prefix::resolve_task_id(relay, &self.task_id).await
    }

    /// Returns the full id, for a command that needs a reason.
    pub(crate) async fn resolve_with_reason(
        &self,
        relay: &RelayClient,
        why: &RequiredReasonArg,
    ) -> Result<String, CliError> {
        id_prefix::resolve_task_id_with_reason(relay, &self.task_id, &why.reason).await
    }
}

/// The tasks that a command acts on.
#[derive(Args, Clone, Debug)]
pub(crate) struct TaskIdsArg {
    /// Ids of 1 to 50 tasks, or unique prefixes of them.
    #[arg(value_name = "TASK", required = true)]
    task_ids: Vec<String>,
}

impl TaskIdsArg {
    pub(crate) async fn resolve_with_reason(
        &self,
        relay: &RelayClient,
        why: &RequiredReasonArg,
    ) -> Result<Vec<String>, CliError> {
        id_prefix::resolve_task_ids_with_reason(relay, &self.task_ids, &why.reason).await
    }
}

/// An optional reason.
#[derive(Args, Clone, Debug)]
pub(crate) struct OptionalReasonArg {
    /// Reason, for people who read the task later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) reason: String,
}

/// A required reason.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequiredReasonArg {
    /// Reason, for people who read the task later. It is stored in the task's events.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// JSON output for programs.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct JsonOutputArg {
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// For commands that the holder of a task's lease may use as well.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaseHolderArg {
    /// The attempt whose lease you hold, as `baton claim` and `baton pick-up` print it. The lease token is read from
    /// BATON_LEASE_TOKEN. For tokens with the role agent.
    #[arg(long, value_name = "ATTEMPT")]
    pub(crate) attempt: Option<String>,
}
