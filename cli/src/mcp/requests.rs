//! Turns the arguments of a tool into requests to the relay or the daemon.

use baton_proto::ShortName;
use baton_proto::v1::{
    BlockDraft, CheckpointDraft, CompletionContract, Evidence, FailedItem, ListBlockedRequest,
    ListTasksRequest, MissingPolicy, ProgressUpdate, RequiredArtifact, TaskSpec, TaskState,
};
use baton_proto::worker::{Finish, FinishOutcome};

use super::argument_schema::McpArguments;

fn evidence(args: &McpArguments) -> Vec<Evidence> {
    let entries = args.objects("evidence").map(|entry| Evidence {
        kind: entry.text("kind"),
        r#ref: entry.text("ref"),
        summary: entry.text("summary"),
    });
    entries.collect()
}

pub(super) fn progress(args: &McpArguments) -> ProgressUpdate {
    let failed = args.objects("failed_items").map(|entry| FailedItem {
        item: entry.text("item"),
        reason: entry.text("reason"),
    });
    ProgressUpdate {
        summary: args.given_text("summary"),
        completed_items: args.texts("completed_items"),
        failed_items: failed.collect(),
        cursor: args.given_text("cursor"),
        evidence: evidence(args),
    }
}

pub(super) fn checkpoint(args: &McpArguments) -> CheckpointDraft {
    CheckpointDraft {
        summary: args.text("summary"),
        cursor: args.text("cursor"),
        evidence: evidence(args),
        agent_session_id: args.text("agent_session_id"),
        state_refs: args.texts("state_refs"),
    }
}

pub(super) fn block(args: &McpArguments) -> BlockDraft {
    BlockDraft {
        reason: args.text("reason"),
        resume_hint: args.text("resume_hint"),
        checkpoint: Some(checkpoint(args)),
    }
}

pub(super) fn finish(args: &McpArguments) -> Finish {
    let outcome = match args.text("outcome").as_str() {
        "failed" => FinishOutcome::Failed,
        "canceled" => FinishOutcome::Canceled,
        _ => FinishOutcome::Completed,
    };
    Finish {
        outcome: outcome.into(),
        summary: args.text("summary"),
        result: args.text("result"),
        failure_code: args.text("failure_code"),
        retryable: args.flag("retryable"),
    }
}

pub(super) fn list(args: &McpArguments) -> ListTasksRequest {
    let states = args.texts("states");
    let states = states
        .iter()
        .filter_map(|name| TaskState::from_short_name(name).ok());
    ListTasksRequest {
        states: states.map(i32::from).collect(),
        agent: args.text("agent"),
        labels: args.pairs("labels").collect(),
        page_size: page_size(args),
        page_token: args.text("page_token"),
        ..ListTasksRequest::default()
    }
}

pub(super) fn list_blocked(args: &McpArguments) -> ListBlockedRequest {
    ListBlockedRequest {
        agent_scope: args.text("agent_scope"),
        page_size: page_size(args),
        page_token: args.text("page_token"),
        ..ListBlockedRequest::default()
    }
}

fn page_size(args: &McpArguments) -> u32 {
    let size = args.number("page_size").unwrap_or_default();
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// A task whose submitter also holds its lease.
pub(super) fn spec(args: &McpArguments) -> TaskSpec {
    let goal = args.text("goal");
    let prompt = args
        .given_text("prompt")
        .filter(|prompt| !prompt.trim().is_empty());
    let artifacts = args
        .objects("required_artifacts")
        .map(|entry| RequiredArtifact {
            path: entry.text("path"),
            min_size: entry.number("min_size"),
            sha256: entry.text("sha256"),
        });
    let artifacts: Vec<RequiredArtifact> = artifacts.collect();
    let policy = MissingPolicy::from_short_name(&args.text("missing_policy"));
    let contract = CompletionContract {
        missing_policy: policy.unwrap_or(MissingPolicy::Unspecified).into(),
        required_artifacts: artifacts,
    };
    TaskSpec {
        agent: AGENT.to_owned(),
        prompt: prompt.unwrap_or_else(|| goal.clone()),
        goal,
        success_criteria: args.texts("success_criteria"),
        agent_scope: args.text("agent_scope"),
        agent_held: true,
        labels: args.pairs("labels").collect(),
        lease_ttl_ms: args.number("lease_seconds").map(|seconds| seconds * 1000),
        contract: (!contract.required_artifacts.is_empty()).then_some(contract),
        ..TaskSpec::default()
    }
}

/// Agent name of tasks whose agent holds the lease itself.
const AGENT: &str = "mcp";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn block_arguments_set_their_fields() {
        let Value::Object(given) = json!({
            "reason": "no key", "resume_hint": "a key", "summary": "half", "cursor": "7",
            "evidence": [{"kind": "url", "ref": "http://x"}], "state_refs": ["a/b"],
        }) else {
            unreachable!()
        };
        let block = block(&McpArguments(given));
        let checkpoint = block.checkpoint.unwrap();
        assert_eq!(
            (block.reason.as_str(), block.resume_hint.as_str()),
            ("no key", "a key")
        );
        assert_eq!(
            (checkpoint.summary.as_str(), checkpoint.cursor.as_str()),
            ("half", "7")
        );
        assert_eq!(checkpoint.evidence[0].r#ref, "http://x");
        assert_eq!(checkpoint.state_refs, ["a/b"]);
    }
}
