//! A running attempt: how it is paused while frames are unacknowledged, and what is left of its
//! frames when it is fenced.

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

/// An attempt whose agent has tools.
fn running(clock: &Clock) -> (SupervisedAttempt, AttemptControlReceiver) {
    let (id, mut offer) = sample_dispatch();
    offer.plan.tools = Some(ToolGrant {
        hash: Capability::generate(&id.to_string()).hash(),
        goal: String::new(),
        success_criteria: Vec::new(),
        resume: None,
    });
    let mut attempt = SupervisedAttempt::accept(offer, clock);
    store_all(&mut attempt);
    let start = attempt.confirm_lease(None, Duration::from_secs(600), clock);
    (attempt, start.expect("it is stored").control)
}

fn store_all(attempt: &mut SupervisedAttempt) {
    let handed = take_disk_jobs(attempt);
    mark_stored(attempt, &handed);
}

fn push_question(attempt: &mut SupervisedAttempt, clock: &Clock) {
    let question = Question {
        question: "?".repeat(1024 * 1024),
        ..Question::default()
    };
    let notice = AgentNotice::Question(question);
    let progress = EventProgress::default();
    attempt.on_event(AttemptEvent::AgentNotice { notice, progress }, clock);
    store_all(attempt);
}

#[test]
fn a_child_with_too_many_unacked_frames_is_paused() {
    for connected in [false, true] {
        let clock = clock();
        let (mut attempt, control) = running(&clock);
        let is_paused = |attempt: &mut SupervisedAttempt| {
            attempt.update_backpressure(connected);
            control.orders().output_paused
        };
        let mut questions = 0;
        while attempt.has_frame_room() {
            assert!(!is_paused(&mut attempt), "after {questions}");
            push_question(&mut attempt, &clock);
            questions += 1;
        }
        assert!(
            is_paused(&mut attempt) && questions < 10,
            "after {questions}"
        );
        let half = AckedPosition {
            control_seq: attempt.outbox.queue().last_control_seq() / 2,
            output_offset: 0,
        };
        attempt.outbox.queue_mut().ack(half);
        assert!(
            attempt.has_frame_room() && is_paused(&mut attempt),
            "not for a single ack"
        );
        attempt.outbox.queue_mut().discard_unacked();
        assert!(!is_paused(&mut attempt));
    }
}

fn call_tool(attempt: &mut SupervisedAttempt, clock: &Clock) -> oneshot::Receiver<ToolAnswer> {
    let (reply, answer) = oneshot::channel();
    attempt.push_tool_frame(Body::Progress(Default::default()), reply, clock);
    answer
}

#[test]
fn a_tool_call_of_a_fenced_attempt_gets_no_confirmation() {
    let clock = clock();
    let (mut attempt, _bits) = running(&clock);
    let mut answer = call_tool(&mut attempt, &clock);
    attempt.fence(&clock);
    // As an acknowledgement of the receipt would.
    attempt.on_acked();
    attempt.answer_waiting_calls();
    let gone = answer.try_recv();
    assert_eq!(gone, Err(oneshot::error::TryRecvError::Closed));
}

#[test]
fn an_oversized_frame_is_not_reported_as_a_full_disk() {
    let clock = clock();
    let ends = [
        (StopReason::DiskFull, "worker_disk_full"),
        (StopReason::TooLong, "output_invalid"),
    ];
    for (why, code) in ends {
        let (mut attempt, _bits) = running(&clock);
        assert_eq!(attempt.on_disk_failed(why, &clock), None);
        let ending = AttemptEnding {
            cause: EndCause::Stopped,
            ..AttemptEnding::daemon_fault(TerminationOutcome::default())
        };
        attempt.on_event(AttemptEvent::Ended(ending), &clock);
        let mut notice = sent_bodies(&mut attempt).into_iter();
        let last = notice.next_back();
        assert!(
            matches!(&last, Some(Body::Error(error)) if error.failure_code == code),
            "{last:?}"
        );
    }
}
