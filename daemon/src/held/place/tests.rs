//! Which jobs an attempt has for the disk, in which order, and what it says when the disk refuses them.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{AttemptRef, LeaseToken, RejectCode};
use bytes::Bytes;

use super::super::Offer;
use super::*;
use crate::attempt::{AttemptPlan, Words};
use crate::clock::Moment;
use crate::outbox::{Durable, Record};
use crate::process::ChildSpec;
use crate::timers::Deadlines;

pub(in super::super) fn offer() -> (AttemptId, Offer) {
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
        deadlines: Deadlines::default(),
        cleanup_term: Duration::ZERO,
        conversation_key: Bytes::new(),
        workspace: None,
        tools: None,
        files: None,
        talks: false,
    };
    let offer = Offer {
        attempt,
        token: LeaseToken::default(),
        place: Place::New {
            id,
            meta: Box::new(meta),
        },
        plan: AttemptPlan {
            attempt_id,
            task_id: String::new(),
            workspace: crate::workspace::Plan::open(std::path::Path::new("/")),
            child: ChildSpec {
                program: "true".into(),
                args: Vec::new(),
                cwd: "/".into(),
                environment: BTreeMap::new(),
                group: None,
            },
            words: Words::Prompt(Bytes::new()),
            deadlines: Deadlines::default(),
            cleanup_term: Duration::ZERO,
            tools: None,
            files: None,
            resume: None,
        },
        accept: Duration::from_secs(10),
        conversing: None,
    };
    (id, offer)
}

pub(in super::super) fn said(held: &mut Held) -> Vec<Body> {
    let mut said = Vec::new();
    while let Some(record) = held.outbox.next_unsent() {
        if let Record::Control { body, .. } = record {
            said.extend(body.body.clone());
        }
        held.outbox.mark_sent();
    }
    said
}

pub(in super::super) fn jobs(held: &mut Held) -> Vec<Job> {
    std::iter::from_fn(|| held.has_job().then(|| held.next_job()).flatten()).collect()
}

/// Everything that was handed over is stored.
pub(in super::super) fn store(held: &mut Held, jobs: &[Job]) {
    for job in jobs {
        if let Job::Append { entries, .. } | Job::Replace { entries, .. } = job {
            let last = entries.last().unwrap().serial;
            held.outbox.log_mut().on_durable(Durable {
                written: last,
                synced: last,
                file_bytes: 0,
            });
        }
    }
}

#[test]
fn an_attempt_that_the_disk_does_not_take_is_refused_and_leaves_nothing() {
    let clock = Clock::manual(Moment::from_millis(0));
    let (id, offer) = offer();
    let mut held = Held::accept(offer, &clock);
    assert!(said(&mut held).is_empty(), "nothing is promised yet");
    let handed = jobs(&mut held);
    assert!(
        matches!(handed[..], [Job::Begin { .. }, Job::Append { .. }]),
        "{handed:?}"
    );
    assert_eq!(
        held.on_disk_failed(StopWhy::DiskFull, &clock),
        Some(id),
        "what there is of it goes"
    );
    let said = said(&mut held);
    let [Body::Rejected(rejected)] = &said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(rejected.code(), RejectCode::DiskFull);
    assert!(!held.has_job() && !held.needs_repair() && !held.holds_slot());
}

#[test]
fn what_has_ended_is_said_from_memory_and_written_down_when_there_is_room() {
    let clock = Clock::manual(Moment::from_millis(0));
    let (id, offer) = offer();
    let mut held = Held::accept(offer, &clock);
    let handed = jobs(&mut held);
    store(&mut held, &handed);
    assert_eq!(said(&mut held).len(), 1);
    held.give_back(&Refusal::not_confirmed(), &clock);
    assert_eq!(jobs(&mut held).len(), 1);
    assert!(said(&mut held).is_empty(), "the disk has not answered");
    assert_eq!(held.on_disk_failed(StopWhy::DiskFull, &clock), None);
    assert!(matches!(said(&mut held)[..], [Body::Rejected(_)]));
    assert!(held.needs_repair() && !held.has_job());
    let repair = held.repair_job().unwrap();
    assert!(matches!(&repair, Job::Replace { id: of, .. } if *of == id));
    assert!(!held.needs_repair(), "one is on its way");
    store(&mut held, &[repair]);
    assert_eq!(held.place.on_disk(), Some(id));
}

#[test]
fn what_another_daemon_stored_is_kept_however_the_disk_behaves() {
    let clock = Clock::manual(Moment::from_millis(0));
    let (id, offer) = offer();
    let mut held = Held::accept(offer, &clock);
    let handed = jobs(&mut held);
    let Some(Job::Append { entries, .. }) = handed.into_iter().next_back() else {
        panic!("it was to be appended")
    };
    held.outbox = Outbox::restore(OUTPUT_LIMIT, entries);
    let found = Found {
        length: 1,
        serial: 1,
    };
    held.place = Place::Found { id, found };
    assert!(matches!(
        jobs(&mut held)[..],
        [Job::Resume { .. }, Job::Append { .. }]
    ));
    assert_eq!(
        held.on_disk_failed(StopWhy::DiskFull, &clock),
        None,
        "its directory stays"
    );
    assert!(matches!(
        said(&mut held)[..],
        [Body::Accepted(_), Body::Rejected(_)]
    ));
    assert!(held.needs_repair());
}
