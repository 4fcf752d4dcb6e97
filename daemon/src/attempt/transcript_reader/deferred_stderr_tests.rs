//! Stderr that arrives inside a line of stdout.

use super::*;

/// An agent that has printed the beginning of a line of stdout.
fn within_a_line() -> (TranscriptReader, String) {
    let mut reader = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(test_agent_session()));
    for (kind, line) in LINES.iter().take(4) {
        reader.push(*kind, format!("{line}\n").as_bytes(), at(1));
    }
    told(&mut reader);
    let line = format!("{}\n", LINES[4].1);
    reader.push(ChildPipe::Stdout, &line.as_bytes()[..5], at(1));
    (reader, line)
}

fn told(reader: &mut TranscriptReader) -> Vec<AttemptEvent> {
    std::iter::from_fn(|| reader.next_event(at(3_000))).collect()
}

#[test]
fn stderr_beyond_the_limit_inside_a_line_is_cut_and_its_tail_kept() {
    let (mut reader, line) = within_a_line();
    reader.push(ChildPipe::Stderr, &vec![b'a'; MAX_DEFERRED_BYTES], at(1));
    reader.push(ChildPipe::Stderr, &vec![b'b'; MAX_DEFERRED_BYTES], at(1));
    reader.push(ChildPipe::Stderr, b"not logged in", at(1));
    reader.push(ChildPipe::Stdout, &line.as_bytes()[5..], at(2));
    let cut = |event: &AttemptEvent| match event {
        AttemptEvent::OutputMissing { length, why, .. } => Some((*length, *why)),
        _ => None,
    };
    let cuts: Vec<_> = told(&mut reader).iter().filter_map(cut).collect();
    let lost = MAX_DEFERRED_BYTES as u64 + "not logged in".len() as u64;
    assert_eq!(cuts, [(lost, OutputCutReason::Overflow)]);
    let tail = reader.stderr_tail();
    assert!(tail.ends_with("bbnot logged in") && !tail.contains('a'));
}

/// A daemon that is killed after the line is stored does not read it again.
#[test]
fn stderr_inside_a_line_is_reported_before_the_position_passes_it() {
    let (mut reader, line) = within_a_line();
    let start = reader.agent_output.line_end;
    reader.push(ChildPipe::Stderr, b"a warning", at(1));
    reader.push(ChildPipe::Stdout, &line.as_bytes()[5..], at(2));
    let events = told(&mut reader);
    let is_warning = |event: &AttemptEvent| match event {
        AttemptEvent::Output { chunk, .. } => chunk.label.is_stderr(),
        _ => false,
    };
    let warned = events.iter().position(is_warning);
    let passed = |event: &AttemptEvent| event.progress().is_some_and(|told| told.position > start);
    let moved = events.iter().position(passed);
    assert!(warned.is_some() && warned < moved, "{events:?}");
}

#[test]
fn stderr_inside_the_last_line_is_reported_without_a_known_exit() {
    for exit in [None, Some(crate::process::ChildExit::Unknown)] {
        let (mut reader, _) = within_a_line();
        let before = reader.stderr_tail();
        reader.push(ChildPipe::Stderr, b"not logged in", at(1));
        reader.on_exit(exit, at(2));
        reader.close(MissingOutput::Unknown);
        assert_eq!(
            told(&mut reader).len(),
            2,
            "the text, and that more may be missing"
        );
        assert_eq!(reader.stderr_tail(), before + "not logged in");
    }
}
