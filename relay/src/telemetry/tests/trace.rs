//! Tests of the spans that are built from a record.

use std::collections::HashSet;

use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId};
use opentelemetry::{InstrumentationScope, Value};
use opentelemetry_sdk::trace::SpanData;

use super::super::due_spans::DueSpans;
use super::*;

fn build(record: &Arc<TaskRecord>, events: &[Arc<TimelineEvent>], began: u64) -> Vec<SpanData> {
    let scope = InstrumentationScope::builder("test").build();
    let mut spans = Vec::new();
    if let Some(due) = DueSpans::from_record(&spec(), record, events, WallTime(began)) {
        due.build_spans(&scope, &mut spans);
    }
    spans
}

fn all_spans() -> Vec<SpanData> {
    let record = Arc::new(record());
    build(&record, &record.timeline.events, 0)
}

fn span_named<'a>(spans: &'a [SpanData], name: &str, parent: [u8; 8]) -> &'a SpanData {
    let parent = SpanId::from_bytes(parent);
    let mut found = spans
        .iter()
        .filter(|span| span.name == name && span.parent_span_id == parent);
    let span = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(found.next().is_none(), "two spans named {name}");
    span
}

fn attribute(span: &SpanData, name: &str) -> Option<Value> {
    let found = span
        .attributes
        .iter()
        .find(|pair| pair.key.as_str() == name);
    found.map(|pair| pair.value.clone())
}

fn span_ms(span: &SpanData) -> (u64, u64) {
    let since = |time: std::time::SystemTime| {
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::try_from(since.as_millis()).unwrap()
    };
    (since(span.start_time), since(span.end_time))
}

fn children_with_times(spans: &[SpanData], parent: [u8; 8]) -> Vec<(String, u64, u64)> {
    let parent = SpanId::from_bytes(parent);
    let children = spans.iter().filter(|span| span.parent_span_id == parent);
    children
        .map(|span| (span.name.to_string(), span_ms(span).0, span_ms(span).1))
        .collect()
}

fn expected(stages: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    stages
        .iter()
        .map(|(name, from, to)| ((*name).to_owned(), *from, *to))
        .collect()
}

#[test]
fn attempts_are_siblings_and_the_second_links_to_the_first() {
    let spans = all_spans();
    let trace = TraceId::from_bytes([0xab; 16]);
    assert!(
        spans
            .iter()
            .all(|span| span.span_context.trace_id() == trace)
    );
    let ids: HashSet<SpanId> = spans
        .iter()
        .map(|span| span.span_context.span_id())
        .collect();
    assert_eq!(ids.len(), spans.len(), "span ids are unique");

    let root = span_named(&spans, "baton.task", CALLER);
    assert!(root.parent_span_is_remote);
    assert_eq!(root.span_context.span_id(), SpanId::from_bytes(ROOT));
    assert_eq!(span_ms(root), (1_000, 9_900));
    assert_eq!(root.status, Status::Unset);
    assert_eq!(attribute(root, "baton.state"), Some("completed".into()));
    assert_eq!(root.events[0].name, "baton.retry_scheduled");

    let attempts: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "baton.attempt")
        .collect();
    let [first, second] = attempts[..] else {
        panic!("{} attempts", attempts.len());
    };
    for (attempt, number) in [(first, 1), (second, 2)] {
        assert_eq!(attempt.parent_span_id, SpanId::from_bytes(ROOT));
        assert_eq!(
            attempt.span_context.span_id(),
            SpanId::from_bytes([number; 8])
        );
        assert_eq!(attempt.span_kind, SpanKind::Client);
        assert_eq!(
            attribute(attempt, "baton.attempt.number"),
            Some(i64::from(number).into())
        );
        assert_eq!(
            attribute(attempt, "gen_ai.agent.name"),
            Some("claude".into())
        );
    }
    assert_eq!(
        (span_ms(first), span_ms(second)),
        ((1_000, 7_170), (8_000, 9_900))
    );
    assert!(first.links.is_empty());
    assert_eq!(second.links[0].span_context, first.span_context);

    assert_eq!(first.status, Status::error("no_first_event_timeout"));
    assert_eq!(
        attribute(first, "error.type"),
        Some("no_first_event_timeout".into())
    );
    assert_eq!(first.events[0].name, "baton.deadline_expired");
    assert_eq!(first.events[0].attributes[0].value, "first_event".into());
    assert_eq!(second.status, Status::Unset);
    assert_eq!(
        attribute(second, "gen_ai.usage.output_tokens"),
        Some(22.into())
    );
    assert_eq!(
        attribute(second, "gen_ai.usage.cache_read.input_tokens"),
        None
    );
}

#[test]
fn stages_have_no_gaps_and_the_stuck_stage_has_the_error() {
    let spans = all_spans();
    let first = [
        ("baton.queue", 1_000, 1_100),
        ("baton.accept", 1_100, 1_110),
        ("baton.process_start", 1_110, 1_150),
        ("baton.prompt_write", 1_150, 1_160),
        ("baton.first_event", 1_160, 5_160),
        ("baton.cleanup", 5_160, 7_160),
    ];
    assert_eq!(children_with_times(&spans, [1; 8]), expected(&first));
    let stuck = span_named(&spans, "baton.first_event", [1; 8]);
    assert_eq!(stuck.status, Status::error("no_first_event_timeout"));
    assert_eq!(
        span_named(&spans, "baton.cleanup", [1; 8]).status,
        Status::Unset
    );

    let second = [
        ("baton.queue", 8_000, 8_001),
        ("baton.accept", 8_001, 8_002),
        ("baton.process_start", 8_002, 8_010),
        ("baton.prompt_write", 8_010, 8_020),
        ("baton.first_event", 8_020, 8_500),
        ("baton.stream", 8_500, 9_900),
        ("execute_tool bash", 8_600, 8_900),
        ("execute_tool bash", 8_700, 9_900),
        ("baton.input", 9_000, 9_400),
    ];
    assert_eq!(children_with_times(&spans, [2; 8]), expected(&second));
    let wait = span_named(&spans, "baton.input", [2; 8]);
    assert_eq!(
        attribute(wait, "baton.input.kind"),
        Some("permission".into())
    );
}

#[test]
fn skipped_stages_and_a_clock_set_back_give_no_negative_span() {
    let mut record = record();
    let times = &mut record.attempts[1].stage_times;
    times.agent_started = None;
    times.prompt_written = None;
    times.accepted = Some(WallTime(8_900));
    let record = Arc::new(record);
    let spans = build(&record, &record.timeline.events, 0);
    let start = span_named(&spans, "baton.process_start", [2; 8]);
    assert_eq!(span_ms(start), (8_900, 8_900));
    assert!(spans.iter().all(|span| span.end_time >= span.start_time));
}

#[test]
fn spans_contain_no_text_of_people_or_agents() {
    let text = format!("{:?}", all_spans());
    assert!(text.contains("claude"));
    assert!(!text.contains(PRIVATE), "{text}");
}

#[test]
fn a_span_is_sent_again_only_if_a_restart_may_have_lost_it() {
    let names = |spans: &[SpanData]| {
        let mut names: Vec<String> = spans.iter().map(|span| span.name.to_string()).collect();
        names.retain(|name| name == "baton.task" || name == "baton.attempt");
        names
    };
    let (early, new) = after_first();
    let early = Arc::new(early);
    assert_eq!(
        names(&build(&early, &early.timeline.events[..2], 0)),
        [""; 0]
    );
    let first = build(&early, &new, 0);
    assert_eq!(names(&first), ["baton.attempt"]);

    let late = Arc::new(record());
    let new = &late.timeline.events[12..];
    assert_eq!(
        names(&build(&late, new, 0)),
        ["baton.attempt", "baton.task"]
    );
    let after_restart = build(&late, new, 7_500);
    assert_eq!(
        names(&after_restart),
        ["baton.attempt", "baton.attempt", "baton.task"]
    );
    let again = after_restart
        .iter()
        .filter(|span| first.contains(span))
        .count();
    assert_eq!(again, first.len(), "a span that is sent again is identical");

    let mut unsampled = record();
    unsampled.trace.sampled = false;
    assert_eq!(build(&Arc::new(unsampled), new, 0), []);
}

#[test]
fn only_an_adopted_late_result_counts_as_a_second_end() {
    let after_the_end = |kind: TimelineEventKind| {
        let mut record = record();
        let last = record.timeline.events.last().unwrap();
        let event = Arc::new(TimelineEvent {
            revision: last.revision + 1,
            kind,
            ..(**last).clone()
        });
        record.timeline.push(event.clone());
        build(&Arc::new(record), &[event], 0).len()
    };
    assert_eq!(after_the_end(TimelineEventKind::ReceiptArrived), 0);
    assert_eq!(after_the_end(TimelineEventKind::LateTerminal), 0);
    assert_eq!(after_the_end(TimelineEventKind::AdoptedLate), 1 + 9 + 1);
}
