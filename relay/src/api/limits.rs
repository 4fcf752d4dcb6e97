//! Every limit on what a client may send, in one place. The protos state the same numbers.
//!
//! A request over a limit is refused whole: nothing is cut to fit.

use std::fmt;
use std::ops::RangeInclusive;

use baton_core::goal;

/// How much text a field takes: bytes of UTF-8 where machines read it, characters where people do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Bytes(usize),
    Chars(usize),
}

impl Size {
    pub fn holds(self, text: &str) -> bool {
        match self {
            Size::Bytes(limit) => text.len() <= limit,
            // A character has at most four bytes, so most texts need no counting.
            Size::Chars(limit) => text.len() <= limit || text.chars().count() <= limit,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::Bytes(limit) => write!(f, "{limit} bytes"),
            Size::Chars(limit) => write!(f, "{limit} characters"),
        }
    }
}

/// What tonic decodes and encodes at most. Daemons have the same limit.
pub use baton_proto::WIRE_BYTES;
pub const HEADER_LIST_BYTES: u32 = 16 * 1024;

pub const PROMPT: Size = Size::Bytes(1024 * 1024);
pub const GOAL: Size = Size::Chars(4096);
pub const INSTRUCTIONS: Size = Size::Bytes(256 * 1024);
/// Agent names, models, efforts, permission modes, daemon names.
pub const NAME: Size = Size::Bytes(256);
pub const PROFILE_NAME: Size = Size::Bytes(64);
pub const TOKEN_NAME: Size = Size::Chars(128);
/// conversation_id, channel_id.
pub const HANDLE: Size = Size::Bytes(256);
pub const REASON: Size = Size::Chars(2048);
/// What a holder says of a failure.
pub const MESSAGE: Size = Size::Chars(4096);
pub const FAILURE_CODE: Size = Size::Bytes(baton_proto::codes::CODE_BYTES);
pub const IDEMPOTENCY_KEY: Size = Size::Bytes(256);
pub const PATH: Size = Size::Bytes(4096);
pub const ARTIFACT_PATH: Size = Size::Bytes(baton_contract::PATH_BYTES_MAX);
pub const CRITERION: Size = Size::Chars(1024);
/// A label of a question's option.
pub const OPTION_LABEL: Size = Size::Chars(256);
pub const ANSWER: Size = Size::Chars(8192);
pub const SUMMARY: Size = Size::Chars(goal::SUMMARY_CHARS);
pub const CURSOR: Size = Size::Chars(goal::CURSOR_CHARS);
/// A completed or failed item.
pub const ITEM: Size = Size::Chars(goal::ITEM_CHARS);
pub const ITEM_REASON: Size = Size::Chars(goal::REASON_CHARS);
pub const EVIDENCE_KIND: Size = Size::Bytes(goal::EVIDENCE_KIND_CHARS);
pub const EVIDENCE_REF: Size = Size::Chars(goal::EVIDENCE_REF_CHARS);
pub const EVIDENCE_SUMMARY: Size = Size::Chars(goal::EVIDENCE_CHARS);
/// What a person tells the next attempt.
pub const RESUME_INSTRUCTIONS: Size = Size::Bytes(64 * 1024);
pub const PAGE_TOKEN: Size = Size::Bytes(512);

pub const ARGV_ITEMS: usize = 1024;
/// Bytes of all arguments together.
pub const ARGV: usize = 256 * 1024;
pub const ENV_ITEMS: usize = 64;
/// Bytes of all variables together.
pub const ENV: usize = 64 * 1024;
pub const CONTEXT_REFS: usize = 256;
pub const LABELS: usize = 64;
pub const LABEL_KEY: usize = 63;
pub const LABEL_VALUE: usize = 256;
pub const CAPABILITIES: usize = 64;
pub const SUCCESS_CRITERIA: usize = 50;
pub const ARTIFACTS: usize = baton_contract::PATHS_MAX;
/// Rules of one task, and the two halves of each.
pub const PERMISSION_RULES: usize = 256;
pub const RULE_TOOL: Size = Size::Bytes(256);
pub const RULE_PATTERN: Size = Size::Bytes(1024);
pub const ANSWER_LABELS: usize = 64;
/// Items of one update; as many as a task keeps.
pub const ITEMS: usize = goal::ITEMS;
pub const EVIDENCE: usize = goal::EVIDENCE;
pub const STATE_REFS: usize = goal::STATE_REFS;
pub const RESUME_ANSWERS: usize = 64;
/// Bytes of all questions and answers of one resume together.
pub const RESUME_ANSWERS_BYTES: usize = 32 * 1024;
pub const SUBMIT_MANY: usize = 500;
pub const BULK_FORCE: usize = 50;
pub const FILTER_STATES: usize = 32;
pub const PROFILES: usize = 1000;

pub const PAGE_DEFAULT: u32 = 50;
pub const PAGE_MAX: u32 = 200;
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
