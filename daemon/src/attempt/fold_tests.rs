//! A fold that is stopped anywhere and restored from what was stored tells the same story as one that was not.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// What a supervisor would have stored.
#[derive(Default)]
struct Stored {
    position: u64,
    keep_from: u64,
    snapshot: Option<FoldSnapshot>,
    phases: Vec<OncePhase>,
    output: Vec<(OutputKind, u8)>,
}

impl Stored {
    fn take(&mut self, event: AttemptEvent) {
        let progress = match event {
            AttemptEvent::Entered {
                phase, progress, ..
            } => {
                self.phases.push(phase);
                progress
            }
            AttemptEvent::Output { chunk, progress } => {
                let kind = match chunk.label.is_stderr() {
                    true => OutputKind::Stderr,
                    false => OutputKind::Stdout,
                };
                self.output
                    .extend(chunk.bytes.iter().map(|byte| (kind, *byte)));
                progress
            }
            other => panic!("a fold does not say {other:?}"),
        };
        assert!(progress.position >= self.position && progress.keep_from >= self.keep_from);
        self.position = progress.position;
        self.keep_from = progress.keep_from;
        self.snapshot = progress.snapshot.or(self.snapshot.take());
    }
}

type Piece = (OutputKind, Vec<u8>);

/// The transcript from `from` on, as a reader gives it.
fn from_position(transcript: &[Piece], from: u64) -> Vec<(OutputKind, u64, Vec<u8>)> {
    let mut at = 0;
    let mut found = Vec::new();
    for (kind, bytes) in transcript {
        let end = at + bytes.len() as u64;
        if end > from {
            let skip = usize::try_from(from.saturating_sub(at)).unwrap();
            found.push((*kind, at.max(from), bytes[skip..].to_vec()));
        }
        at = end;
    }
    found
}

fn restored(stored: &Stored, transcript: &[Piece]) -> Fold {
    let snapshot = stored.snapshot.clone().unwrap_or_default();
    let mut fold = Fold::restore(Deadlines::default(), &snapshot, stored.position, at(9));
    let oldest = snapshot.position.max(stored.keep_from.min(stored.position));
    for (kind, position, bytes) in from_position(transcript, oldest) {
        if position < stored.position {
            let known = usize::try_from(stored.position - position).unwrap();
            fold.recall(kind, position, &bytes[..known.min(bytes.len())]);
        }
    }
    fold
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let kind = prop_oneof![Just(OutputKind::Stdout), Just(OutputKind::Stderr)];
    let piece = (kind, 1usize..90_000).prop_map(|(kind, length)| (kind, length));
    prop::collection::vec(piece, 1..12).prop_map(|pieces| {
        let number = |(index, (kind, length)): (usize, (OutputKind, usize))| {
            let bytes = (0..length).map(|n| (index * 31 + n) as u8).collect();
            (kind, bytes)
        };
        pieces.into_iter().enumerate().map(number).collect()
    })
}

proptest! {
    #[test]
    fn a_restored_fold_tells_the_rest_once_and_knows_the_same_tail(
        transcript in pieces(),
        deaths in prop::collection::vec(0usize..60, 0..6),
    ) {
        let mut stored = Stored::default();
        let mut fold = Fold::new(Deadlines::default());
        fold.enter(OncePhase::Started, None, at(1));
        fold.enter(OncePhase::AgentStarted, Some(7), at(2));
        let mut deaths = deaths.into_iter();
        'lives: loop {
            let mut left = deaths.next();
            for (kind, _, bytes) in from_position(&transcript, stored.position) {
                fold.take_in(kind, &bytes, at(10));
                while let Some(event) = fold.next(at(10)) {
                    if left == Some(0) {
                        fold = restored(&stored, &transcript);
                        continue 'lives;
                    }
                    left = left.map(|left| left - 1);
                    stored.take(event);
                }
            }
            fold.close(Missing::default());
            while let Some(event) = fold.next(at(10)) {
                stored.take(event);
            }
            break;
        }
        let whole: Vec<(OutputKind, u8)> = transcript
            .iter()
            .flat_map(|(kind, bytes)| bytes.iter().map(|byte| (*kind, *byte)))
            .collect();
        prop_assert!(stored.output == whole, "output has a gap or a duplicate");
        let mut once = stored.phases.clone();
        once.dedup();
        prop_assert_eq!(&once, &stored.phases);
        let errors: Vec<u8> = whole
            .iter()
            .filter(|(kind, _)| *kind == OutputKind::Stderr)
            .map(|(_, byte)| *byte)
            .collect();
        let tail = &errors[errors.len().saturating_sub(16 * 1024)..];
        prop_assert!(fold.tail.bytes() == tail, "the tail of stderr is not the same");
    }
}

#[test]
fn hard_deadlines_go_on_after_a_restart_and_idle_time_counts_anew() {
    let second = Duration::from_secs(1);
    let deadlines = Deadlines {
        total: Some(second * 10),
        stream_idle: Some(second),
        ..Deadlines::default()
    };
    let mut fold = Fold::new(deadlines);
    fold.enter(OncePhase::Started, None, at(1_000));
    fold.take_in(OutputKind::Stdout, b"x", at(2_000));
    let mut stored = Stored::default();
    while let Some(event) = fold.next(at(2_100)) {
        stored.take(event);
    }
    let snapshot = stored.snapshot.unwrap();
    let fold = Fold::restore(deadlines, &snapshot, stored.position, at(9_500));
    assert_eq!(fold.expired(at(10_499)), None);
    assert_eq!(fold.expired(at(10_500)), Some(DeadlineKind::StreamIdle));
    let late = Fold::restore(deadlines, &snapshot, stored.position, at(10_900));
    assert_eq!(late.expired(at(11_000)), Some(DeadlineKind::Total));
    assert!(late.reached(OncePhase::FirstVisibleEventSeen));
}

#[test]
fn output_alone_needs_no_snapshot_and_lets_the_shim_forget_at_once() {
    let mut fold = Fold::new(Deadlines::default());
    fold.enter(OncePhase::Streaming, None, at(0));
    fold.next(at(0));
    for round in 1..=40_u64 {
        fold.take_in(OutputKind::Stdout, &[b'x'; 64 * 1024], at(round));
        let Some(AttemptEvent::Output { progress, .. }) = fold.next(at(round)) else {
            panic!("a full chunk is due")
        };
        assert_eq!(progress.keep_from, round * 64 * 1024);
        assert_eq!(progress.snapshot, None);
    }
    fold.take_in(OutputKind::Stderr, &[b'e'; 5_000], at(50));
    fold.take_in(OutputKind::Stdout, &[b'x'; 64 * 1024], at(50));
    let keep = |event: Option<AttemptEvent>| match event {
        Some(AttemptEvent::Output { progress, .. }) => (progress.position, progress.keep_from),
        other => panic!("{other:?}"),
    };
    let before = 40 * 64 * 1024;
    assert_eq!(keep(fold.next(at(50))), (before + 5_000, before));
    assert_eq!(keep(fold.next(at(50))), (before + 70_536, before));
}

#[test]
fn what_never_came_is_said_with_its_reason_and_moves_what_follows() {
    for (missing, cut) in [
        (Missing::Bytes(0), None),
        (Missing::Bytes(7), Some((7, CutWhy::WorkerCrash))),
        (Missing::Refused(7), Some((7, CutWhy::DiskFull))),
        (Missing::Unknown, Some((1, CutWhy::RecorderLost))),
    ] {
        let mut fold = Fold::new(Deadlines::default());
        fold.close(missing);
        let said = fold.next(at(1)).map(|event| match event {
            AttemptEvent::Missed { length, why, .. } => (length, why),
            other => panic!("{other:?}"),
        });
        assert_eq!(said, cut, "{missing:?}");
        assert!(fold.next(at(1)).is_none());
    }
}
