//! Whether anybody could take a task that waits, in the relay's words. Only asked to tell people: a caller who may not look
//! inside learns nothing, and nothing depends on it.

use baton_proto::v1::{InspectRequest, InspectResponse, NextAction, WaitsFor};

use crate::client::relay_client::RelayClient;
use crate::render::sanitizer::one_line;

/// Why it does not begin: nobody could take it, whoever could is away or busy, it is paused, or a turn is before it.
pub(crate) async fn wait_reason(relay: &RelayClient, task_id: &str) -> Option<String> {
    let found = inspect_task(relay, task_id).await?;
    let waits = match found.next_action() {
        NextAction::Stranded | NextAction::WaitingForDaemon | NextAction::UnpauseRequired => true,
        _other => waits_for_earlier_turn(&found),
    };
    waits.then(|| one_line(&found.next_action_text))
}

/// Why it will not begin soon: nobody on record could ever take it, or a turn is before it.
pub(crate) async fn long_wait_reason(relay: &RelayClient, task_id: &str) -> Option<String> {
    let found = inspect_task(relay, task_id).await?;
    let stranded = found.next_action() == NextAction::Stranded;
    (stranded || waits_for_earlier_turn(&found)).then(|| one_line(&found.next_action_text))
}

fn waits_for_earlier_turn(found: &InspectResponse) -> bool {
    let task = found.task.as_ref();
    task.is_some_and(|task| task.waits_for() == WaitsFor::Conversation)
}

async fn inspect_task(relay: &RelayClient, task_id: &str) -> Option<InspectResponse> {
    let request = InspectRequest {
        task_id: task_id.to_owned(),
    };
    let answer = relay.operator().inspect(request).await.ok()?;
    Some(answer.into_inner())
}
