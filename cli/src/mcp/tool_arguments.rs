//! The arguments of each tool, with the same limits as the relay's. `requests` turns them into
//! requests.

use baton_proto::codes;
use baton_proto::verbs::ToolOperation;
use baton_validation::PATHS_MAX;
use baton_validation::limits::{self, TextLimit};

use super::argument_schema::{
    ArgumentError, ArgumentField, ArgumentShape, McpArguments, check_object, check_text, field,
};

const ID: ArgumentShape = ArgumentShape::Id;
const REASON: ArgumentShape = ArgumentShape::NonBlankText(limits::REASON);
const NOTE: ArgumentShape = ArgumentShape::Text(limits::REASON);
/// The reason for taking over or returning a task.
const OPTIONAL_REASON: ArgumentShape = ArgumentShape::OptionalText(limits::REASON);
const ITEM: ArgumentShape = ArgumentShape::NonBlankText(limits::ITEM);
const STATE_REF: ArgumentShape = ArgumentShape::NonBlankText(limits::STATE_REF);
const RESULT: TextLimit = TextLimit::Bytes(codes::MAX_RESULT_BYTES);
const FAILURE_CODE: TextLimit = TextLimit::Bytes(codes::MAX_CODE_BYTES);

const CRITERION: ArgumentShape = ArgumentShape::NonBlankText(limits::SUCCESS_CRITERION);

const EVIDENCE: ArgumentShape = ArgumentShape::Object(&[
    field(
        "kind",
        ArgumentShape::NonBlankText(limits::EVIDENCE_KIND),
        "Kind of evidence: journal, screenshot, contract, task, url, file, or another name.",
    )
    .required(),
    field(
        "ref",
        ArgumentShape::NonBlankText(limits::EVIDENCE_REF),
        "Where the evidence is.",
    )
    .required(),
    field(
        "summary",
        ArgumentShape::Text(limits::EVIDENCE_SUMMARY),
        "One line about it.",
    ),
]);
const FAILED_ITEM: ArgumentShape = ArgumentShape::Object(&[
    field("item", ITEM, "The failed item.").required(),
    field(
        "reason",
        ArgumentShape::NonBlankText(limits::ITEM_REASON),
        "Why it failed.",
    )
    .required(),
]);
const ARTIFACT: ArgumentShape = ArgumentShape::Object(&[
    field(
        "path",
        ArgumentShape::Path,
        "Relative to the working directory, without `..`.",
    )
    .required(),
    field(
        "min_size",
        ArgumentShape::Number {
            least: 0,
            most: limits::MAX_FILE_BYTES,
        },
        "Minimum size in bytes.",
    ),
    field("sha256", ArgumentShape::Sha256, "Expected SHA-256 in hex."),
]);

const OWN_TASK: ArgumentField = field("task_id", ID, "The task. Default: the task that you hold.");
const CURSOR: ArgumentField = field(
    "cursor",
    ArgumentShape::Text(limits::CURSOR),
    "Where to continue.",
);
const EVIDENCE_LIST: ArgumentField = field(
    "evidence",
    ArgumentShape::List {
        of: &EVIDENCE,
        most: limits::MAX_EVIDENCE,
    },
    "References to evidence.",
);
const STATE_REFS: ArgumentField = field(
    "state_refs",
    ArgumentShape::List {
        of: &STATE_REF,
        most: limits::MAX_STATE_REFS,
    },
    "Paths of larger state, not its contents.",
);
const PAGE_TOKEN: ArgumentField = field(
    "page_token",
    ArgumentShape::Text(limits::PAGE_TOKEN),
    "next_page_token of the previous page.",
);
const PAGE_SIZE: ArgumentField = field(
    "page_size",
    ArgumentShape::Number {
        least: 1,
        most: limits::PAGE_MAX as u64,
    },
    "Maximum number of entries.",
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
const STATE: ArgumentShape = ArgumentShape::OneOf(&STATES);
pub(super) const OUTCOMES: [&str; 3] = ["completed", "failed", "canceled"];
const POLICIES: [&str; 3] = ["reject", "fail", "park"];

const START: [ArgumentField; 9] = [
    field(
        "goal",
        ArgumentShape::NonBlankText(limits::GOAL),
        "The goal of the task.",
    )
    .required(),
    field(
        "prompt",
        ArgumentShape::Text(limits::PROMPT),
        "What has to be done in detail. Default: the goal.",
    ),
    field(
        "success_criteria",
        ArgumentShape::List {
            of: &CRITERION,
            most: limits::MAX_SUCCESS_CRITERIA,
        },
        "How to recognize that the goal is reached.",
    ),
    field(
        "agent_scope",
        ArgumentShape::OptionalText(limits::NAME),
        "Agents of this scope may continue the task later. Default: the scope of this token.",
    ),
    field(
        "labels",
        ArgumentShape::Labels,
        "Notes to find the task by.",
    ),
    field(
        "required_artifacts",
        ArgumentShape::List {
            of: &ARTIFACT,
            most: PATHS_MAX,
        },
        "Files without which the task cannot be completed.",
    ),
    field(
        "missing_policy",
        ArgumentShape::OneOf(&POLICIES),
        "What happens to a completion with missing files. Default: reject.",
    ),
    field(
        "lease_seconds",
        ArgumentShape::Number {
            least: limits::LEASE_TTL_MIN_MS / 1_000,
            most: limits::LEASE_TTL_MAX_MS / 1_000,
        },
        "How long the lease lasts without a renewal.",
    ),
    field(
        "idempotency_key",
        ArgumentShape::OptionalText(limits::IDEMPOTENCY_KEY),
        "The same key never creates a second task. Default: every call creates a task.",
    ),
];
const CLAIM: [ArgumentField; 1] = [field(
    "task_id",
    ID,
    "The task. Default: the first one that this token may claim.",
)];
const PICK_UP: [ArgumentField; 3] = [
    field("task_id", ID, "The task.").required(),
    field(
        "attempt_id",
        ID,
        "The parked attempt that you expect; the call is rejected if another one is parked.",
    ),
    field(
        "reason",
        OPTIONAL_REASON,
        "Reason, for people who read the task later.",
    ),
];
const PROGRESS: [ArgumentField; 6] = [
    OWN_TASK,
    field(
        "summary",
        ArgumentShape::Text(limits::SUMMARY),
        "Current state of the work; replaces the previous summary.",
    ),
    field(
        "completed_items",
        ArgumentShape::List {
            of: &ITEM,
            most: limits::MAX_ITEMS,
        },
        "Items that were completed since the last report.",
    ),
    field(
        "failed_items",
        ArgumentShape::List {
            of: &FAILED_ITEM,
            most: limits::MAX_ITEMS,
        },
        "Items that failed, with the reason.",
    ),
    field(
        "cursor",
        ArgumentShape::Text(limits::CURSOR),
        "Where to continue; replaces the previous cursor.",
    ),
    EVIDENCE_LIST,
];
const CHECKPOINT: [ArgumentField; 6] = [
    OWN_TASK,
    field(
        "summary",
        ArgumentShape::NonBlankText(limits::SUMMARY),
        "What was done, for the agent or person that continues.",
    )
    .required(),
    CURSOR,
    EVIDENCE_LIST,
    field(
        "agent_session_id",
        ArgumentShape::Text(limits::EXTERNAL_ID),
        "The agent's own id of its conversation, to resume it.",
    ),
    STATE_REFS,
];
/// The reason comes first, because a blank one is reported before any other error.
const BLOCK: [ArgumentField; 7] = [
    field("reason", REASON, "Why the task cannot continue.").required(),
    OWN_TASK,
    field("resume_hint", NOTE, "What would help."),
    field(
        "summary",
        ArgumentShape::Text(limits::SUMMARY),
        "What was done so far, for the checkpoint that is saved with the block.",
    ),
    CURSOR,
    EVIDENCE_LIST,
    STATE_REFS,
];
const COMPLETE: [ArgumentField; 6] = [
    OWN_TASK,
    field("outcome", ArgumentShape::OneOf(&OUTCOMES), "How the task ends.").required(),
    field(
        "summary",
        ArgumentShape::NonBlankText(limits::SUMMARY),
        "What was done. For a failed task: why, in at most 4096 characters. For a canceled task: why, in at most 2048.",
    )
    .required(),
    field(
        "result",
        ArgumentShape::Text(RESULT),
        "The final text or JSON. For a failed task: the message for users, in at most 4096 characters.",
    ),
    field(
        "failure_code",
        ArgumentShape::Name(FAILURE_CODE),
        "For a failed task: your own code for the cause. Default: agent_reported.",
    ),
    field(
        "retryable",
        ArgumentShape::Flag,
        "For a failed task: false forbids another attempt.",
    ),
];
const GET: [ArgumentField; 1] = [OWN_TASK];
const LIST: [ArgumentField; 5] = [
    field(
        "states",
        ArgumentShape::List {
            of: &STATE,
            most: limits::MAX_FILTER_STATES,
        },
        "Only tasks in one of these states. Default: all.",
    ),
    field(
        "agent",
        ArgumentShape::Text(limits::NAME),
        "Only tasks of this agent.",
    ),
    field(
        "labels",
        ArgumentShape::Labels,
        "Only tasks with all of these notes.",
    ),
    PAGE_SIZE,
    PAGE_TOKEN,
];
const LIST_BLOCKED: [ArgumentField; 3] = [
    field(
        "agent_scope",
        ArgumentShape::OptionalText(limits::NAME),
        "Only tasks of this scope.",
    ),
    PAGE_SIZE,
    PAGE_TOKEN,
];
const GET_BLOCKED: [ArgumentField; 1] = [field("task_id", ID, "The task.").required()];
const RELEASE: [ArgumentField; 2] = [
    OWN_TASK,
    field(
        "reason",
        OPTIONAL_REASON,
        "Reason, for people who read the task later.",
    ),
];

/// The arguments of a tool.
pub(super) fn argument_fields(call: ToolOperation) -> &'static [ArgumentField] {
    match call {
        ToolOperation::Start => &START,
        ToolOperation::Claim => &CLAIM,
        ToolOperation::PickUp => &PICK_UP,
        ToolOperation::Progress => &PROGRESS,
        ToolOperation::Checkpoint => &CHECKPOINT,
        ToolOperation::Block => &BLOCK,
        ToolOperation::Complete => &COMPLETE,
        ToolOperation::Release => &RELEASE,
        ToolOperation::Get => &GET,
        ToolOperation::List => &LIST,
        ToolOperation::ListBlocked => &LIST_BLOCKED,
        ToolOperation::GetBlocked => &GET_BLOCKED,
    }
}

/// Checks the arguments of a call. Summary and result have shorter limits if the outcome is a
/// failure or a cancellation, because they become its message or reason.
pub(super) fn check_arguments(
    call: ToolOperation,
    args: &McpArguments,
) -> Result<(), ArgumentError> {
    check_object(argument_fields(call), &args.0, "")?;
    match (call, args.text("outcome").as_str()) {
        (ToolOperation::Complete, "failed") => {
            check_text(&args.text("summary"), limits::MESSAGE, "summary")?;
            check_text(&args.text("result"), limits::MESSAGE, "result")
        }
        (ToolOperation::Complete, "canceled") => {
            check_text(&args.text("summary"), limits::REASON, "summary")
        }
        _other => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::ShortName;
    use baton_proto::v1::{MissingPolicy, TaskState};
    use baton_proto::verbs::agent_tools;

    use super::*;

    #[test]
    fn only_verbs_that_need_a_reason_require_the_argument() {
        for (verb, tool) in agent_tools() {
            let fields = argument_fields(tool.operation);
            assert!(!fields.is_empty(), "{}", tool.name);
            let required = fields
                .iter()
                .any(|field| field.name == "reason" && field.required);
            assert_eq!(required, verb.needs_reason, "{}", tool.name);
        }
    }

    #[test]
    fn states_and_policies_are_those_of_the_protocol() {
        for name in STATES {
            assert!(TaskState::from_short_name(name).is_ok(), "{name}");
        }
        assert_eq!(STATES.len(), <TaskState as ShortName>::NAMES.len() - 1);
        for name in POLICIES {
            assert!(MissingPolicy::from_short_name(name).is_ok(), "{name}");
        }
    }
}
