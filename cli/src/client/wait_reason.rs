//! Why a task waits, as the relay explains it. The text is only shown to people. A caller without
//! the right to inspect tasks gets none.

use baton_proto::v1::{InspectRequest, InspectResponse, NextAction, WaitsFor};

use crate::client::relay_client::RelayClient;
use crate::render::sanitizer::one_line;

/// Why the task has not started: no daemon can take it, all such daemons are offline or busy, it is
/// paused, or an earlier turn of its conversation has not ended.
pub(crate) async fn wait_reason(relay: &RelayClient, task_id: &str) -> Option<String> {
    let response = inspect_task(relay, task_id).await?;
    let waits = match response.next_action() {
        NextAction::Stranded | NextAction::WaitingForDaemon | NextAction::UnpauseRequired => true,
        _other => waits_for_earlier_turn(&response),
    };
    waits.then(|| one_line(&response.next_action_text))
}

/// Why the task will not start soon: no known daemon can ever take it, or an earlier turn has not
/// ended.
pub(crate) async fn long_wait_reason(relay: &RelayClient, task_id: &str) -> Option<String> {
    let response = inspect_task(relay, task_id).await?;
    let stranded = response.next_action() == NextAction::Stranded;
    (stranded || waits_for_earlier_turn(&response)).then(|| one_line(&response.next_action_text))
}

fn waits_for_earlier_turn(response: &InspectResponse) -> bool {
    let task = response.task.as_ref();
    task.is_some_and(|task| task.waits_for() == WaitsFor::Conversation)
}

async fn inspect_task(relay: &RelayClient, task_id: &str) -> Option<InspectResponse> {
    let request = InspectRequest {
        task_id: task_id.to_owned(),
    };
    let response = relay.operator().inspect(request).await.ok()?;
    Some(response.into_inner())
}
