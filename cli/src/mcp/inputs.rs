//! The arguments of each tool, and what they become on the wire.

use baton_proto::ShortName;
use baton_proto::v1::{
    BlockDraft, CheckpointDraft, CompletionContract, Evidence, FailedItem, ListBlockedRequest,
    ListTasksRequest, MissingPolicy, ProgressUpdate, RequiredArtifact, TaskSpec, TaskState,
};
use baton_proto::verbs::Call;
use baton_proto::worker::{Finish, FinishOutcome};

use super::fields::{Args, Field, Shape, field};

const ID: Shape = Shape::Words { most: 64 };
const REASON: Shape = Shape::Words { most: 2048 };
const NOTE: Shape = Shape::Text { most: 2048 };
const ITEM: Shape = Shape::Words { most: 1024 };
const SUMMARY: usize = 8192;
/// Bytes on the wire; characters here, of which none has more than four.
const RESULT: usize = 16 * 1024;

const EVIDENCE: Shape = Shape::Object(&[
    field(
        "kind",
        Shape::Words { most: 64 },
        "journal, screenshot, contract, task, url, file, or another word.",
    )
    .required(),
    field("ref", Shape::Words { most: 2048 }, "Where it is.").required(),
    field("summary", Shape::Text { most: 1024 }, "One line about it."),
]);
const FAILED_ITEM: Shape = Shape::Object(&[
    field("item", ITEM, "What did not work out.").required(),
    field("reason", Shape::Words { most: 1024 }, "Why.").required(),
]);
const ARTIFACT: Shape = Shape::Object(&[
    field(
        "path",
        Shape::Words { most: 1024 },
        "Relative to the working directory, without `..`.",
    )
    .required(),
    field(
        "min_size",
        Shape::Number {
            least: 0,
            most: 1 << 50,
        },
        "Smallest size in bytes.",
    ),
    field(
        "sha256",
        Shape::Text { most: 64 },
        "Expected SHA-256 in hex.",
    ),
]);

const OWN_TASK: Field = field("task_id", ID, "The task; left out, the one that is held.");
const CURSOR: Field = field("cursor", NOTE, "Where to go on.");
const EVIDENCE_LIST: Field = field(
    "evidence",
    Shape::List {
        of: &EVIDENCE,
        most: 50,
    },
    "References to proof.",
);
const STATE_REFS: Field = field(
    "state_refs",
    Shape::List {
        of: &NOTE,
        most: 64,
    },
    "Paths of larger state, never its contents.",
);
const PAGE_TOKEN: Field = field(
    "page_token",
    Shape::Text { most: 1024 },
    "next_page_token of the page before.",
);
const PAGE_SIZE: Field = field(
    "page_size",
    Shape::Number {
        least: 1,
        most: 200,
    },
    "How many at most.",
);

const STATES: [&str; 9] = [
    "pending",
    "queued",
    "running",
    "needs_attention",
    "completed",
    "failed",
    "canceled",
    "timed_out",
    "lost",
];
const STATE: Shape = Shape::OneOf(&STATES);
pub(super) const OUTCOMES: [&str; 3] = ["completed", "failed", "canceled"];
const POLICIES: [&str; 3] = ["reject", "fail", "park"];

const START: [Field; 9] = [
    field(
        "goal",
        Shape::Words { most: 4096 },
        "What is to be reached.",
    )
    .required(),
    field(
        "prompt",
        Shape::Text { most: 256 * 1024 },
        "What has to be done in detail; left out, the goal says it.",
    ),
    field(
        "success_criteria",
        Shape::List {
            of: &ITEM,
            most: 50,
        },
        "How one can tell that it is reached.",
    ),
    field(
        "agent_scope",
        Shape::Text { most: 256 },
        "Agents of this scope may go on with it later; left out, those of this token's.",
    ),
    field(
        "labels",
        Shape::Pairs {
            most: 64,
            most_text: 256,
        },
        "Notes to find it by.",
    ),
    field(
        "required_artifacts",
        Shape::List {
            of: &ARTIFACT,
            most: 64,
        },
        "Files without which it cannot be completed.",
    ),
    field(
        "missing_policy",
        Shape::OneOf(&POLICIES),
        "What a missing file does to a completion; left out, it is rejected.",
    ),
    field(
        "lease_seconds",
        Shape::Number {
            least: 5,
            most: 86_400,
        },
        "How long the lease lasts without a renewal.",
    ),
    field(
        "idempotency_key",
        Shape::Text { most: 64 },
        "The same key never makes a second task; left out, every call makes one.",
    ),
];
const CLAIM: [Field; 1] = [field(
    "task_id",
    ID,
    "The task; left out, the first that this token may claim.",
)];
const PICK_UP: [Field; 3] = [
    field("task_id", ID, "The task.").required(),
    field(
        "attempt_id",
        ID,
        "The parked attempt that was seen: another one is not picked up.",
    ),
    field("reason", NOTE, "Why, for those who read the task later."),
];
const PROGRESS: [Field; 6] = [
    OWN_TASK,
    field(
        "summary",
        Shape::Text { most: SUMMARY },
        "Where the work stands; replaces what was said before.",
    ),
    field(
        "completed_items",
        Shape::List {
            of: &ITEM,
            most: 500,
        },
        "What is done since.",
    ),
    field(
        "failed_items",
        Shape::List {
            of: &FAILED_ITEM,
            most: 500,
        },
        "What did not work out, and why.",
    ),
    field(
        "cursor",
        NOTE,
        "Where to go on; replaces what was said before.",
    ),
    EVIDENCE_LIST,
];
const CHECKPOINT: [Field; 6] = [
    OWN_TASK,
    field(
        "summary",
        Shape::Words { most: SUMMARY },
        "What was done, for whoever goes on.",
    )
    .required(),
    CURSOR,
    EVIDENCE_LIST,
    field(
        "agent_session_id",
        Shape::Text { most: 256 },
        "The agent's own id of its conversation, to resume it.",
    ),
    STATE_REFS,
];
const BLOCK: [Field; 7] = [
    OWN_TASK,
    field("reason", REASON, "Why it cannot go on.").required(),
    field("resume_hint", NOTE, "What would help."),
    field(
        "summary",
        Shape::Text { most: SUMMARY },
        "What was done so far, for the checkpoint that is written with it.",
    ),
    CURSOR,
    EVIDENCE_LIST,
    STATE_REFS,
];
const COMPLETE: [Field; 6] = [
    OWN_TASK,
    field("outcome", Shape::OneOf(&OUTCOMES), "How the task ends.").required(),
    field(
        "summary",
        Shape::Words { most: 4096 },
        "What was done; of a failed or canceled task: why.",
    )
    .required(),
    field(
        "result",
        Shape::Text { most: RESULT },
        "The final text or JSON; of a failed or canceled task: what users are told.",
    ),
    field(
        "failure_code",
        Shape::Text { most: 64 },
        "Of a failed task: a word from the registry; left out, agent_reported.",
    ),
    field(
        "retryable",
        Shape::Flag,
        "Of a failed task: false forbids another attempt.",
    ),
];
const GET: [Field; 1] = [OWN_TASK];
const LIST: [Field; 5] = [
    field(
        "states",
        Shape::List {
            of: &STATE,
            most: 9,
        },
        "Any of these; left out, all.",
    ),
    field(
        "agent",
        Shape::Text { most: 256 },
        "Only tasks of this agent.",
    ),
    field(
        "labels",
        Shape::Pairs {
            most: 64,
            most_text: 256,
        },
        "Only tasks with all of these notes.",
    ),
    PAGE_SIZE,
    PAGE_TOKEN,
];
const LIST_BLOCKED: [Field; 3] = [
    field(
        "agent_scope",
        Shape::Text { most: 256 },
        "Only tasks of this scope.",
    ),
    PAGE_SIZE,
    PAGE_TOKEN,
];
const GET_BLOCKED: [Field; 1] = [field("task_id", ID, "The task.").required()];
const RELEASE: [Field; 2] = [
    OWN_TASK,
    field("reason", NOTE, "Why, for those who read the task later."),
];

/// What a tool takes.
pub(super) fn fields_of(call: Call) -> &'static [Field] {
    match call {
        Call::Start => &START,
        Call::Claim => &CLAIM,
        Call::PickUp => &PICK_UP,
        Call::Progress => &PROGRESS,
        Call::Checkpoint => &CHECKPOINT,
        Call::Block => &BLOCK,
        Call::Complete => &COMPLETE,
        Call::Release => &RELEASE,
        Call::Get => &GET,
        Call::List => &LIST,
        Call::ListBlocked => &LIST_BLOCKED,
        Call::GetBlocked => &GET_BLOCKED,
    }
}

fn evidence(args: &Args) -> Vec<Evidence> {
    let entries = args.objects("evidence").map(|entry| Evidence {
        kind: entry.text("kind"),
        r#ref: entry.text("ref"),
        summary: entry.text("summary"),
    });
    entries.collect()
}

pub(super) fn progress(args: &Args) -> ProgressUpdate {
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

pub(super) fn checkpoint(args: &Args) -> CheckpointDraft {
    CheckpointDraft {
        summary: args.text("summary"),
        cursor: args.text("cursor"),
        evidence: evidence(args),
        agent_session_id: args.text("agent_session_id"),
        state_refs: args.texts("state_refs"),
    }
}

pub(super) fn block(args: &Args) -> BlockDraft {
    BlockDraft {
        reason: args.text("reason"),
        resume_hint: args.text("resume_hint"),
        checkpoint: Some(checkpoint(args)),
    }
}

pub(super) fn finish(args: &Args) -> Finish {
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

pub(super) fn list(args: &Args) -> ListTasksRequest {
    let states = args.texts("states");
    let states = states
        .iter()
        .filter_map(|word| TaskState::from_short_name(word).ok());
    ListTasksRequest {
        states: states.map(i32::from).collect(),
        agent: args.text("agent"),
        labels: args.pairs("labels").collect(),
        page_size: page_size(args),
        page_token: args.text("page_token"),
        ..ListTasksRequest::default()
    }
}

pub(super) fn list_blocked(args: &Args) -> ListBlockedRequest {
    ListBlockedRequest {
        agent_scope: args.text("agent_scope"),
        page_size: page_size(args),
        page_token: args.text("page_token"),
        ..ListBlockedRequest::default()
    }
}

fn page_size(args: &Args) -> u32 {
    let size = args.number("page_size").unwrap_or_default();
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// A task that is held by whoever submits it.
pub(super) fn spec(args: &Args) -> TaskSpec {
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

/// What a task says of its agent when that holds it itself.
const AGENT: &str = "mcp";

#[cfg(test)]
mod tests {
    use baton_proto::verbs::tools;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_tool_has_fields_and_only_verbs_with_a_reason_require_one() {
        for (verb, tool) in tools() {
            let fields = fields_of(tool.call);
            assert!(!fields.is_empty(), "{}", tool.name);
            let required = fields
                .iter()
                .any(|field| field.name == "reason" && field.required);
            assert_eq!(required, verb.needs_reason, "{}", tool.name);
        }
    }

    #[test]
    fn every_state_has_its_word() {
        for word in STATES {
            assert!(TaskState::from_short_name(word).is_ok(), "{word}");
        }
        assert_eq!(STATES.len(), <TaskState as ShortName>::NAMES.len() - 1);
        for word in POLICIES {
            assert!(MissingPolicy::from_short_name(word).is_ok(), "{word}");
        }
    }

    #[test]
    fn arguments_reach_their_fields() {
        let Value::Object(given) = json!({
            "reason": "no key", "resume_hint": "a key", "summary": "half", "cursor": "7",
            "evidence": [{"kind": "url", "ref": "http://x"}], "state_refs": ["a/b"],
        }) else {
            unreachable!()
        };
        let block = block(&Args(given));
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
