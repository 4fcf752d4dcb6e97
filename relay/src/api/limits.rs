//! Every limit on what a client may send, in one place. The protos state the same numbers. Those that clients are shown
//! before they ask stand in `baton_contract::bounds`.
//!
//! A request over a limit is refused whole: nothing is cut to fit.

use std::ops::RangeInclusive;

pub use baton_contract::bounds::{
    CRITERION, CURSOR, EVIDENCE, EVIDENCE_KIND, EVIDENCE_REF, EVIDENCE_SUMMARY, FILTER_STATES,
    GOAL, HANDLE, IDEMPOTENCY_KEY, ITEM, ITEM_REASON, ITEMS, LABELS, MESSAGE, NAME, PAGE_MAX,
    PAGE_TOKEN, PROMPT, REASON, STATE_REF, STATE_REFS, SUCCESS_CRITERIA, SUMMARY, Size,
};

/// What tonic decodes and encodes at most. Daemons have the same limit.
pub use baton_proto::WIRE_BYTES;
pub const HEADER_LIST_BYTES: u32 = 16 * 1024;

pub const INSTRUCTIONS: Size = Size::Bytes(256 * 1024);
pub const PROFILE_NAME: Size = Size::Bytes(64);
pub const TOKEN_NAME: Size = Size::Chars(128);
pub const FAILURE_CODE: Size = Size::Bytes(baton_proto::codes::CODE_BYTES);
pub const PATH: Size = Size::Bytes(4096);
pub const ARTIFACT_PATH: Size = Size::Bytes(baton_contract::PATH_BYTES_MAX);
/// A label of a question's option.
pub const OPTION_LABEL: Size = Size::Chars(256);
pub const ANSWER: Size = Size::Chars(8192);
/// What a person tells the next attempt.
pub const RESUME_INSTRUCTIONS: Size = Size::Bytes(64 * 1024);

pub const ARGV_ITEMS: usize = 1024;
/// Bytes of all arguments together.
pub const ARGV: usize = 256 * 1024;
pub const ENV_ITEMS: usize = 64;
/// Bytes of all variables together.
pub const ENV: usize = 64 * 1024;
pub const CONTEXT_REFS: usize = 256;
pub const CAPABILITIES: usize = 64;
pub const ARTIFACTS: usize = baton_contract::PATHS_MAX;
/// Rules of one task, and the two halves of each.
pub const PERMISSION_RULES: usize = 256;
pub const RULE_TOOL: Size = Size::Bytes(256);
pub const RULE_PATTERN: Size = Size::Bytes(1024);
pub const ANSWER_LABELS: usize = 64;
pub const RESUME_ANSWERS: usize = 64;
/// Bytes of all questions and answers of one resume together.
pub const RESUME_ANSWERS_BYTES: usize = 32 * 1024;
pub const SUBMIT_MANY: usize = 500;
pub const BULK_FORCE: usize = 50;
pub const PROFILES: usize = 1000;

pub const PAGE_DEFAULT: u32 = 50;
/// Rows of a page of parked tasks where nothing is said.
pub const BLOCKED_PAGE_DEFAULT: u32 = 10;
/// Bytes of the rows of one page; the first row is always sent.
pub const PAGE_BYTES: usize = 1024 * 1024;
/// Records that one List call looks at before it gives a short page: a filter must not read the whole store.
pub const LIST_SCAN: usize = 2000;
/// One piece of read output on the wire.
pub const OUTPUT_PIECE: usize = 64 * 1024;

pub const PRIORITY: RangeInclusive<u64> = 0..=100;
/// max_attempts and max_losses.
pub const TRIES: RangeInclusive<u64> = 1..=10;
pub const BACKOFF_MS: RangeInclusive<u64> = 0..=86_400_000;
pub const TOKEN_TTL_MS: RangeInclusive<u64> = 1_000..=315_360_000_000;

/// Where nothing else is said. Deadlines and leases have theirs in the core's `profile.rs`.
pub const DEFAULT_PRIORITY: u8 = 50;
pub const DEFAULT_TRIES: u32 = 3;
pub const DEFAULT_BACKOFF_INITIAL_MS: u64 = 1_000;
pub const DEFAULT_BACKOFF_MAX_MS: u64 = 60_000;
/// How backoff grows and how much of it is random; not yet a task's to choose.
pub const BACKOFF_FACTOR: f64 = 2.0;
pub const BACKOFF_JITTER: f64 = 0.2;
