//! Tests of completion contracts: results with missing files are refused, fail or park the
//! task, and can be repeated.

use std::sync::Arc;

use crate::commands::CancelTask;
use crate::goal::completion_contract;
use crate::goal::completion_contract::FoundArtifact;
use crate::ids::TaskId;
use crate::io::effects::{DaemonMessage, SettlementVerdict};
use crate::io::rejection::Rejection;
use crate::io::session_input::{ActiveAttemptState, CompletedBody, FrameBody};
use crate::operator::task_operation::TaskOperation;
use crate::record::{
    AttemptStateKind, AttentionCause, EndState, FailureCode, LifecyclePhase, TaskState,
    TimelineEventKind,
};
use crate::samples::tenant;
use crate::task::spec::{
    CompletionContract, MissingPolicy, RequiredArtifact, TaskSpec, UnsafeLossPolicy,
};
use crate::tests::harness::{
    CoreHarness, DispatchedAttempt, GRACE, TTL, TestDaemon, actor, spec, termination_receipt,
};

const HASH: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// A task that requires three files: one that exists, one with a minimum size, one with a hash.
fn spec_with_artifacts(policy: MissingPolicy) -> TaskSpec {
    let required = |path: &str, min_size, sha256: Option<&str>| RequiredArtifact {
        path: path.into(),
        min_size,
        sha256: sha256.map(str::to_owned),
    };
    TaskSpec {
        contract: Some(CompletionContract {
            artifacts: vec![
                required("out/a", None, None),
                required("out/b", Some(10), None),
                required("out/c", None, Some(HASH)),
            ],
            missing_policy: policy,
        }),
        ..spec()
    }
}

fn file(path: &str) -> FoundArtifact {
    FoundArtifact {
        path: path.into(),
        exists: true,
        is_file: true,
        size: 10,
        sha256: Some(HASH.into()),
        ..FoundArtifact::default()
    }
}

fn all() -> Vec<FoundArtifact> {
    ["out/a", "out/b", "out/c"].map(file).into()
}

fn result(artifacts: Vec<FoundArtifact>) -> FrameBody {
    FrameBody::Completed(CompletedBody {
        result: Some(Arc::from(*b"done")),
        artifacts,
        termination: termination_receipt(),
        ended_in_lease: true,
        ..CompletedBody::default()
    })
}

fn start_with_policy(
    policy: MissingPolicy,
) -> (CoreHarness, TestDaemon, TaskId, DispatchedAttempt) {
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec_with_artifacts(policy));
    let work = world.take_started();
    world.take_messages(&machine);
    (world, machine, task, work)
}

/// The unmet requirements of each rejection.
fn refusals(world: &mut CoreHarness, machine: &TestDaemon) -> Vec<Vec<String>> {
    let messages = world.take_messages(machine).into_iter();
    messages
        .filter_map(|message| match message {
            DaemonMessage::FrameRejected {
                code: Rejection::ContractUnmet,
                unmet,
                ..
            } => Some(unmet.iter().map(ToString::to_string).collect()),
            _ => None,
        })
        .collect()
}

#[test]
fn a_refused_result_lists_all_missing_files_and_can_be_repeated() {
    let (mut world, machine, task, mut work) = start_with_policy(MissingPolicy::Reject);
    let mut small = file("out/b");
    small.size = 9;
    let mut away = file("out/c");
    (away.is_file, away.problem) = (false, Some("it leads out of the workspace".into()));
    world.frame(&mut work, result(vec![small, away]));
    let expected = [
        "out/a: no receipt",
        "out/b: 9 bytes, at least 10 are required",
        "out/c: it leads out of the workspace",
    ];
    assert_eq!(refusals(&mut world, &machine), [expected]);
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Running);
    let newest = record.newest_attempt().unwrap();
    assert!(newest.state.is_leased() && newest.artifacts.len() == 2);
    let last = record.timeline.events.last().unwrap();
    assert_eq!(
        last.kind,
        TimelineEventKind::CompletionRefused { missing: 0b111 }
    );
    assert!(
        last.message
            .as_ref()
            .unwrap()
            .starts_with("3 required files")
    );
    let named =
        completion_contract::unmet_paths(&spec_with_artifacts(MissingPolicy::Reject), 0b101);
    assert_eq!(named, ["out/a", "out/c"]);

    // The attempt and its timers continue, and the result is repeated with the next number.
    world.phase(&mut work, LifecyclePhase::Streaming);
    world.frame(&mut work, result(all()));
    assert_eq!(world.rejections(&machine), []);
    let record = world.task(task);
    assert_eq!(record.state, TaskState::Completed);
    assert_eq!(record.newest_attempt().unwrap().artifacts.len(), 3);
    assert!(
        completion_contract::unmet_task_requirements(
            &spec_with_artifacts(MissingPolicy::Reject),
            record.newest_attempt().unwrap()
        )
        .is_empty()
    );
}

type ArtifactDefect = fn(&mut FoundArtifact);

#[test]
fn each_unmet_requirement_of_a_result_is_reported() {
    let lacks: [(&str, ArtifactDefect, &str); 6] = [
        ("out/a", |f| f.exists = false, "out/a: missing"),
        ("out/a", |f| f.is_file = false, "out/a: not a regular file"),
        (
            "out/a",
            |f| f.problem = Some("it changed while it was read".into()),
            "out/a: it changed while it was read",
        ),
        (
            "out/b",
            |f| f.size = 0,
            "out/b: 0 bytes, at least 10 are required",
        ),
        (
            "out/c",
            |f| f.sha256 = None,
            "out/c: its SHA-256 was not computed",
        ),
        (
            "out/c",
            |f| f.sha256 = Some("00".into()),
            "out/c: SHA-256 does not match, found 00",
        ),
    ];
    for (path, lack, words) in lacks {
        let (mut world, machine, task, mut work) = start_with_policy(MissingPolicy::Reject);
        let mut found = all();
        lack(found.iter_mut().find(|file| *file.path == *path).unwrap());
        world.frame(&mut work, result(found));
        assert_eq!(refusals(&mut world, &machine), [[words]]);
        assert_eq!(world.state(task), TaskState::Running, "{words}");
    }
}

#[test]
fn missing_files_fail_or_park_the_task_as_the_contract_requires() {
    let (mut world, _, task, mut work) = start_with_policy(MissingPolicy::Fail);
    world.frame(&mut work, result(vec![file("out/a")]));
    let end = world.newest(task).state.end().cloned().unwrap();
    assert_eq!(end.failure_code, Some(FailureCode::ReceiptsMissing));
    let words = "2 required files are missing or wrong: out/b: no receipt; out/c: no receipt";
    assert_eq!(
        (end.message.as_deref(), end.retryable),
        (Some(words), false)
    );
    assert_eq!(world.state(task), TaskState::Failed);

    let (mut world, machine, task, mut work) = start_with_policy(MissingPolicy::Park);
    world.frame(&mut work, result(vec![file("out/a")]));
    let record = world.task(task);
    let attention = record.attention.clone().unwrap();
    assert_eq!(record.state, TaskState::NeedsAttention);
    assert_eq!(attention.cause, AttentionCause::ReceiptsMissing);
    assert_eq!(&*attention.reason, words);
    let parked = record.newest_attempt().unwrap();
    assert_eq!(parked.state.kind(), AttemptStateKind::Parked);
    assert_eq!(
        parked.result.as_deref(),
        Some(&b"done"[..]),
        "the result is kept for an override"
    );
    assert_eq!(
        world.rejections(&machine),
        [],
        "the result is accepted, not refused"
    );
    assert_eq!(
        completion_contract::unmet_task_requirements(
            &spec_with_artifacts(MissingPolicy::Park),
            parked
        )
        .len(),
        2
    );
    let completion = TaskOperation::Complete {
        overridden: true,
        result: None,
    };
    let record = world.operate(task, completion).unwrap();
    assert_eq!(record.state, TaskState::Completed);
    assert_eq!(
        record.newest_attempt().unwrap().result.as_deref(),
        Some(&b"done"[..])
    );
}

#[test]
fn a_result_without_its_files_does_not_win_over_a_cancel() {
    for policy in [
        MissingPolicy::Reject,
        MissingPolicy::Fail,
        MissingPolicy::Park,
    ] {
        let (mut world, _, task, mut work) = start_with_policy(policy);
        let asked = world.send(CancelTask {
            tenant: tenant("acme"),
            task,
            by: actor(),
            reason: None,
        });
        asked.unwrap();
        world.frame(&mut work, result(Vec::new()));
        assert_eq!(world.state(task), TaskState::Canceled, "{policy:?}");
    }
}

/// The stream broke before the daemon received the refusal. The result is sent again and
/// refused again. It is never acknowledged, because its daemon would drop it then.
#[test]
fn a_refused_result_is_refused_again_after_a_reconnect() {
    for restarts in [false, true] {
        let (mut world, mut machine, task, mut work) = start_with_policy(MissingPolicy::Reject);
        let seq = work.seq;
        world.frame(&mut work, result(Vec::new()));
        world.disconnect(&machine);
        if restarts {
            world.restart();
        }
        let verdicts = world.reconnect(&mut machine, &[(&work, ActiveAttemptState::Finished)]);
        let acked = match verdicts[0] {
            SettlementVerdict::Keep { acked, .. } | SettlementVerdict::Adopt { acked } => acked,
            SettlementVerdict::Kill { .. } => panic!("{verdicts:?}"),
        };
        assert_eq!(acked, seq, "the refused result is not acknowledged");
        world.take_messages(&machine);
        (work.session, work.seq) = (machine.session, seq);
        world.frame(&mut work, result(Vec::new()));
        assert_eq!(refusals(&mut world, &machine).len(), 1);
        world.frame(&mut work, result(all()));
        assert_eq!(world.state(task), TaskState::Completed);
    }
}

/// A task whose lease expired while its daemon was disconnected, with this policy for missing
/// files.
fn expire_with_policy(
    policy: MissingPolicy,
) -> (CoreHarness, TestDaemon, TaskId, DispatchedAttempt) {
    let mut world = CoreHarness::new();
    let mut machine = world.connect_daemon(1);
    let mut asks = spec_with_artifacts(policy);
    asks.retry.when_unsafe = UnsafeLossPolicy::Park;
    let task = world.submit(asks);
    let mut work = world.take_started();
    world.disconnect(&machine);
    world.pass(TTL + GRACE);
    world.reconnect(&mut machine, &[(&work, ActiveAttemptState::Finished)]);
    work.session = machine.session;
    (world, machine, task, work)
}

#[test]
fn a_late_result_must_meet_the_contract_too() {
    for policy in [
        MissingPolicy::Reject,
        MissingPolicy::Fail,
        MissingPolicy::Park,
    ] {
        let (mut world, _, task, mut work) = expire_with_policy(policy);
        world.frame(&mut work, result(all()));
        assert_eq!(world.state(task), TaskState::Completed, "{policy:?}");

        let (mut world, _, task, mut work) = expire_with_policy(policy);
        world.frame(&mut work, result(vec![file("out/a")]));
        let first = world.task(task).attempts[0].clone();
        let end = first.state.end().unwrap();
        if policy == MissingPolicy::Fail {
            assert_eq!(end.failure_code, Some(FailureCode::ReceiptsMissing));
            assert!(end.is_adopted_late);
        } else {
            assert_eq!(end.state, EndState::Lost, "{policy:?}");
            assert!(
                first.has_late_terminal,
                "the late result is kept as evidence"
            );
        }
    }
}

#[test]
fn a_result_before_its_output_is_refused_and_keeps_its_number_free() {
    let gap = |missing| {
        FrameBody::Completed(CompletedBody {
            final_offset: 100,
            output_missing: missing,
            termination: termination_receipt(),
            ended_in_lease: true,
            ..CompletedBody::default()
        })
    };
    let mut world = CoreHarness::new();
    let machine = world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.take_messages(&machine);
    let (seq, before) = (work.seq, world.task(task));
    world.frame(&mut work, gap(1));
    assert_eq!(world.rejections(&machine), [Rejection::OutputGap]);
    assert_eq!(world.task(task), before, "nothing was written");
    work.seq = seq;
    world.frame(&mut work, gap(0));
    assert_eq!(world.rejections(&machine), []);
    assert_eq!(world.state(task), TaskState::Completed);

    let (mut world, machine, task, mut work) = expire_with_policy(MissingPolicy::Reject);
    world.take_messages(&machine);
    let FrameBody::Completed(late) = result(all()) else {
        unreachable!()
    };
    let seq = work.seq;
    let early = CompletedBody {
        output_missing: 1,
        ..late.clone()
    };
    world.frame(&mut work, FrameBody::Completed(early));
    assert_eq!(world.rejections(&machine), [Rejection::OutputGap]);
    assert_ne!(world.state(task), TaskState::Completed);
    work.seq = seq;
    world.frame(&mut work, FrameBody::Completed(late));
    assert_eq!(world.state(task), TaskState::Completed);
}

#[test]
fn artifacts_outside_the_contract_are_not_stored() {
    let mut world = CoreHarness::new();
    world.connect_daemon(1);
    let task = world.submit(spec());
    let mut work = world.take_started();
    world.frame(&mut work, result(all()));
    assert!(world.newest(task).artifacts.is_empty());

    let (mut world, _, task, mut work) = start_with_policy(MissingPolicy::Reject);
    let mut found = all();
    found.extend([file("out/a"), file("elsewhere")]);
    world.frame(&mut work, result(found));
    let kept: Vec<u8> = world
        .newest(task)
        .artifacts
        .iter()
        .map(|a| a.contract_index)
        .collect();
    assert_eq!(kept, [0, 1, 2]);
}
