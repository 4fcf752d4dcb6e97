//! An attempt that runs: what it may say while nobody hears it, and what is left of its words when it is taken away.

use baton_proto::v1::Question;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::worker::ToolAnswer;
use tokio::sync::oneshot;

use super::attempt_outbox::tests::{mark_stored, sample_dispatch, sent_bodies, take_disk_jobs};
use super::*;
use crate::attempt::{AgentNotice, AttemptEnding, AttemptEvent, EndCause, EventProgress};
use crate::process::TerminationOutcome;
use crate::tools::{Capability, ToolGrant};

fn clock() -> Clock {
    Clock::manual(BootTime::from_millis(0))
}

/// One whose agent has tools.
fn running(clock: &Clock) -> (SupervisedAttempt, AttemptControlReceiver) {
    let (id, mut offer) = sample_dispatch();
    offer.plan.tools = Some(ToolGrant {
        hash: Capability::generate(&id.to_string()).hash(),
        goal: String::new(),
        success_criteria: Vec::new(),
        resume: None,
    });
    let mut held = SupervisedAttempt::accept(offer, clock);
    store_all(&mut held);
    let start = held.confirm_lease(None, Duration::from_secs(600), clock);
    (held, start.expect("it is on the disk").control)
}

fn store_all(held: &mut SupervisedAttempt) {
    let handed = take_disk_jobs(held);
    mark_stored(held, &handed);
}

fn push_question(held: &mut SupervisedAttempt, clock: &Clock) {
    let question = Question {
        question: "?".repeat(1024 * 1024),
        ..Question::default()
    };
    let said = AgentNotice::Question(question);
    let progress = EventProgress::default();
    held.on_event(
        AttemptEvent::AgentNotice {
            notice: said,
            progress,
        },
        clock,
    );
    store_all(held);
}

#[test]
fn a_child_whose_words_nobody_hears_is_held_back_with_a_relay_and_without() {
    for connected in [false, true] {
        let clock = clock();
        let (mut held, bits) = running(&clock);
        let is_held_back = |held: &mut SupervisedAttempt| {
            held.update_backpressure(connected);
            bits.orders().output_paused
        };
        let mut asked = 0;
        while held.has_frame_room() {
            assert!(!is_held_back(&mut held), "after {asked}");
            push_question(&mut held, &clock);
            asked += 1;
        }
        assert!(is_held_back(&mut held) && asked < 10, "after {asked}");
        let half = AckedPosition {
            control_seq: held.outbox.queue().last_control_seq() / 2,
            output_offset: 0,
        };
        held.outbox.queue_mut().ack(half);
        assert!(
            held.has_frame_room() && is_held_back(&mut held),
            "not for every frame"
        );
        held.outbox.queue_mut().discard_unacked();
        assert!(!is_held_back(&mut held));
    }
}

fn call_tool(held: &mut SupervisedAttempt, clock: &Clock) -> oneshot::Receiver<ToolAnswer> {
    let (reply, answer) = oneshot::channel();
    held.push_tool_frame(Body::Progress(Default::default()), reply, clock);
    answer
}

#[test]
fn nobody_is_told_that_words_are_kept_that_were_thrown_away() {
    let clock = clock();
    let (mut held, _bits) = running(&clock);
    let mut answer = call_tool(&mut held, &clock);
    held.fence(&clock);
    // As an acknowledgement of the receipt would.
    held.on_acked();
    held.answer_waiting_calls();
    let gone = answer.try_recv();
    assert_eq!(gone, Err(oneshot::error::TryRecvError::Closed));
}

#[test]
fn what_no_disk_would_take_is_no_full_disk() {
    let clock = clock();
    let ends = [
        (StopReason::DiskFull, "worker_disk_full"),
        (StopReason::TooLong, "output_invalid"),
    ];
    for (why, code) in ends {
        let (mut held, _bits) = running(&clock);
        assert_eq!(held.on_disk_failed(why, &clock), None);
        let ending = AttemptEnding {
            cause: EndCause::Stopped,
            ..AttemptEnding::daemon_fault(TerminationOutcome::default())
        };
        held.on_event(AttemptEvent::Ended(ending), &clock);
        let mut said = sent_bodies(&mut held).into_iter();
        let last = said.next_back();
        assert!(
            matches!(&last, Some(Body::Error(error)) if error.failure_code == code),
            "{last:?}"
        );
    }
}
