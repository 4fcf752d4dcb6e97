//! Output for people and scripts: short enum names and the JSON that the CLI prints.

use baton_proto::v1::{
    Attempt, AttemptState, EndedBy, LifecyclePhase, OutputChunk, Role, Task, TaskEvent,
    TaskEventKind, TaskState, TimerKind, Usage,
};
use baton_proto::{ShortName, short_name_of, timestamp_from_ms, to_json};
use serde_json::json;

#[test]
fn short_names_are_lower_case_and_read_back() {
    assert_eq!(TaskState::NeedsAttention.short_name(), "needs_attention");
    assert_eq!(AttemptState::ToolRunning.short_name(), "tool_running");
    assert_eq!(Role::ReadOnly.short_name(), "read_only");
    assert_eq!(
        TaskState::from_short_name("timed_out"),
        Ok(TaskState::TimedOut)
    );
    assert_eq!(TimerKind::short_names().count(), 12);
    assert_eq!(AttemptState::short_names().count(), 17);
    assert_eq!(LifecyclePhase::short_names().count(), 24);
    assert_eq!(TaskState::short_names().count(), 9);
    for name in TaskEventKind::short_names() {
        assert_eq!(
            TaskEventKind::from_short_name(name).unwrap().short_name(),
            name
        );
    }
}

#[test]
fn an_unknown_name_gets_the_list_of_valid_names() {
    let error = TaskState::from_short_name("COMPLETED").unwrap_err();
    assert!(error.to_string().contains("completed"), "{error}");
    assert!(TaskState::from_short_name("unspecified").is_err());
    assert_eq!(short_name_of::<TaskState>(5), "completed");
    assert_eq!(short_name_of::<TaskState>(77), "77");
}

#[test]
fn task_json_has_the_fields_that_scripts_rely_on() {
    let attempt = Attempt {
        attempt_id: "a1".into(),
        attempt_number: 1,
        state: AttemptState::Failed.into(),
        failure_code: "agent_exit".into(),
        retryable: true,
        ended_by: EndedBy::Daemon.into(),
        exit_code: Some(0),
        usage: Some(Usage {
            input_tokens: u64::MAX,
            ..Default::default()
        }),
        ..Default::default()
    };
    let labels = [("team".to_owned(), "infra".to_owned())].into();
    let state = TaskState::Failed.into();
    let task = Task {
        task_id: "t1".into(),
        state,
        attempts: vec![attempt],
        labels,
        ..Default::default()
    };
    let shown = to_json(&Task {
        created_at: Some(timestamp_from_ms(1_700_000_000_500)),
        ..task
    });

    assert_eq!(shown["taskId"], "t1");
    assert_eq!(shown["state"], "failed");
    assert_eq!(shown["labels"], json!({"team": "infra"}));
    assert_eq!(shown["createdAt"], "2023-11-14T22:13:20.500Z");
    assert_eq!(
        shown["endedAt"],
        json!(null),
        "timestamps are always present"
    );
    assert_eq!(
        shown["successCriteria"],
        json!([]),
        "lists are always present"
    );
    assert!(
        shown.get("attention").is_none(),
        "absent messages are left out"
    );
    let attempt = shown["attempts"][0].as_object().unwrap();
    let promised = [
        "attemptId",
        "attemptNumber",
        "state",
        "failureCode",
        "retryable",
    ];
    let promised = promised
        .iter()
        .chain(&["retrySafe", "message", "userMessage", "endedBy"]);
    assert!(
        promised.into_iter().all(|name| attempt.contains_key(*name)),
        "{attempt:?}"
    );
    assert_eq!(
        (&attempt["endedBy"], &attempt["exitCode"]),
        (&json!("daemon"), &json!(0))
    );
    assert!(attempt.get("signal").is_none(), "absent and zero differ");
    assert_eq!(
        attempt["usage"]["inputTokens"],
        json!(u64::MAX),
        "64-bit integers are JSON numbers"
    );
}

#[test]
fn event_json_has_attempt_phase_state_and_times() {
    let event = TaskEvent {
        revision: 3,
        kind: TaskEventKind::Phase.into(),
        attempt_id: "a1".into(),
        phase: LifecyclePhase::PromptWritten.into(),
        state: AttemptState::Prompted.into(),
        observed_at: Some(timestamp_from_ms(0)),
        ..Default::default()
    };
    let shown = to_json(&event);
    assert_eq!(shown["attemptId"], "a1");
    assert_eq!(
        (&shown["phase"], &shown["state"]),
        (&json!("prompt_written"), &json!("prompted"))
    );
    assert_eq!(shown["observedAt"], "1970-01-01T00:00:00Z");
    assert_eq!(shown["deadlineAt"], json!(null));
    assert_eq!(shown["endedBy"], json!(null), "an unspecified enum is null");
}

#[test]
fn output_bytes_are_text_in_json() {
    let chunk = OutputChunk {
        data: b"caf\xc3\xa9 \xff".as_slice().into(),
        ..Default::default()
    };
    assert_eq!(to_json(&chunk)["data"], "caf\u{e9} \u{fffd}");
}
