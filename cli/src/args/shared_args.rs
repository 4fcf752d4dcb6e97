//! Arguments that many commands take, told once: which task, why, and as JSON.

use clap::Args;

use crate::client::id_prefix;
use crate::client::relay_client::RelayClient;
use crate::error::cli_error::CliError;

/// One task.
#[derive(Args, Clone, Debug)]
pub(crate) struct TaskIdArg {
    /// Id of the task, or as much of its beginning as no other task has.
    #[arg(value_name = "TASK")]
    task_id: String,
}

impl TaskIdArg {
    /// Its whole id.
    pub(crate) async fn resolve(&self, relay: &RelayClient) -> Result<String, CliError> {
        id_prefix::resolve_task_id(relay, &self.task_id).await
    }

    /// The same for a verb that needs a reason.
    pub(crate) async fn resolve_with_reason(
        &self,
        relay: &RelayClient,
        why: &RequiredReasonArg,
    ) -> Result<String, CliError> {
        id_prefix::resolve_task_id_with_reason(relay, &self.task_id, &why.reason).await
    }
}

/// Several of them.
#[derive(Args, Clone, Debug)]
pub(crate) struct TaskIdsArg {
    /// Ids of tasks, or as much of each as no other task has: one, or up to 50.
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

/// A reason that may be left out.
#[derive(Args, Clone, Debug)]
pub(crate) struct OptionalReasonArg {
    /// Why, for those who read the task later.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) reason: String,
}

/// One that may not.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequiredReasonArg {
    /// Why, for those who read the task later; it stands in the task's events.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// For programs.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct JsonOutputArg {
    /// Print the answer as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// For those verbs that whoever holds the task has too.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaseHolderArg {
    /// The attempt whose lease you hold, as `baton claim` and `baton pick-up` print it; the lease token is taken from
    /// BATON_LEASE_TOKEN. For tokens of role agent.
    #[arg(long, value_name = "ATTEMPT")]
    pub(crate) attempt: Option<String>,
}
