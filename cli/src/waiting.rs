//! Whether anybody could take a task that waits, in the relay's words. Only asked to tell people: a caller who may not look
//! inside learns nothing, and nothing depends on it.

use baton_proto::v1::{InspectRequest, InspectResponse, NextAction};

use crate::client::Relay;
use crate::sanitize::one_line;

/// Why it does not begin: nobody could take it, or whoever could is away or busy.
pub(crate) async fn why(relay: &Relay, task_id: &str) -> Option<String> {
    let found = inspected(relay, task_id).await?;
    let waits = matches!(
        found.next_action(),
        NextAction::Stranded | NextAction::WaitingForDaemon
    );
    waits.then(|| one_line(&found.next_action_text))
}

/// Why nobody on record could ever take it.
pub(crate) async fn why_stranded(relay: &Relay, task_id: &str) -> Option<String> {
    let found = inspected(relay, task_id).await?;
    let stranded = found.next_action() == NextAction::Stranded;
    stranded.then(|| one_line(&found.next_action_text))
}

async fn inspected(relay: &Relay, task_id: &str) -> Option<InspectResponse> {
    let request = InspectRequest {
        task_id: task_id.to_owned(),
    };
    let answer = relay.operator().inspect(request).await.ok()?;
    Some(answer.into_inner())
}
