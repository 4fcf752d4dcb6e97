//! The arguments of each tool, by the bounds that the relay has too. What they become on the wire is in `requests`.

use baton_contract::PATHS_MAX;
use baton_contract::bounds::{self, Size};
use baton_proto::codes;
use baton_proto::verbs::Call;

use super::fields::{Args, Field, Shape, Wrong, check_object, check_text, field};

const ID: Shape = Shape::Id;
const REASON: Shape = Shape::Words(bounds::REASON);
const NOTE: Shape = Shape::Text(bounds::REASON);
/// Of whoever takes a task or gives it back.
const REMARK: Shape = Shape::Maybe(bounds::REASON);
const ITEM: Shape = Shape::Words(bounds::ITEM);
const STATE_REF: Shape = Shape::Words(bounds::STATE_REF);
const RESULT: Size = Size::Bytes(codes::RESULT_BYTES);
const FAILURE_CODE: Size = Size::Bytes(codes::CODE_BYTES);

const CRITERION: Shape = Shape::Words(bounds::CRITERION);

const EVIDENCE: Shape = Shape::Object(&[
    field(
        "kind",
        Shape::Words(bounds::EVIDENCE_KIND),
        "journal, screenshot, contract, task, url, file, or another word.",
    )
    .required(),
    field("ref", Shape::Words(bounds::EVIDENCE_REF), "Where it is.").required(),
    field(
        "summary",
        Shape::Text(bounds::EVIDENCE_SUMMARY),
        "One line about it.",
    ),
]);
const FAILED_ITEM: Shape = Shape::Object(&[
    field("item", ITEM, "What did not work out.").required(),
    field("reason", Shape::Words(bounds::ITEM_REASON), "Why.").required(),
]);
const ARTIFACT: Shape = Shape::Object(&[
    field(
        "path",
        Shape::Path,
        "Relative to the working directory, without `..`.",
    )
    .required(),
    field(
        "min_size",
        Shape::Number {
            least: 0,
            most: bounds::FILE_BYTES,
        },
        "Smallest size in bytes.",
    ),
    field("sha256", Shape::Sha256, "Expected SHA-256 in hex."),
]);

const OWN_TASK: Field = field("task_id", ID, "The task; left out, the one that is held.");
const CURSOR: Field = field("cursor", Shape::Text(bounds::CURSOR), "Where to go on.");
const EVIDENCE_LIST: Field = field(
    "evidence",
    Shape::List {
        of: &EVIDENCE,
        most: bounds::EVIDENCE,
    },
    "References to proof.",
);
const STATE_REFS: Field = field(
    "state_refs",
    Shape::List {
        of: &STATE_REF,
        most: bounds::STATE_REFS,
    },
    "Paths of larger state, never its contents.",
);
const PAGE_TOKEN: Field = field(
    "page_token",
    Shape::Text(bounds::PAGE_TOKEN),
    "next_page_token of the page before.",
);
const PAGE_SIZE: Field = field(
    "page_size",
    Shape::Number {
        least: 1,
        most: bounds::PAGE_MAX as u64,
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
    field("goal", Shape::Words(bounds::GOAL), "What is to be reached.").required(),
    field(
        "prompt",
        Shape::Text(bounds::PROMPT),
        "What has to be done in detail; left out, the goal says it.",
    ),
    field(
        "success_criteria",
        Shape::List {
            of: &CRITERION,
            most: bounds::SUCCESS_CRITERIA,
        },
        "How one can tell that it is reached.",
    ),
    field(
        "agent_scope",
        Shape::Maybe(bounds::NAME),
        "Agents of this scope may go on with it later; left out, those of this token's.",
    ),
    field("labels", Shape::Labels, "Notes to find it by."),
    field(
        "required_artifacts",
        Shape::List {
            of: &ARTIFACT,
            most: PATHS_MAX,
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
            least: bounds::LEASE_TTL_MIN_MS / 1_000,
            most: bounds::LEASE_TTL_MAX_MS / 1_000,
        },
        "How long the lease lasts without a renewal.",
    ),
    field(
        "idempotency_key",
        Shape::Maybe(bounds::IDEMPOTENCY_KEY),
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
    field("reason", REMARK, "Why, for those who read the task later."),
];
const PROGRESS: [Field; 6] = [
    OWN_TASK,
    field(
        "summary",
        Shape::Text(bounds::SUMMARY),
        "Where the work stands; replaces what was said before.",
    ),
    field(
        "completed_items",
        Shape::List {
            of: &ITEM,
            most: bounds::ITEMS,
        },
        "What is done since.",
    ),
    field(
        "failed_items",
        Shape::List {
            of: &FAILED_ITEM,
            most: bounds::ITEMS,
        },
        "What did not work out, and why.",
    ),
    field(
        "cursor",
        Shape::Text(bounds::CURSOR),
        "Where to go on; replaces what was said before.",
    ),
    EVIDENCE_LIST,
];
const CHECKPOINT: [Field; 6] = [
    OWN_TASK,
    field(
        "summary",
        Shape::Words(bounds::SUMMARY),
        "What was done, for whoever goes on.",
    )
    .required(),
    CURSOR,
    EVIDENCE_LIST,
    field(
        "agent_session_id",
        Shape::Text(bounds::HANDLE),
        "The agent's own id of its conversation, to resume it.",
    ),
    STATE_REFS,
];
/// The reason first: a blank one is wrong whatever it speaks of.
const BLOCK: [Field; 7] = [
    field("reason", REASON, "Why it cannot go on.").required(),
    OWN_TASK,
    field("resume_hint", NOTE, "What would help."),
    field(
        "summary",
        Shape::Text(bounds::SUMMARY),
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
        Shape::Words(bounds::SUMMARY),
        "What was done; of a failed task: why, in at most 4096 characters; of a canceled one: why, in at most 2048.",
    )
    .required(),
    field(
        "result",
        Shape::Text(RESULT),
        "The final text or JSON; of a failed task: what users are told, in at most 4096 characters.",
    ),
    field(
        "failure_code",
        Shape::Name(FAILURE_CODE),
        "Of a failed task: a word of your own for why; left out, agent_reported.",
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
            most: bounds::FILTER_STATES,
        },
        "Any of these; left out, all.",
    ),
    field(
        "agent",
        Shape::Text(bounds::NAME),
        "Only tasks of this agent.",
    ),
    field(
        "labels",
        Shape::Labels,
        "Only tasks with all of these notes.",
    ),
    PAGE_SIZE,
    PAGE_TOKEN,
];
const LIST_BLOCKED: [Field; 3] = [
    field(
        "agent_scope",
        Shape::Maybe(bounds::NAME),
        "Only tasks of this scope.",
    ),
    PAGE_SIZE,
    PAGE_TOKEN,
];
const GET_BLOCKED: [Field; 1] = [field("task_id", ID, "The task.").required()];
const RELEASE: [Field; 2] = [
    OWN_TASK,
    field("reason", REMARK, "Why, for those who read the task later."),
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

/// What a tool is given, against its fields and against each other: what stands for a failure's words is a failure's length.
pub(super) fn check(call: Call, args: &Args) -> Result<(), Wrong> {
    check_object(fields_of(call), &args.0, "")?;
    match (call, args.text("outcome").as_str()) {
        (Call::Complete, "failed") => {
            check_text(&args.text("summary"), bounds::MESSAGE, "summary")?;
            check_text(&args.text("result"), bounds::MESSAGE, "result")
        }
        (Call::Complete, "canceled") => {
            check_text(&args.text("summary"), bounds::REASON, "summary")
        }
        _other => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::ShortName;
    use baton_proto::v1::{MissingPolicy, TaskState};
    use baton_proto::verbs::tools;

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
}
