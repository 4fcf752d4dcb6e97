//! An attempt that runs: what it may say while nobody hears it, and what is left of its words when it is taken away.

use baton_proto::v1::Question;
use baton_proto::worker::ToolAnswer;
use tokio::sync::oneshot;

use super::place::tests::{jobs, offer, said, store};
use super::*;
use crate::attempt::{AttemptEvent, Cause, Ending, Progress, Said};
use crate::process::Cleared;
use crate::tools::{Capability, Granted};

fn clock() -> Clock {
    Clock::manual(Moment::from_millis(0))
}

/// One whose agent has tools.
fn running(clock: &Clock) -> (Held, Bits) {
    let (id, mut offer) = offer();
    offer.plan.tools = Some(Granted {
        hash: Capability::make(&id.to_string()).hash(),
        goal: String::new(),
        success_criteria: Vec::new(),
        resume: None,
    });
    let mut held = Held::accept(offer, clock);
    write_down(&mut held);
    let start = held.confirm(None, Duration::from_secs(600), clock);
    (held, start.expect("it is on the disk").bits)
}

fn write_down(held: &mut Held) {
    let handed = jobs(held);
    store(held, &handed);
}

fn ask(held: &mut Held, clock: &Clock) {
    let question = Question {
        question: "?".repeat(1024 * 1024),
        ..Question::default()
    };
    let said = Said::Question(question);
    let progress = Progress::default();
    held.on_event(AttemptEvent::Said { said, progress }, clock);
    write_down(held);
}

#[test]
fn a_child_whose_words_nobody_hears_is_held_back_with_a_relay_and_without() {
    for connected in [false, true] {
        let clock = clock();
        let (mut held, bits) = running(&clock);
        let is_held_back = |held: &mut Held| {
            held.balance(connected);
            *bits.hold_back.borrow()
        };
        let mut asked = 0;
        while held.has_room() {
            assert!(!is_held_back(&mut held), "after {asked}");
            ask(&mut held, &clock);
            asked += 1;
        }
        assert!(is_held_back(&mut held) && asked < 10, "after {asked}");
        let half = Acked {
            control_seq: held.outbox.last_control_seq() / 2,
            output_offset: 0,
        };
        held.outbox.ack(half);
        assert!(
            held.has_room() && is_held_back(&mut held),
            "not for every frame"
        );
        held.outbox.drop_unacked();
        assert!(!is_held_back(&mut held));
    }
}

fn tell(held: &mut Held, clock: &Clock) -> oneshot::Receiver<ToolAnswer> {
    let (reply, answer) = oneshot::channel();
    held.tell(Body::Progress(Default::default()), reply, clock);
    answer
}

#[test]
fn nobody_is_told_that_words_are_kept_that_were_thrown_away() {
    let clock = clock();
    let (mut held, _bits) = running(&clock);
    let mut answer = tell(&mut held, &clock);
    held.fence(&clock);
    // As an acknowledgement of the receipt would.
    held.on_told();
    held.stop_waiting();
    let gone = answer.try_recv();
    assert_eq!(gone, Err(oneshot::error::TryRecvError::Closed));
}

#[test]
fn what_no_disk_would_take_is_no_full_disk() {
    let clock = clock();
    let ends = [
        (StopWhy::DiskFull, "worker_disk_full"),
        (StopWhy::TooLong, "output_invalid"),
    ];
    for (why, code) in ends {
        let (mut held, _bits) = running(&clock);
        assert_eq!(held.on_disk_failed(why, &clock), None);
        let ending = Ending {
            cause: Cause::Stopped,
            ..Ending::broken(Cleared::default())
        };
        held.on_event(AttemptEvent::Ended(ending), &clock);
        let mut said = said(&mut held).into_iter();
        let last = said.next_back();
        assert!(
            matches!(&last, Some(Body::Error(error)) if error.failure_code == code),
            "{last:?}"
        );
    }
}
