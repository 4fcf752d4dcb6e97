//! Which disk jobs an attempt has, in which order, and which frames it sends when the disk
//! refuses them.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptRef, LeaseToken, RejectCode};
use bytes::Bytes;

use super::super::{AcceptedDispatch, StopReason, SupervisedAttempt};
use super::*;
use crate::agents::DispatchRefusal;
use crate::attempt::{AttemptPlan, ChildStdin};
use crate::clock::BootTime;
use crate::deadlines::DeadlineLimits;
use crate::outbox::{DurablePosition, FrameRecord};
use crate::process::ChildSpec;

pub(in crate::supervised_attempt) fn sample_dispatch() -> (AttemptId, AcceptedDispatch) {
    let attempt_id = uuid::Uuid::now_v7().to_string();
    let id = attempt_id.parse().unwrap();
    let attempt = AttemptRef {
        attempt_id: attempt_id.clone(),
        ..AttemptRef::default()
    };
    let meta = AttemptMeta {
        attempt: attempt.clone(),
        agent: "command".to_owned(),
        daemon_id: String::new(),
        boot_id: String::new(),
        deadlines: DeadlineLimits::default(),
        cleanup_term: Duration::ZERO,
        conversation_key: Bytes::new(),
        workspace: None,
        tools: None,
        required_files: None,
        is_coding_agent: false,
    };
    let offer = AcceptedDispatch {
        attempt,
        token: LeaseToken::default(),
        outbox_location: OutboxLocation::New {
            id,
            meta: Box::new(meta),
        },
        plan: AttemptPlan {
            attempt_id,
            task_id: String::new(),
            workspace: crate::workspace::WorkspacePlan::in_directory(std::path::Path::new("/")),
            child: ChildSpec {
                program: "true".into(),
                args: Vec::new(),
                cwd: "/".into(),
                environment: BTreeMap::new(),
                control_group: None,
            },
            stdin: ChildStdin::Prompt(Bytes::new()),
            deadlines: DeadlineLimits::default(),
            cleanup_term: Duration::ZERO,
            tools: None,
            required_files: None,
            resume: None,
        },
        confirm_within: Duration::from_secs(10),
        conversation: None,
    };
    (id, offer)
}

pub(in crate::supervised_attempt) fn sent_bodies(attempt: &mut SupervisedAttempt) -> Vec<Body> {
    let mut bodies = Vec::new();
    while let Some(record) = attempt.outbox.queue.next_unsent() {
        if let FrameRecord::Control { body, .. } = record {
            bodies.extend(body.body.clone());
        }
        attempt.mark_sent();
    }
    bodies
}

pub(in crate::supervised_attempt) fn take_disk_jobs(
    attempt: &mut SupervisedAttempt,
) -> Vec<OutboxJob> {
    std::iter::from_fn(|| {
        attempt
            .has_disk_job()
            .then(|| attempt.next_disk_job())
            .flatten()
    })
    .collect()
}

/// Marks everything that was submitted as stored.
pub(in crate::supervised_attempt) fn mark_stored(
    attempt: &mut SupervisedAttempt,
    jobs: &[OutboxJob],
) {
    for job in jobs {
        if let OutboxJob::Append { entries, .. } | OutboxJob::Replace { entries, .. } = job {
            let last = entries.last().unwrap().serial;
            attempt.outbox.queue.log_mut().on_durable(DurablePosition {
                written: last,
                synced: last,
                file_bytes: 0,
            });
        }
    }
}

#[test]
fn an_attempt_that_cannot_be_stored_is_refused() {
    let clock = Clock::manual(BootTime::from_millis(0));
    let (id, offer) = sample_dispatch();
    let mut attempt = SupervisedAttempt::accept(offer, &clock);
    assert!(sent_bodies(&mut attempt).is_empty(), "nothing is sent yet");
    let jobs = take_disk_jobs(&mut attempt);
    assert!(
        matches!(
            jobs[..],
            [OutboxJob::Begin { .. }, OutboxJob::Append { .. }]
        ),
        "{jobs:?}"
    );
    assert_eq!(
        attempt.on_disk_failed(StopReason::DiskFull, &clock),
        Some(id),
        "its directory is removed"
    );
    let bodies = sent_bodies(&mut attempt);
    let [Body::Rejected(rejected)] = &bodies[..] else {
        panic!("{bodies:?}")
    };
    assert_eq!(rejected.code(), RejectCode::DiskFull);
    assert!(!attempt.has_disk_job() && !attempt.needs_repair() && !attempt.uses_slot());
}

#[test]
fn a_terminal_frame_is_sent_from_memory_and_stored_later() {
    let clock = Clock::manual(BootTime::from_millis(0));
    let (id, offer) = sample_dispatch();
    let mut attempt = SupervisedAttempt::accept(offer, &clock);
    let jobs = take_disk_jobs(&mut attempt);
    mark_stored(&mut attempt, &jobs);
    assert_eq!(sent_bodies(&mut attempt).len(), 1);
    attempt.return_unstarted(&DispatchRefusal::not_confirmed(), &clock);
    assert_eq!(take_disk_jobs(&mut attempt).len(), 1);
    assert!(
        sent_bodies(&mut attempt).is_empty(),
        "the disk has not reported"
    );
    assert_eq!(attempt.on_disk_failed(StopReason::DiskFull, &clock), None);
    assert!(matches!(sent_bodies(&mut attempt)[..], [Body::Rejected(_)]));
    assert!(attempt.needs_repair() && !attempt.has_disk_job());
    let repair = attempt.repair_job().unwrap();
    assert!(matches!(&repair, OutboxJob::Replace { id: of, .. } if *of == id));
    assert!(!attempt.needs_repair(), "one is submitted");
    mark_stored(&mut attempt, &[repair]);
    assert_eq!(attempt.dir_id(), Some(id));
}

#[test]
fn frames_of_an_earlier_daemon_are_kept_when_the_disk_fails() {
    let clock = Clock::manual(BootTime::from_millis(0));
    let (id, offer) = sample_dispatch();
    let mut attempt = SupervisedAttempt::accept(offer, &clock);
    let jobs = take_disk_jobs(&mut attempt);
    let Some(OutboxJob::Append { entries, .. }) = jobs.into_iter().next_back() else {
        panic!("no append job")
    };
    attempt.outbox.queue = FrameOutbox::restore(OUTPUT_LIMIT, entries);
    let prefix = OutboxFilePrefix {
        length: 1,
        serial: 1,
    };
    attempt.outbox.location = OutboxLocation::Existing { id, prefix };
    assert!(matches!(
        take_disk_jobs(&mut attempt)[..],
        [OutboxJob::Resume { .. }, OutboxJob::Append { .. }]
    ));
    assert_eq!(
        attempt.on_disk_failed(StopReason::DiskFull, &clock),
        None,
        "its directory stays"
    );
    assert!(matches!(
        sent_bodies(&mut attempt)[..],
        [Body::Accepted(_), Body::Rejected(_)]
    ));
    assert!(attempt.needs_repair());
}
