//! Every limit on what a client may send. The protos state the same numbers. Limits that clients
//! use too are in `baton_validation::limits`.
//!
//! A request over a limit is refused as a whole; no value is truncated.

use std::ops::RangeInclusive;

pub use baton_validation::limits::{
    CURSOR, EVIDENCE_KIND, EVIDENCE_REF, EVIDENCE_SUMMARY, EXTERNAL_ID, GOAL, IDEMPOTENCY_KEY,
    ITEM, ITEM_REASON, MAX_EVIDENCE, MAX_FILTER_STATES, MAX_ITEMS, MAX_LABELS, MAX_STATE_REFS,
    MAX_SUCCESS_CRITERIA, MESSAGE, NAME, PAGE_MAX, PAGE_TOKEN, PROMPT, REASON, STATE_REF,
    SUCCESS_CRITERION, SUMMARY, TextLimit,
};

/// The largest message that tonic decodes or encodes. Daemons have the same limit.
pub use baton_proto::MAX_WIRE_BYTES;
pub const HEADER_LIST_BYTES: u32 = 16 * 1024;

pub const INSTRUCTIONS: TextLimit = TextLimit::Bytes(256 * 1024);
pub const PROFILE_NAME: TextLimit = TextLimit::Bytes(64);
pub const TOKEN_NAME: TextLimit = TextLimit::Chars(128);
pub const FAILURE_CODE: TextLimit = TextLimit::Bytes(baton_proto::codes::MAX_CODE_BYTES);
pub const PATH: TextLimit = TextLimit::Bytes(4096);
pub const ARTIFACT_PATH: TextLimit = TextLimit::Bytes(baton_validation::PATH_BYTES_MAX);
/// The label of a question's option.
pub const OPTION_LABEL: TextLimit = TextLimit::Chars(256);
pub const ANSWER: TextLimit = TextLimit::Chars(8192);
/// Instructions of a person for the next attempt.
pub const RESUME_INSTRUCTIONS: TextLimit = TextLimit::Bytes(64 * 1024);

pub const ARGV_ITEMS: usize = 1024;
/// Bytes of all arguments together.
pub const ARGV_BYTES: usize = 256 * 1024;
pub const ENV_ITEMS: usize = 64;
/// Bytes of all variables together.
pub const ENV_BYTES: usize = 64 * 1024;
pub const CONTEXT_REFS: usize = 256;
pub const CAPABILITIES: usize = 64;
pub const ARTIFACTS: usize = baton_validation::PATHS_MAX;
/// Permission rules of one task; the size of their two parts follows.
pub const PERMISSION_RULES: usize = 256;
pub const RULE_TOOL: TextLimit = TextLimit::Bytes(256);
pub const RULE_PATTERN: TextLimit = TextLimit::Bytes(1024);
pub const ANSWER_LABELS: usize = 64;
pub const RESUME_ANSWERS: usize = 64;
/// Bytes of all questions and answers of one resume together.
pub const RESUME_ANSWERS_BYTES: usize = 32 * 1024;
pub const SUBMIT_MANY_ROWS: usize = 500;
pub const BULK_FORCE_ROWS: usize = 50;
pub const PROFILES: usize = 1000;

pub const PAGE_DEFAULT: u32 = 50;
/// Default page size of the list of parked tasks.
pub const BLOCKED_PAGE_DEFAULT: u32 = 10;
/// Bytes of the rows of one page. The first row is sent even if it is larger.
pub const PAGE_BYTES: usize = 1024 * 1024;
/// Records that one List call reads before it returns a short page: a filter must not read the
/// whole store.
pub const LIST_SCAN_RECORDS: usize = 2000;
/// Largest piece of output in one message.
pub const OUTPUT_PIECE_BYTES: usize = 64 * 1024;

pub const PRIORITY: RangeInclusive<u64> = 0..=100;
/// For max_attempts and max_losses.
pub const ATTEMPTS_RANGE: RangeInclusive<u64> = 1..=10;
pub const BACKOFF_MS: RangeInclusive<u64> = 0..=86_400_000;
pub const TOKEN_TTL_MS: RangeInclusive<u64> = 1_000..=315_360_000_000;

/// Default values. Those of deadlines and leases are in the core's `deadline_profile.rs`.
pub const DEFAULT_PRIORITY: u8 = 50;
pub const DEFAULT_MAX_ATTEMPTS: u32 = 3;
pub const DEFAULT_BACKOFF_INITIAL_MS: u64 = 1_000;
pub const DEFAULT_BACKOFF_MAX_MS: u64 = 60_000;
/// Growth and random share of the retry backoff. Tasks cannot change them yet.
pub const BACKOFF_FACTOR: f64 = 2.0;
pub const BACKOFF_JITTER: f64 = 0.2;
