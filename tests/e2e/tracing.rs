//! One trace per task, as an OTLP collector gets it.

use std::collections::BTreeMap;

use baton_proto::v1::{
    LifecyclePhase, RetryPolicy, Role, SubmitRequest, Task, TaskSpec, TaskState,
};
use baton_tests::{
    Client, Collector, Relay, RelayProcess, ScriptedDaemon, attribute, command, for_agent, hello,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use crate::BATON;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// A submission inside the caller's span.
async fn submit(client: &Client, spec: TaskSpec) -> Task {
    let request = SubmitRequest {
        spec: Some(spec),
        traceparent: format!("00-{TRACE}-{CALLER}-01"),
        ..SubmitRequest::default()
    };
    let accepted = client.try_submit(request).await;
    let task = accepted.expect("Submit is accepted").task;
    task.expect("an accepted task is in the answer")
}

fn at_once() -> Option<RetryPolicy> {
    Some(RetryPolicy {
        backoff_initial_ms: Some(10),
        ..RetryPolicy::default()
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn only<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found
        .next()
        .unwrap_or_else(|| panic!("{name} in {spans:#?}"));
    assert!(found.next().is_none(), "one {name}");
    span
}

/// Both attempts' spans, each with the names of what is directly below it.
fn attempts(spans: &[Span]) -> [(&Span, Vec<&str>); 2] {
    let mut found: Vec<&Span> = spans
        .iter()
        .filter(|span| span.name == "baton.attempt")
        .collect();
    found.sort_by_key(|span| attribute(&span.attributes, "baton.attempt.number"));
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
    let mut collector = Collector::start().await;
    let url = collector.url().to_owned();
    let relay = Relay::start_with(|config| config.otlp = Some(url)).await;
    let daemon = relay.real_daemon().await;
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    // Fails the first time and says nothing, so that a second attempt follows.
    let script = "echo $TRACEPARENT >> $0; test $(wc -l < $0) = 2";
    let spec = TaskSpec {
        retry: at_once(),
        ..command("sh", &["-c", script, &told.display().to_string()], "traced")
    };
    let task = submit(relay.admin(), spec).await;

    let exported = collector.until("baton.task").await;
    for (resource, span) in &exported {
        assert_eq!(
            attribute(&resource.attributes, "service.name"),
            "baton-relay"
        );
        assert_eq!(hex(&span.trace_id), TRACE, "{span:#?}");
        assert_eq!(attribute(&span.attributes, "baton.task.id"), task.task_id);
    }
    let spans: Vec<Span> = exported.into_iter().map(|(_, span)| span).collect();
    let root = only(&spans, "baton.task");
    assert_eq!(hex(&root.parent_span_id), CALLER);
    assert_eq!(attribute(&root.attributes, "baton.state"), "completed");

    let [(first, first_parts), (second, second_parts)] = attempts(&spans);
    let stages = [
        "baton.queue",
        "baton.accept",
        "baton.process_start",
        "baton.prompt_write",
        "baton.first_event",
    ];
    for (attempt, parts) in [(first, &first_parts), (second, &second_parts)] {
        assert_eq!(attempt.parent_span_id, root.span_id);
        assert_eq!(
            attribute(&attempt.attributes, "baton.daemon.id"),
            daemon.id()
        );
        for stage in stages {
            assert!(parts.contains(&stage), "{stage} in {parts:?}");
        }
    }
    assert_eq!(second.links[0].span_id, first.span_id);
    let status = first.status.as_ref().unwrap();
    assert_eq!(
        (status.code(), status.message.as_str()),
        (StatusCode::Error, "agent_exit")
    );
    assert_eq!(attribute(&first.attributes, "process.exit.code"), "1");

    let told = std::fs::read_to_string(told).unwrap();
    let told: Vec<&str> = told.lines().collect();
    let own = |attempt: &Span| format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
    assert_eq!(
        told,
        [own(first), own(second)],
        "each child is told its attempt's span"
    );
    let shown = relay.admin().get(&task.task_id).await;
    let shown: Vec<&str> = shown
        .attempts
        .iter()
        .map(|attempt| &*attempt.traceparent)
        .collect();
    assert_eq!(shown, told);
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_loses_no_trace_of_a_task_that_goes_on() {
    let mut collector = Collector::start().await;
    let mut relay = RelayProcess::start_with(BATON, &["--otlp", collector.url()]).await;
    let client = relay.admin().clone();
    let (_, secret) = client.make_token("", Role::Daemon).await;
    let link = client.with_token(&secret);
    let mut daemon = ScriptedDaemon::connect(&link, hello(&["scripted"])).await;
    let spec = TaskSpec {
        retry: at_once(),
        ..for_agent("scripted")
    };
    let task = submit(&client, spec).await;
    let mut first = daemon.running().await;
    first.fail("agent_exit").await;
    let mut second = daemon.running().await;
    second.tool(LifecyclePhase::ToolStarted, "t1").await;
    daemon.acked(&second).await;

    relay.kill().await;
    relay.revive().await;

    let _daemon = daemon.reconnect(&link, &mut [&mut second]).await;
    second.tool(LifecyclePhase::ToolFinished, "t1").await;
    second.complete("done").await;
    client
        .watch(&task.task_id)
        .await
        .until_state(TaskState::Completed)
        .await;

    // What the first process may have sent is sent again; a span that came twice is the same both times.
    let mut by_id: BTreeMap<Vec<u8>, Span> = BTreeMap::new();
    for (_, span) in collector.until("baton.task").await {
        if let Some(before) = by_id.insert(span.span_id.clone(), span.clone()) {
            assert_eq!(before, span);
        }
    }
    let spans: Vec<Span> = by_id.into_values().collect();
    let [(one, one_parts), (two, two_parts)] = attempts(&spans);
    assert_eq!(attribute(&one.attributes, "baton.attempt.id"), first.id());
    assert_eq!(attribute(&two.attributes, "baton.attempt.id"), second.id());
    assert_eq!(two.links[0].span_id, one.span_id);
    assert!(one_parts.contains(&"baton.queue"), "{one_parts:?}");
    assert!(two_parts.contains(&"execute_tool bash"), "{two_parts:?}");
    assert_eq!(hex(&only(&spans, "baton.task").parent_span_id), CALLER);
    assert_eq!(relay.terminate().await.code(), Some(0));
}
