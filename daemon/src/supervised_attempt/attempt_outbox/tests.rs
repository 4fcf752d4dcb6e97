//! Which jobs an attempt has for the disk, in which order, and what it says when the disk refuses them.

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

pub(in crate::supervised_attempt) fn sent_bodies(held: &mut SupervisedAttempt) -> Vec<Body> {
    let mut said = Vec::new();
    while let Some(record) = held.outbox.queue.next_unsent() {
        if let FrameRecord::Control { body, .. } = record {
            said.extend(body.body.clone());
        }
        held.mark_sent();
    }
    said
}

pub(in crate::supervised_attempt) fn take_disk_jobs(
    held: &mut SupervisedAttempt,
) -> Vec<OutboxJob> {
    std::iter::from_fn(|| held.has_disk_job().then(|| held.next_disk_job()).flatten()).collect()
}

/// Everything that was handed over is stored.
pub(in crate::supervised_attempt) fn mark_stored(held: &mut SupervisedAttempt, jobs: &[OutboxJob]) {
    for job in jobs {
        if let OutboxJob::Append { entries, .. } | OutboxJob::Replace { entries, .. } = job {
            let last = entries.last().unwrap().serial;
            held.outbox.queue.log_mut().on_durable(DurablePosition {
                written: last,
                synced: last,
                file_bytes: 0,
            });
        }
    }
}

#[test]
fn an_attempt_that_the_disk_does_not_take_is_refused_and_leaves_nothing() {
    let clock = Clock::manual(BootTime::from_millis(0));
    let (id, offer) = sample_dispatch();
    let mut held = SupervisedAttempt::accept(offer, &clock);
    assert!(sent_bodies(&mut held).is_empty(), "nothing is promised yet");
    let handed = take_disk_jobs(&mut held);
    assert!(
        matches!(
            handed[..],
            [OutboxJob::Begin { .. }, OutboxJob::Append { .. }]
        ),
        "{handed:?}"
    );
    assert_eq!(
        held.on_disk_failed(StopReason::DiskFull, &clock),
        Some(id),
        "what there is of it goes"
    );
    let said = sent_bodies(&mut held);
    let [Body::Rejected(rejected)] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(rejected.code(), RejectCode::DiskFull);
    assert!(!held.has_disk_job() && !held.needs_repair() && !held.uses_slot());
}

#[test]
fn what_has_ended_is_said_from_memory_and_written_down_when_there_is_room() {
    let clock = Clock::manual(BootTime::from_millis(0));
    let (id, offer) = sample_dispatch();
    let mut held = SupervisedAttempt::accept(offer, &clock);
    let handed = take_disk_jobs(&mut held);
    mark_stored(&mut held, &handed);
    assert_eq!(sent_bodies(&mut held).len(), 1);
    held.return_unstarted(&DispatchRefusal::not_confirmed(), &clock);
    assert_eq!(take_disk_jobs(&mut held).len(), 1);
    assert!(
        sent_bodies(&mut held).is_empty(),
        "the disk has not answered"
    );
    assert_eq!(held.on_disk_failed(StopReason::DiskFull, &clock), None);
    assert!(matches!(sent_bodies(&mut held)[..], [Body::Rejected(_)]));
    assert!(held.needs_repair() && !held.has_disk_job());
    let repair = held.repair_job().unwrap();
    assert!(matches!(&repair, OutboxJob::Replace { id: of, .. } if *of == id));
    assert!(!held.needs_repair(), "one is on its way");
    mark_stored(&mut held, &[repair]);
    assert_eq!(held.dir_id(), Some(id));
}

#[test]
fn what_another_daemon_stored_is_kept_however_the_disk_behaves() {
    let clock = Clock::manual(BootTime::from_millis(0));
    let (id, offer) = sample_dispatch();
    let mut held = SupervisedAttempt::accept(offer, &clock);
    let handed = take_disk_jobs(&mut held);
    let Some(OutboxJob::Append { entries, .. }) = handed.into_iter().next_back() else {
        panic!("it was to be appended")
    };
    held.outbox.queue = FrameOutbox::restore(OUTPUT_LIMIT, entries);
    let found = OutboxFilePrefix {
        length: 1,
        serial: 1,
    };
    held.outbox.location = OutboxLocation::Existing { id, prefix: found };
    assert!(matches!(
        take_disk_jobs(&mut held)[..],
        [OutboxJob::Resume { .. }, OutboxJob::Append { .. }]
    ));
    assert_eq!(
        held.on_disk_failed(StopReason::DiskFull, &clock),
        None,
        "its directory stays"
    );
    assert!(matches!(
        sent_bodies(&mut held)[..],
        [Body::Accepted(_), Body::Rejected(_)]
    ));
    assert!(held.needs_repair());
}
