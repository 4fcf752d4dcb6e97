//! Histories as files: written by several participants, loaded and checked; and rejected if
//! they contain too little.

use baton_history::{
    CallOutcome, ClientOperation, FinalAttempt, History, HistoryRecorder, Observation,
    check_history,
};

fn write_history(dir: &std::path::Path, least: u64) {
    let recorder = HistoryRecorder::new(dir).expect("the history can be written");
    let client = recorder
        .participant_log("client")
        .expect("the history can be written");
    let submit = Observation::Call {
        call: 1,
        op: ClientOperation::Submit,
        tenant: "acme".into(),
        task: None,
        key: Some("key".into()),
        body: None,
    };
    client
        .record(1, submit)
        .expect("the history can be written");
    let answer = Observation::Answer {
        call: 1,
        outcome: CallOutcome::Ok,
        task: Some("t1".into()),
        revision: Some(1),
        state: Some("queued".into()),
        code: None,
        already: false,
    };
    client
        .record(2, answer)
        .expect("the history can be written");
    let record = Observation::Record {
        tenant: "acme".into(),
        task: "t1".into(),
        revision: 4,
        state: "completed".into(),
        attempts: vec![FinalAttempt {
            attempt: "a1".into(),
            number: 1,
            state: "completed".into(),
        }],
    };
    recorder
        .participant_log("relay")
        .expect("the history can be written")
        .record(9, record)
        .expect("the history can be written");
    let count = "submits acknowledged".to_owned();
    let chaos = recorder
        .participant_log("chaos")
        .expect("the history can be written");
    chaos
        .record(0, Observation::Least { count, least })
        .expect("the history can be written");
}

#[test]
fn a_written_history_is_loaded_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    write_history(dir.path(), 1);
    let history = History::load(dir.path()).unwrap();
    let verdict = check_history(&history);
    assert_eq!((history.line_count(), verdict.count("records")), (4, 1));
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn a_run_with_too_few_observations_fails() {
    let dir = tempfile::tempdir().unwrap();
    write_history(dir.path(), 2);
    let verdict = check_history(&History::load(dir.path()).unwrap());
    let message = verdict.to_string();
    assert!(!verdict.is_clean());
    assert!(
        message.contains("vacuous: 1 submits acknowledged, but at least 2 are required"),
        "{message}"
    );
    assert!(message.contains("chaos.jsonl:1"), "{message}");
}

#[test]
fn only_a_cut_off_last_line_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    write_history(dir.path(), 1);
    let file = dir.path().join("client.jsonl");
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"at\":3,\"who\":\"cl");
    std::fs::write(&file, &text).unwrap();
    assert_eq!(History::load(dir.path()).unwrap().line_count(), 4);
    text.push('\n');
    std::fs::write(&file, &text).unwrap();
    let refused = History::load(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("client.jsonl:3"), "{refused}");
}
