//! What comes on standard error in the middle of a line.

use super::*;

/// An agent that stands in the middle of a line of standard output.
fn within_a_line() -> (TranscriptReader, String) {
    let mut fold = TranscriptReader::new(DeadlineLimits::default())
        .with_agent_session(Box::new(test_agent_session()));
    for (kind, line) in LINES.iter().take(4) {
        fold.push(*kind, format!("{line}\n").as_bytes(), at(1));
    }
    told(&mut fold);
    let line = format!("{}\n", LINES[4].1);
    fold.push(ChildPipe::Stdout, &line.as_bytes()[..5], at(1));
    (fold, line)
}

fn told(fold: &mut TranscriptReader) -> Vec<AttemptEvent> {
    std::iter::from_fn(|| fold.next_event(at(3_000))).collect()
}

#[test]
fn stderr_beyond_the_limit_inside_a_line_is_cut_and_its_tail_kept() {
    let (mut fold, line) = within_a_line();
    fold.push(ChildPipe::Stderr, &vec![b'a'; MAX_DEFERRED_BYTES], at(1));
    fold.push(ChildPipe::Stderr, &vec![b'b'; MAX_DEFERRED_BYTES], at(1));
    fold.push(ChildPipe::Stderr, b"not logged in", at(1));
    fold.push(ChildPipe::Stdout, &line.as_bytes()[5..], at(2));
    let cut = |event: &AttemptEvent| match event {
        AttemptEvent::OutputMissing { length, why, .. } => Some((*length, *why)),
        _ => None,
    };
    let cuts: Vec<_> = told(&mut fold).iter().filter_map(cut).collect();
    let lost = MAX_DEFERRED_BYTES as u64 + "not logged in".len() as u64;
    assert_eq!(cuts, [(lost, OutputCutReason::Overflow)]);
    let tail = fold.stderr_tail();
    assert!(tail.ends_with("bbnot logged in") && !tail.contains('a'));
}

/// A daemon that is killed after the line is stored does not read it again.
#[test]
fn stderr_inside_a_line_is_reported_before_the_position_passes_it() {
    let (mut fold, line) = within_a_line();
    let begun = fold.agent_output.line_end;
    fold.push(ChildPipe::Stderr, b"a warning", at(1));
    fold.push(ChildPipe::Stdout, &line.as_bytes()[5..], at(2));
    let events = told(&mut fold);
    let is_warning = |event: &AttemptEvent| match event {
        AttemptEvent::Output { chunk, .. } => chunk.label.is_stderr(),
        _ => false,
    };
    let warned = events.iter().position(is_warning);
    let passed = |event: &AttemptEvent| event.progress().is_some_and(|told| told.position > begun);
    let moved = events.iter().position(passed);
    assert!(warned.is_some() && warned < moved, "{events:?}");
}

#[test]
fn stderr_inside_the_last_line_is_reported_without_a_known_exit() {
    for exit in [None, Some(crate::process::ChildExit::Unknown)] {
        let (mut fold, _) = within_a_line();
        let before = fold.stderr_tail();
        fold.push(ChildPipe::Stderr, b"not logged in", at(1));
        fold.on_exit(exit, at(2));
        fold.close(MissingOutput::Unknown);
        assert_eq!(
            told(&mut fold).len(),
            2,
            "the words, and that more may be missing"
        );
        assert_eq!(fold.stderr_tail(), before + "not logged in");
    }
}
