//! Questions that end together, and what a decision allows.

use super::*;
use crate::agents::{Question, test_talk};

fn question(talk: &mut Talk) -> Vec<String> {
    let asked = |text: &str| Question {
        text: text.to_owned(),
        allow_free_text: true,
        ..Question::default()
    };
    let input = Input {
        key: InputKey("q".to_owned()),
        tool_call_id: None,
        ask: Ask::Questions(vec![asked("This?"), asked("That?")]),
    };
    let mut told = Vec::new();
    talk.ask(&input, &mut told);
    let ids = told.iter().map(|told| match told {
        Told::Said(Said::Question(question)) => question.input_id.clone(),
        other => panic!("{other:?}"),
    });
    ids.collect()
}

#[test]
fn of_questions_that_end_together_only_the_answered_ones_are_received() {
    let mut talk = test_talk();
    let ids = question(&mut talk);
    talk.hear(&ids[0]).expect("it is open");
    let mut told = Vec::new();
    let key = InputKey("q".to_owned());
    talk.take(AgentEvent::InputAnswered { key }, &mut told);
    let mut said: Vec<Said> = told
        .into_iter()
        .map(|told| match told {
            Told::Said(said) => said,
            other => panic!("{other:?}"),
        })
        .collect();
    said.sort_by_key(|said| matches!(said, Said::InputWithdrawn { .. }));
    assert!(matches!(&said[0], Said::InputReceived { input_id } if *input_id == ids[0]));
    assert!(matches!(&said[1], Said::InputWithdrawn { input_id, .. } if *input_id == ids[1]));
    assert_eq!(talk.open_inputs(), 0);
}

#[test]
fn only_a_decision_about_the_very_arguments_allows_anything() {
    let open = OpenInput {
        key: InputKey("p".to_owned()),
        index: 0,
        digest: Some([7; 32]),
        answered: true,
    };
    let allow = |digest: &[u8]| PermissionDecision {
        outcome: InputOutcome::Allowed.into(),
        tool_input_sha256: Bytes::copy_from_slice(digest),
        ..PermissionDecision::default()
    };
    let allowed = |digest: &[u8]| matches!(decided(&allow(digest), &open), Answer::Allow { .. });
    assert!(allowed(&[7; 32]));
    for other in [&[][..], &[7; 31], &[8; 32]] {
        assert!(!allowed(other), "{other:?}");
    }
}
