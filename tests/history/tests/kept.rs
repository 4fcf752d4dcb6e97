//! Histories as files: written by several participants, read again, judged; and refused when they show too little.

use baton_history::{
    CallOutcome, ClientOperation, FinalAttempt, History, HistoryRecorder, Observation,
    check_history,
};

fn write_history(dir: &std::path::Path, least: u64) {
    let recorder = HistoryRecorder::new(dir).expect("it can be written");
    let client = recorder
        .participant_log("client")
        .expect("it can be written");
    let submit = Observation::Call {
        call: 1,
        op: ClientOperation::Submit,
        tenant: "acme".into(),
        task: None,
        key: Some("key".into()),
        body: None,
    };
    client.record(1, submit).expect("it can be written");
    let answer = Observation::Answer {
        call: 1,
        outcome: CallOutcome::Ok,
        task: Some("t1".into()),
        revision: Some(1),
        state: Some("queued".into()),
        code: None,
        already: false,
    };
    client.record(2, answer).expect("it can be written");
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
        .expect("it can be written")
        .record(9, record)
        .expect("it can be written");
    let count = "submits acknowledged".to_owned();
    let chaos = recorder
        .participant_log("chaos")
        .expect("it can be written");
    chaos
        .record(0, Observation::Least { count, least })
        .expect("it can be written");
}

#[test]
fn what_was_written_is_read_and_judged() {
    let dir = tempfile::tempdir().unwrap();
    write_history(dir.path(), 1);
    let history = History::load(dir.path()).unwrap();
    let verdict = check_history(&history);
    assert_eq!((history.line_count(), verdict.count("records")), (4, 1));
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn a_run_that_saw_too_little_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_history(dir.path(), 2);
    let verdict = check_history(&History::load(dir.path()).unwrap());
    let told = verdict.to_string();
    assert!(!verdict.is_clean());
    assert!(
        told.contains("vacuous: 1 submits acknowledged, and fewer than 2"),
        "{told}"
    );
    assert!(told.contains("chaos.jsonl:1"), "{told}");
}

#[test]
fn a_line_that_a_crash_cut_short_is_left_out_and_any_other_damage_is_an_error() {
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
