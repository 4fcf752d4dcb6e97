//! Builds the spans of one task from its stored record and nothing else.
//!
//! The functions use no clock and no new ids. The same record gives the same spans, so backends
//! recognize a span that is sent again after a restart as a duplicate. Free text (prompt,
//! output, messages), labels and environment of a client are never part of a span.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_core::ids::AttemptId;
use baton_core::record::{
    AttemptEnd, AttemptRecord, EndState, LeaseHolder, ProcessExitStatus, TaskRecord, TaskState,
    TokenUsage,
};
use baton_core::task::spec::{TaskSpec, TurnKind};
use baton_core::time::WallTime;
use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::{attempt_stages, span_events, span_names};

/// The trace of one task.
pub(super) struct TaskTrace<'a> {
    pub(super) spec: &'a TaskSpec,
    pub(super) record: &'a TaskRecord,
    pub(super) scope: &'a InstrumentationScope,
}

/// The part of a span that differs from the other spans of its trace.
pub(super) struct SpanShape {
    pub(super) name: std::borrow::Cow<'static, str>,
    pub(super) kind: SpanKind,
    pub(super) id: [u8; 8],
    /// `None` only for a task whose caller sent no trace.
    pub(super) parent: Option<[u8; 8]>,
    pub(super) from: WallTime,
    pub(super) to: WallTime,
}

impl TaskTrace<'_> {
    /// The root span: from submit to the end, under the caller's span if there is one.
    pub(super) fn task(&self) -> SpanData {
        let record = self.record;
        let mut span = self.span(SpanShape {
            name: span_names::TASK_SPAN.into(),
            kind: SpanKind::Server,
            id: record.trace.root_span,
            parent: record.trace.parent_span,
            from: record.created,
            to: record.ended.unwrap_or(record.updated),
        });
        span.parent_span_is_remote = record.trace.parent_span.is_some();
        span.attributes = self.task_attributes();
        span.events.events = span_events::task_events(record);
        if is_failure(record.state) {
            let code = self.failure_code();
            span.attributes.extend(failure_attributes(code));
            span.status = Status::error(code.unwrap_or(record.state.as_str()).to_owned());
        }
        span
    }

    /// Appends the spans of an ended attempt, with its stages, tool calls and waits. Appends
    /// nothing if it has not ended.
    pub(super) fn attempt(&self, id: AttemptId, spans: &mut Vec<SpanData>) {
        let attempt = self.record.attempt(id);
        let Some((attempt, end)) =
            attempt.and_then(|found| found.state.end().map(|end| (found, end)))
        else {
            return;
        };
        spans.push(self.attempt_span(attempt, end));
        attempt_stages::append_parts(self, attempt, end, spans);
    }

    fn attempt_span(&self, attempt: &AttemptRecord, end: &AttemptEnd) -> SpanData {
        let mut span = self.span(SpanShape {
            name: span_names::ATTEMPT_SPAN.into(),
            // An attempt is a call to another machine.
            kind: SpanKind::Client,
            id: attempt.span_id,
            parent: Some(self.record.trace.root_span),
            from: attempt.stage_times.queued.unwrap_or(self.record.created),
            to: end.at,
        });
        span.attributes = self.attempt_ids(attempt);
        span.attributes.extend(holder_attributes(attempt));
        span.attributes.extend(end_attributes(attempt, end));
        span.attributes.extend(self.gen_ai_attributes(attempt));
        span.events.events = span_events::attempt_events(self.record, attempt);
        span.links.links.extend(self.link_to_previous(attempt));
        span.status = span_status(end);
        span
    }

    /// Links an attempt to its predecessor. Both are siblings in the trace, so only the link
    /// shows the order.
    fn link_to_previous(&self, attempt: &AttemptRecord) -> Option<Link> {
        let previous = self.record.attempt(attempt.previous?)?;
        let context = self.context(previous.span_id);
        let attributes = vec![text_attribute(span_names::ATTEMPT_ID, previous.id)];
        Some(Link::new(context, attributes, 0))
    }

    pub(super) fn span(&self, shape: SpanShape) -> SpanData {
        SpanData {
            span_context: self.context(shape.id),
            parent_span_id: shape.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
            parent_span_is_remote: false,
            span_kind: shape.kind,
            name: shape.name,
            start_time: system_time(shape.from),
            // The wall clock may have been set back, and backends refuse a negative duration.
            end_time: system_time(shape.to.max(shape.from)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn context(&self, span: [u8; 8]) -> SpanContext {
        SpanContext::new(
            TraceId::from_bytes(self.record.trace.trace_id),
            SpanId::from_bytes(span),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        )
    }

    fn task_attributes(&self) -> Vec<KeyValue> {
        let record = self.record;
        let mut attributes = vec![
            text_attribute(span_names::TASK_ID, record.task),
            text_attribute(span_names::TENANT, &record.tenant),
            KeyValue::new(span_names::AGENT, self.spec.agent.clone()),
            KeyValue::new(span_names::TURN_KIND, turn_kind(self.spec.turn_kind)),
            KeyValue::new(span_names::STATE, record.state.as_str()),
            number_attribute(
                span_names::TASK_ATTEMPTS,
                record
                    .newest_attempt()
                    .map_or(0, |newest| u64::from(newest.number)),
            ),
        ];
        attributes.extend(optional_attribute(
            span_names::CONVERSATION_ID,
            self.spec.conversation_id.clone(),
        ));
        attributes.extend(optional_attribute(
            span_names::RETRY_STOP,
            record.retry_stop_reason.clone(),
        ));
        attributes
    }

    /// Ids on every span below the root, so that each span can be found on its own.
    pub(super) fn attempt_ids(&self, attempt: &AttemptRecord) -> Vec<KeyValue> {
        vec![
            text_attribute(span_names::TASK_ID, self.record.task),
            text_attribute(span_names::ATTEMPT_ID, attempt.id),
            number_attribute(span_names::ATTEMPT_NUMBER, u64::from(attempt.number)),
            text_attribute(span_names::TENANT, &self.record.tenant),
        ]
    }

    fn gen_ai_attributes(&self, attempt: &AttemptRecord) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new(span_names::GEN_AI_OPERATION, span_names::INVOKE_AGENT),
            KeyValue::new(span_names::GEN_AI_AGENT_NAME, self.spec.agent.clone()),
        ];
        attributes.extend(optional_attribute(
            span_names::GEN_AI_REQUEST_MODEL,
            self.spec.options.model.clone(),
        ));
        attributes.extend(optional_attribute(
            span_names::GEN_AI_CONVERSATION_ID,
            attempt.agent_session_id.clone(),
        ));
        attributes.extend(usage_attributes(&attempt.usage));
        attributes
    }

    /// The failure code of the newest attempt, with which the task ended.
    fn failure_code(&self) -> Option<&str> {
        let end = self.record.newest_attempt()?.state.end()?;
        end.failure_code.as_ref().map(|code| code.as_str())
    }
}

fn holder_attributes(attempt: &AttemptRecord) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(5);
    match &attempt.holder {
        Some(LeaseHolder::Daemon(holder)) => {
            attributes.push(text_attribute(span_names::DAEMON_ID, holder.daemon));
            attributes.push(KeyValue::new(span_names::DAEMON_NAME, holder.name.clone()));
        }
        Some(LeaseHolder::Agent(holder)) => {
            attributes.push(KeyValue::new(span_names::AGENT_HOLDER, holder.name.clone()));
        }
        None => {}
    }
    if let Some(lease) = &attempt.lease {
        attributes.push(number_attribute(span_names::LEASE_TTL_MS, lease.ttl_ms));
        attributes.push(number_attribute(span_names::LEASE_RENEWALS, lease.renewals));
    }
    attributes.push(number_attribute(
        span_names::OUTPUT_BYTES,
        attempt.output_end,
    ));
    attributes
}

fn end_attributes(attempt: &AttemptRecord, end: &AttemptEnd) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new(span_names::STATE, end.state.kind().as_str()),
        KeyValue::new(span_names::ENDED_BY, end.ended_by.as_str()),
        KeyValue::new(span_names::RECEIPT, end.receipt.as_str()),
        KeyValue::new(span_names::RETRYABLE, end.retryable),
        KeyValue::new(span_names::RETRY_SAFE, attempt.retry_safe),
    ];
    let code = end.failure_code.as_ref().map(|code| code.as_str());
    if is_attempt_failure(end.state) {
        attributes.extend(failure_attributes(code));
    } else {
        attributes.extend(optional_attribute(
            span_names::FAILURE_CODE,
            code.map(str::to_owned),
        ));
    }
    attributes.extend(optional_attribute(
        span_names::CAUSE_PHASE,
        end.cause_phase.map(|phase| phase.as_str()),
    ));
    attributes.extend(end.exit.map(|exit| match exit {
        ProcessExitStatus::Code(code) => {
            KeyValue::new(span_names::PROCESS_EXIT_CODE, i64::from(code))
        }
        ProcessExitStatus::Signal(signal) => {
            KeyValue::new(span_names::EXIT_SIGNAL, i64::from(signal))
        }
    }));
    let flag = |name, set: bool| set.then(|| KeyValue::new(name, true));
    attributes.extend(flag(
        span_names::KILLED_AFTER_RESULT,
        end.killed_after_result,
    ));
    attributes.extend(flag(span_names::ADOPTED_LATE, end.is_adopted_late));
    attributes
}

/// Token usage and cost. An agent that does not report usage leaves zeros, so zeros are not
/// sent.
fn usage_attributes(usage: &TokenUsage) -> impl Iterator<Item = KeyValue> {
    let tokens = [
        (span_names::GEN_AI_INPUT_TOKENS, usage.input_tokens),
        (span_names::GEN_AI_OUTPUT_TOKENS, usage.output_tokens),
        (
            span_names::GEN_AI_CACHE_READ_TOKENS,
            usage.cache_read_tokens,
        ),
        (
            span_names::GEN_AI_CACHE_WRITE_TOKENS,
            usage.cache_write_tokens,
        ),
    ];
    let known = tokens.into_iter().filter(|(_, count)| *count > 0);
    let cost = optional_attribute(span_names::COST_USD, usage.cost_usd.clone());
    known
        .map(|(name, count)| number_attribute(name, count))
        .chain(cost)
}

pub(super) fn span_status(end: &AttemptEnd) -> Status {
    if !is_attempt_failure(end.state) {
        return Status::Unset;
    }
    let code = end.failure_code.as_ref().map(|code| code.as_str());
    Status::error(code.unwrap_or(end.state.kind().as_str()).to_owned())
}

/// Whether the end counts as an error. A cancel was requested, and a released attempt did
/// nothing, so neither is an error.
fn is_attempt_failure(state: EndState) -> bool {
    match state {
        EndState::Failed | EndState::TimedOut | EndState::Lost => true,
        EndState::Completed | EndState::Canceled | EndState::Released | EndState::HandedOff => {
            false
        }
    }
}

fn is_failure(state: TaskState) -> bool {
    match state {
        TaskState::Failed | TaskState::TimedOut | TaskState::Lost => true,
        TaskState::Pending
        | TaskState::Queued
        | TaskState::Running
        | TaskState::NeedsAttention
        | TaskState::Completed
        | TaskState::Canceled => false,
    }
}

fn failure_attributes(code: Option<&str>) -> impl Iterator<Item = KeyValue> {
    let named = [span_names::FAILURE_CODE, span_names::ERROR_TYPE];
    let code = code.map(str::to_owned);
    named
        .into_iter()
        .filter_map(move |name| optional_attribute(name, code.clone()))
}

fn turn_kind(kind: TurnKind) -> &'static str {
    match kind {
        TurnKind::User => "user",
        TurnKind::SessionTitle => "session_title",
        TurnKind::ContextStats => "context_stats",
        TurnKind::Compact => "compact",
        TurnKind::Control => "control",
    }
}

pub(super) fn text_attribute(name: &'static str, value: impl std::fmt::Display) -> KeyValue {
    KeyValue::new(name, value.to_string())
}

/// An integer attribute. OpenTelemetry integers are signed, so the value is capped.
pub(super) fn number_attribute(name: &'static str, value: u64) -> KeyValue {
    KeyValue::new(name, i64::try_from(value).unwrap_or(i64::MAX))
}

fn optional_attribute(name: &'static str, value: Option<impl Into<Value>>) -> Option<KeyValue> {
    value.map(|value| KeyValue::new(name, value))
}

pub(super) fn system_time(wall: WallTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(wall.0)
}
