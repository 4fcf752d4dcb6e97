//! A reader that is stopped anywhere and restored from what was stored reports the same events
//! as one that was not.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> BootTime {
    BootTime::from_millis(millis)
}

/// What a supervisor would have stored.
#[derive(Default)]
struct StoredEvents {
    position: u64,
    keep_from: u64,
    snapshot: Option<FoldSnapshot>,
    phases: Vec<OneTimePhase>,
    output: Vec<(ChildPipe, u8)>,
}

impl StoredEvents {
    fn take(&mut self, event: AttemptEvent) {
        let progress = match event {
            AttemptEvent::PhaseEntered {
                phase, progress, ..
            } => {
                self.phases.push(phase);
                progress
            }
            AttemptEvent::Output { chunk, progress } => {
                let kind = match chunk.label.is_stderr() {
                    true => ChildPipe::Stderr,
                    false => ChildPipe::Stdout,
                };
                self.output
                    .extend(chunk.bytes.iter().map(|byte| (kind, *byte)));
                progress
            }
            other => panic!("unexpected event {other:?}"),
        };
        assert!(progress.position >= self.position && progress.retain_from >= self.keep_from);
        self.position = progress.position;
        self.keep_from = progress.retain_from;
        self.snapshot = progress.snapshot.or(self.snapshot.take());
    }
}

type PipePiece = (ChildPipe, Vec<u8>);

/// The transcript from `from` on, as the spool returns it.
fn from_position(transcript: &[PipePiece], from: u64) -> Vec<(ChildPipe, u64, Vec<u8>)> {
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

fn restored(stored: &StoredEvents, transcript: &[PipePiece]) -> TranscriptReader {
    let snapshot = stored.snapshot.clone().unwrap_or_default();
    let mut reader =
        TranscriptReader::restore(DeadlineLimits::default(), &snapshot, stored.position, at(9));
    let oldest = snapshot.position.max(stored.keep_from.min(stored.position));
    for (kind, position, bytes) in from_position(transcript, oldest) {
        if position < stored.position {
            let known = usize::try_from(stored.position - position).unwrap();
            reader.replay(kind, position, &bytes[..known.min(bytes.len())]);
        }
    }
    reader
}

fn pieces() -> impl Strategy<Value = Vec<PipePiece>> {
    let kind = prop_oneof![Just(ChildPipe::Stdout), Just(ChildPipe::Stderr)];
    let piece = (kind, 1usize..90_000).prop_map(|(kind, length)| (kind, length));
    prop::collection::vec(piece, 1..12).prop_map(|pieces| {
        let number = |(index, (kind, length)): (usize, (ChildPipe, usize))| {
            let bytes = (0..length).map(|n| (index * 31 + n) as u8).collect();
            (kind, bytes)
        };
        pieces.into_iter().enumerate().map(number).collect()
    })
}

proptest! {
    #[test]
    fn a_restored_reader_reports_the_rest_once(
        transcript in pieces(),
        deaths in prop::collection::vec(0usize..60, 0..6),
    ) {
        let mut stored = StoredEvents::default();
        let mut reader = TranscriptReader::new(DeadlineLimits::default());
        reader.enter_phase(OneTimePhase::Started, None, at(1));
        reader.enter_phase(OneTimePhase::AgentStarted, Some(7), at(2));
        let mut deaths = deaths.into_iter();
        'lives: loop {
            let mut left = deaths.next();
            for (kind, _, bytes) in from_position(&transcript, stored.position) {
                reader.push(kind, &bytes, at(10));
                while let Some(event) = reader.next_event(at(10)) {
                    if left == Some(0) {
                        reader = restored(&stored, &transcript);
                        continue 'lives;
                    }
                    left = left.map(|left| left - 1);
                    stored.take(event);
                }
            }
            reader.close(MissingOutput::default());
            while let Some(event) = reader.next_event(at(10)) {
                stored.take(event);
            }
            break;
        }
        let whole: Vec<(ChildPipe, u8)> = transcript
            .iter()
            .flat_map(|(kind, bytes)| bytes.iter().map(|byte| (*kind, *byte)))
            .collect();
        prop_assert!(stored.output == whole, "output has a gap or a duplicate");
        let mut once = stored.phases.clone();
        once.dedup();
        prop_assert_eq!(&once, &stored.phases);
        let errors: Vec<u8> = whole
            .iter()
            .filter(|(kind, _)| *kind == ChildPipe::Stderr)
            .map(|(_, byte)| *byte)
            .collect();
        let tail = &errors[errors.len().saturating_sub(16 * 1024)..];
        prop_assert!(reader.stderr_tail.bytes() == tail, "the tail of stderr is not the same");
    }
}

#[test]
fn after_a_restart_hard_deadlines_go_on_and_idle_time_starts_again() {
    let second = Duration::from_secs(1);
    let deadlines = DeadlineLimits {
        total: Some(second * 10),
        stream_idle: Some(second),
        ..DeadlineLimits::default()
    };
    let mut reader = TranscriptReader::new(deadlines);
    reader.enter_phase(OneTimePhase::Started, None, at(1_000));
    reader.push(ChildPipe::Stdout, b"x", at(2_000));
    let mut stored = StoredEvents::default();
    while let Some(event) = reader.next_event(at(2_100)) {
        stored.take(event);
    }
    let snapshot = stored.snapshot.unwrap();
    let reader = TranscriptReader::restore(deadlines, &snapshot, stored.position, at(9_500));
    assert_eq!(reader.expired_deadline(at(10_499)), None);
    assert_eq!(
        reader.expired_deadline(at(10_500)),
        Some(DeadlineKind::StreamIdle)
    );
    let late = TranscriptReader::restore(deadlines, &snapshot, stored.position, at(10_900));
    assert_eq!(late.expired_deadline(at(11_000)), Some(DeadlineKind::Total));
    assert!(late.has_reached(OneTimePhase::FirstVisibleEventSeen));
}

#[test]
fn output_alone_needs_no_snapshot() {
    let mut reader = TranscriptReader::new(DeadlineLimits::default());
    reader.enter_phase(OneTimePhase::Streaming, None, at(0));
    reader.next_event(at(0));
    for round in 1..=40_u64 {
        reader.push(ChildPipe::Stdout, &[b'x'; 64 * 1024], at(round));
        let Some(AttemptEvent::Output { progress, .. }) = reader.next_event(at(round)) else {
            panic!("a full chunk is due")
        };
        assert_eq!(progress.retain_from, round * 64 * 1024);
        assert_eq!(progress.snapshot, None);
    }
    reader.push(ChildPipe::Stderr, &[b'e'; 5_000], at(50));
    reader.push(ChildPipe::Stdout, &[b'x'; 64 * 1024], at(50));
    let keep = |event: Option<AttemptEvent>| match event {
        Some(AttemptEvent::Output { progress, .. }) => (progress.position, progress.retain_from),
        other => panic!("{other:?}"),
    };
    let before = 40 * 64 * 1024;
    assert_eq!(keep(reader.next_event(at(50))), (before + 5_000, before));
    assert_eq!(keep(reader.next_event(at(50))), (before + 70_536, before));
}

#[test]
fn missing_output_is_reported_with_its_reason() {
    for (missing, cut) in [
        (MissingOutput::Bytes(0), None),
        (
            MissingOutput::Bytes(7),
            Some((7, OutputCutReason::WorkerCrash)),
        ),
        (
            MissingOutput::Refused(7),
            Some((7, OutputCutReason::DiskFull)),
        ),
        (
            MissingOutput::Unknown,
            Some((1, OutputCutReason::RecorderLost)),
        ),
    ] {
        let mut reader = TranscriptReader::new(DeadlineLimits::default());
        reader.close(missing);
        let event = reader.next_event(at(1)).map(|event| match event {
            AttemptEvent::OutputMissing { length, why, .. } => (length, why),
            other => panic!("{other:?}"),
        });
        assert_eq!(event, cut, "{missing:?}");
        assert!(reader.next_event(at(1)).is_none());
    }
}
