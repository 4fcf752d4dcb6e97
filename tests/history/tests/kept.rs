//! Histories as files: written by several participants, read again, judged; and refused when they show too little.

use baton_history::{FinalAttempt, History, Op, Outcome, Recorder, Saw, judge};

fn write(dir: &std::path::Path, least: u64) {
    let recorder = Recorder::new(dir).expect("it can be written");
    let client = recorder.viewpoint("client").expect("it can be written");
    let submit = Saw::Call {
        call: 1,
        op: Op::Submit,
        tenant: "acme".into(),
        task: None,
        key: Some("key".into()),
        body: None,
    };
    client.saw(1, submit).expect("it can be written");
    let answer = Saw::Answer {
        call: 1,
        outcome: Outcome::Ok,
        task: Some("t1".into()),
        revision: Some(1),
        state: Some("queued".into()),
        code: None,
        already: false,
    };
    client.saw(2, answer).expect("it can be written");
    let record = Saw::Record {
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
        .viewpoint("relay")
        .expect("it can be written")
        .saw(9, record)
        .expect("it can be written");
    let count = "submits acknowledged".to_owned();
    let chaos = recorder.viewpoint("chaos").expect("it can be written");
    chaos
        .saw(0, Saw::Least { count, least })
        .expect("it can be written");
}

#[test]
fn what_was_written_is_read_and_judged() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1);
    let history = History::load(dir.path()).unwrap();
    let verdict = judge(&history);
    assert_eq!((history.lines(), verdict.count("records")), (4, 1));
    assert!(verdict.holds(), "{verdict}");
}

#[test]
fn a_run_that_saw_too_little_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 2);
    let verdict = judge(&History::load(dir.path()).unwrap());
    let told = verdict.to_string();
    assert!(!verdict.holds());
    assert!(
        told.contains("vacuous: 1 submits acknowledged, and fewer than 2"),
        "{told}"
    );
    assert!(told.contains("chaos.jsonl:1"), "{told}");
}

#[test]
fn a_line_that_a_crash_cut_short_is_left_out_and_any_other_damage_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1);
    let file = dir.path().join("client.jsonl");
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str("{\"at\":3,\"who\":\"cl");
    std::fs::write(&file, &text).unwrap();
    assert_eq!(History::load(dir.path()).unwrap().lines(), 4);
    text.push('\n');
    std::fs::write(&file, &text).unwrap();
    let refused = History::load(dir.path()).unwrap_err().to_string();
    assert!(refused.contains("client.jsonl:3"), "{refused}");
}
