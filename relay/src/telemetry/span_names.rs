//! All names that the relay uses in spans. They are an interface: dashboards and alerts depend
//! on them.
//!
//! Baton's own names begin with `baton.`. The GenAI names are constants here, because their
//! conventions are still in development and the crates that define them change with every
//! release.

pub(super) const SCOPE: &str = "baton";
pub(super) const SERVICE: &str = "baton-relay";

pub(super) const TASK_SPAN: &str = "baton.task";
pub(super) const ATTEMPT_SPAN: &str = "baton.attempt";
pub(super) const INPUT_SPAN: &str = "baton.input";

pub(super) const TASK_ID: &str = "baton.task.id";
pub(super) const TASK_ATTEMPTS: &str = "baton.task.attempts";
pub(super) const TENANT: &str = "baton.tenant";
pub(super) const AGENT: &str = "baton.agent";
pub(super) const TURN_KIND: &str = "baton.turn_kind";
pub(super) const CONVERSATION_ID: &str = "baton.conversation.id";
pub(super) const STATE: &str = "baton.state";
pub(super) const RETRY_STOP: &str = "baton.retry_stop";
pub(super) const ATTEMPT_ID: &str = "baton.attempt.id";
pub(super) const ATTEMPT_NUMBER: &str = "baton.attempt.number";
pub(super) const DAEMON_ID: &str = "baton.daemon.id";
pub(super) const AGENT_HOLDER: &str = "baton.agent_holder";
pub(super) const DAEMON_NAME: &str = "baton.daemon.name";
pub(super) const FAILURE_CODE: &str = "baton.failure_code";
pub(super) const RETRYABLE: &str = "baton.retryable";
pub(super) const RETRY_SAFE: &str = "baton.retry_safe";
pub(super) const ENDED_BY: &str = "baton.ended_by";
pub(super) const RECEIPT: &str = "baton.receipt";
pub(super) const CAUSE_PHASE: &str = "baton.cause_phase";
pub(super) const KILLED_AFTER_RESULT: &str = "baton.killed_after_result";
pub(super) const ADOPTED_LATE: &str = "baton.adopted_late";
pub(super) const LEASE_TTL_MS: &str = "baton.lease.ttl_ms";
pub(super) const LEASE_RENEWALS: &str = "baton.lease.renewals";
pub(super) const OUTPUT_BYTES: &str = "baton.output.bytes";
pub(super) const COST_USD: &str = "baton.usage.cost_usd";
pub(super) const EXIT_SIGNAL: &str = "baton.exit.signal";
pub(super) const STAGE: &str = "baton.stage";
pub(super) const INPUT_ID: &str = "baton.input.id";
pub(super) const INPUT_KIND: &str = "baton.input.kind";
pub(super) const DEADLINE: &str = "baton.deadline";
pub(super) const REJECT_CODE: &str = "baton.reject_code";
pub(super) const ATTENTION_CAUSE: &str = "baton.attention.cause";
pub(super) const CHECKPOINT_ID: &str = "baton.checkpoint.id";
pub(super) const OPERATION: &str = "baton.operation";
pub(super) const RETRY_AFTER_MS: &str = "baton.retry.after_ms";

pub(super) const ERROR_TYPE: &str = "error.type";
pub(super) const PROCESS_EXIT_CODE: &str = "process.exit.code";

pub(super) const GEN_AI_OPERATION: &str = "gen_ai.operation.name";
pub(super) const INVOKE_AGENT: &str = "invoke_agent";
pub(super) const EXECUTE_TOOL: &str = "execute_tool";
pub(super) const GEN_AI_AGENT_NAME: &str = "gen_ai.agent.name";
pub(super) const GEN_AI_REQUEST_MODEL: &str = "gen_ai.request.model";
pub(super) const GEN_AI_CONVERSATION_ID: &str = "gen_ai.conversation.id";
pub(super) const GEN_AI_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub(super) const GEN_AI_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub(super) const GEN_AI_CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub(super) const GEN_AI_CACHE_WRITE_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
pub(super) const GEN_AI_TOOL_NAME: &str = "gen_ai.tool.name";
pub(super) const GEN_AI_TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
