//! One trace per task, as an OTLP collector receives it.

use std::collections::BTreeMap;

use baton_proto::v1::{
    LifecyclePhase, RetryPolicy, Role, SubmitRequest, Task, TaskSpec, TaskState,
};
use baton_tests::{
    EmbeddedRelay, RelayProcess, ScriptedDaemon, TestClient, TraceCollector, agent_task,
    attribute_text, command_task, hello,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use crate::BATON;

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER_SPAN_ID: &str = "00f067aa0ba902b7";

/// Submits a task within the caller's span.
async fn submit_in_trace(client: &TestClient, spec: TaskSpec) -> Task {
    let request = SubmitRequest {
        spec: Some(spec),
        traceparent: format!("00-{TRACE_ID}-{CALLER_SPAN_ID}-01"),
        ..SubmitRequest::default()
    };
    let accepted = client.try_submit(request).await;
    let task = accepted.expect("Submit is accepted").task;
    task.expect("an accepted task is in the answer")
}

fn immediate_retry_policy() -> Option<RetryPolicy> {
    Some(RetryPolicy {
        backoff_initial_ms: Some(10),
        ..RetryPolicy::default()
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn only_span<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found
        .next()
        .unwrap_or_else(|| panic!("{name} in {spans:#?}"));
    assert!(found.next().is_none(), "one {name}");
    span
}

/// The spans of both attempts, each with the names of its child spans.
fn attempt_spans(spans: &[Span]) -> [(&Span, Vec<&str>); 2] {
    let mut found: Vec<&Span> = spans
        .iter()
        .filter(|span| span.name == "baton.attempt")
        .collect();
    found.sort_by_key(|span| attribute_text(&span.attributes, "baton.attempt.number"));
    let with_parts = found.into_iter().map(|attempt| {
        let parts = spans
            .iter()
            .filter(|span| span.parent_span_id == attempt.span_id);
        let parts: Vec<&Span> = parts.collect();
        for part in &parts {
            let inside = part.start_time_unix_nano >= attempt.start_time_unix_nano
                && part.start_time_unix_nano <= part.end_time_unix_nano
                && part.end_time_unix_nano <= attempt.end_time_unix_nano;
            assert!(inside, "{part:#?} is not inside {attempt:#?}");
        }
        let names = parts.into_iter().map(|part| part.name.as_str()).collect();
        (attempt, names)
    });
    let found: Vec<_> = with_parts.collect();
    found
        .try_into()
        .unwrap_or_else(|found| panic!("two attempts: {found:#?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_one_trace_for_a_task_of_two_attempts() {
    let mut collector = TraceCollector::start().await;
    let url = collector.url().to_owned();
    let relay = EmbeddedRelay::start_with(|config| config.otlp_endpoint = Some(url)).await;
    let daemon = relay.start_daemon().await;
    let dir = tempfile::tempdir().unwrap();
    let traceparents = dir.path().join("parents");
    // Fails in the first attempt without output, so that it is retried.
    let script = "echo $TRACEPARENT >> $0; test $(wc -l < $0) = 2";
    let file = traceparents.display().to_string();
    let spec = TaskSpec {
        retry: immediate_retry_policy(),
        ..command_task("sh", &["-c", script, &file], "traced")
    };
    let task = submit_in_trace(relay.admin(), spec).await;

    let exported = collector.wait_for_span("baton.task").await;
    for (resource, span) in &exported {
        assert_eq!(
            attribute_text(&resource.attributes, "service.name"),
            "baton-relay"
        );
        assert_eq!(hex(&span.trace_id), TRACE_ID, "{span:#?}");
        assert_eq!(
            attribute_text(&span.attributes, "baton.task.id"),
            task.task_id
        );
    }
    let spans: Vec<Span> = exported.into_iter().map(|(_, span)| span).collect();
    let root = only_span(&spans, "baton.task");
    assert_eq!(hex(&root.parent_span_id), CALLER_SPAN_ID);
    assert_eq!(attribute_text(&root.attributes, "baton.state"), "completed");

    let [(first, first_parts), (second, second_parts)] = attempt_spans(&spans);
    let phases = [
        "baton.queue",
        "baton.accept",
        "baton.process_start",
        "baton.prompt_write",
        "baton.first_event",
    ];
    for (attempt, parts) in [(first, &first_parts), (second, &second_parts)] {
        assert_eq!(attempt.parent_span_id, root.span_id);
        assert_eq!(
            attribute_text(&attempt.attributes, "baton.daemon.id"),
            daemon.id()
        );
        for phase in phases {
            assert!(parts.contains(&phase), "{phase} in {parts:?}");
        }
    }
    assert_eq!(second.links[0].span_id, first.span_id);
    let status = first.status.as_ref().unwrap();
    assert_eq!(
        (status.code(), status.message.as_str()),
        (StatusCode::Error, "agent_exit")
    );
    assert_eq!(attribute_text(&first.attributes, "process.exit.code"), "1");

    let traceparents = std::fs::read_to_string(traceparents).unwrap();
    let traceparents: Vec<&str> = traceparents.lines().collect();
    let traceparent_of = |attempt: &Span| format!("00-{TRACE_ID}-{}-01", hex(&attempt.span_id));
    assert_eq!(
        traceparents,
        [traceparent_of(first), traceparent_of(second)],
        "each child gets its attempt's span as parent"
    );
    let shown = relay.admin().get(&task.task_id).await;
    let shown: Vec<&str> = shown
        .attempts
        .iter()
        .map(|attempt| &*attempt.traceparent)
        .collect();
    assert_eq!(shown, traceparents);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_loses_no_span_of_a_continuing_task() {
    let mut collector = TraceCollector::start().await;
    let mut relay = RelayProcess::start_with(BATON, &["--otlp", collector.url()]).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let link = client.with_token(&secret);
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["scripted"])).await;
    let spec = TaskSpec {
        retry: immediate_retry_policy(),
        ..agent_task("scripted")
    };
    let task = submit_in_trace(&client, spec).await;
    let mut first = daemon.start_next_attempt().await;
    first.fail("agent_exit").await;
    let mut second = daemon.start_next_attempt().await;
    second
        .send_tool_phase(LifecyclePhase::ToolStarted, "t1")
        .await;
    daemon.wait_until_acked(&second).await;

    relay.kill().await;
    relay.start_again().await;

    let _daemon = daemon.reconnect(&link, &mut [&mut second]).await;
    second
        .send_tool_phase(LifecyclePhase::ToolFinished, "t1")
        .await;
    second.complete("done").await;
    client
        .watch(&task.task_id)
        .await
        .wait_for_state(TaskState::Completed)
        .await;

    // The restarted relay sends some spans again. A span that arrives twice must be identical.
    let mut by_id: BTreeMap<Vec<u8>, Span> = BTreeMap::new();
    for (_, span) in collector.wait_for_span("baton.task").await {
        if let Some(before) = by_id.insert(span.span_id.clone(), span.clone()) {
            assert_eq!(before, span);
        }
    }
    let spans: Vec<Span> = by_id.into_values().collect();
    let [(one, one_parts), (two, two_parts)] = attempt_spans(&spans);
    assert_eq!(
        attribute_text(&one.attributes, "baton.attempt.id"),
        first.id()
    );
    assert_eq!(
        attribute_text(&two.attributes, "baton.attempt.id"),
        second.id()
    );
    assert_eq!(two.links[0].span_id, one.span_id);
    assert!(one_parts.contains(&"baton.queue"), "{one_parts:?}");
    assert!(two_parts.contains(&"execute_tool bash"), "{two_parts:?}");
    assert_eq!(
        hex(&only_span(&spans, "baton.task").parent_span_id),
        CALLER_SPAN_ID
    );
    assert_eq!(relay.terminate().await.code(), Some(0));
}
