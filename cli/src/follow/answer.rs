//! Builds the answer to an input from the flags of `answer` or from a typed line. Pure; the input
//! decides which answers are valid.

use baton_proto::v1::answer_request::Answer;
use baton_proto::v1::input::Body;
use baton_proto::v1::{
    AnswerRequest, Input, PermissionReply, PermissionScope, Question, QuestionReply,
};

use crate::error::cli_error::CliError;

/// An answer before it is matched with its input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerContent {
    /// The decision about a permission request.
    pub allow: Option<bool>,
    pub for_attempt: bool,
    pub message: String,
    /// Labels or numbers of options.
    pub options: Vec<String>,
    pub text: Option<String>,
}

/// Builds the request. It carries the digest of the tool input that was shown, so that the answer is
/// valid for nothing else.
pub(crate) fn build_answer_request(
    input: &Input,
    content: AnswerContent,
) -> Result<AnswerRequest, CliError> {
    let (answer, digest) = match &input.body {
        Some(Body::Permission(asked)) => {
            let reply = permission_reply(content)?;
            (Answer::Permission(reply), asked.tool_input_sha256.clone())
        }
        Some(Body::Question(asked)) => {
            let reply = question_reply(asked, content)?;
            (Answer::Question(reply), Default::default())
        }
        None => {
            return Err(CliError::usage(
                "this version of baton does not support this kind of input",
                "use a newer version of baton",
            ));
        }
    };
    Ok(AnswerRequest {
        task_id: input.task_id.clone(),
        input_id: input.input_id.clone(),
        attempt_id: input.attempt_id.clone(),
        tool_input_sha256: digest,
        answer: Some(answer),
    })
}

fn permission_reply(content: AnswerContent) -> Result<PermissionReply, CliError> {
    let Some(allow) = content.allow else {
        return Err(CliError::usage(
            "a permission request can only be allowed or denied",
            "use --allow or --deny",
        ));
    };
    let scope = if content.for_attempt {
        PermissionScope::Attempt
    } else {
        PermissionScope::Once
    };
    Ok(PermissionReply {
        allow,
        scope: scope.into(),
        message: content.message,
    })
}

fn question_reply(asked: &Question, content: AnswerContent) -> Result<QuestionReply, CliError> {
    if content.allow.is_some() {
        return Err(CliError::usage(
            "this is a question, not a permission request",
            "answer with --option or --text",
        ));
    }
    let labels = content
        .options
        .iter()
        .map(|option| resolve_option_label(asked, option));
    Ok(QuestionReply {
        labels: labels.collect::<Result<_, _>>()?,
        text: content.text.unwrap_or_default(),
    })
}

/// Finds an option by its label, else by its number, else by the only label that differs in case.
fn resolve_option_label(asked: &Question, given: &str) -> Result<String, CliError> {
    let labels = || asked.options.iter().map(|option| &option.label);
    if labels().any(|label| label == given) {
        return Ok(given.to_owned());
    }
    let index = given.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
    let numbered = index.and_then(|index| labels().nth(index));
    let lower = given.to_lowercase();
    let mut in_any_case = labels().filter(|label| label.to_lowercase() == lower);
    let in_any_case = in_any_case.next().filter(|_| in_any_case.next().is_none());
    numbered.or(in_any_case).cloned().ok_or_else(|| {
        let numbers = (1..).zip(labels());
        let offered: Vec<String> = numbers.map(|(n, label)| format!("{n} {label}")).collect();
        let hint = match offered.as_slice() {
            [] => "the question has no options; answer with --text".to_owned(),
            offered => format!("choose by label or number: {}", offered.join(", ")),
        };
        CliError::usage(format!("the question has no option {given:?}"), hint)
    })
}

/// The prompt for a person at the terminal.
pub(crate) fn prompt_text(input: &Input) -> &'static str {
    match &input.body {
        Some(Body::Permission(asked)) if asked.can_allow_for_attempt => {
            "allow? [y]es once, [a]lways in this attempt, [n]o, or Enter to leave it open: "
        }
        Some(Body::Permission(_)) => "allow? [y]es, [n]o, or Enter to leave it open: ",
        Some(Body::Question(asked)) if asked.options.is_empty() => {
            "answer, or Enter to leave it open: "
        }
        Some(Body::Question(asked)) if asked.multi_select => "numbers, or Enter to leave it open: ",
        Some(Body::Question(_)) => "number, or Enter to leave it open: ",
        None => "",
    }
}

/// Parses a typed line; `None` leaves the input open.
pub(crate) fn parse_typed_answer(
    input: &Input,
    line: &str,
) -> Result<Option<AnswerContent>, CliError> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(None);
    }
    let unclear = || {
        CliError::usage(
            format!("{line:?} is not a valid answer"),
            "type one of the answers in the prompt",
        )
    };
    let content = match &input.body {
        Some(Body::Permission(asked)) => match line.to_lowercase().as_str() {
            "y" | "yes" => AnswerContent {
                allow: Some(true),
                ..AnswerContent::default()
            },
            "a" | "always" if asked.can_allow_for_attempt => AnswerContent {
                allow: Some(true),
                for_attempt: true,
                ..AnswerContent::default()
            },
            "n" | "no" => AnswerContent {
                allow: Some(false),
                ..AnswerContent::default()
            },
            _ => return Err(unclear()),
        },
        Some(Body::Question(asked)) => parse_question_answer(asked, line),
        None => return Err(unclear()),
    };
    Ok(Some(content))
}

/// Numbers or labels choose options; any other text is a free answer.
fn parse_question_answer(asked: &Question, line: &str) -> AnswerContent {
    let options: Vec<String> = line
        .split([',', ' '])
        .filter(|option| !option.is_empty())
        .map(str::to_owned)
        .collect();
    let known = options
        .iter()
        .all(|option| resolve_option_label(asked, option).is_ok());
    let labelled = resolve_option_label(asked, line).is_ok();
    if labelled || (known && !asked.options.is_empty()) {
        AnswerContent {
            options: if labelled {
                vec![line.to_owned()]
            } else {
                options
            },
            ..AnswerContent::default()
        }
    } else {
        AnswerContent {
            text: Some(line.to_owned()),
            ..AnswerContent::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::{PermissionRequest, QuestionOption};

    use super::*;

    fn permission(can_allow_for_attempt: bool) -> Input {
        let asked = PermissionRequest {
            tool_input_sha256: vec![7; 32].into(),
            can_allow_for_attempt,
            ..PermissionRequest::default()
        };
        Input {
            input_id: "i".to_owned(),
            attempt_id: "a".to_owned(),
            body: Some(Body::Permission(asked)),
            ..Input::default()
        }
    }

    fn question(labels: &[&str]) -> Input {
        let option = |label: &&str| QuestionOption {
            label: (*label).to_owned(),
            ..QuestionOption::default()
        };
        let asked = Question {
            options: labels.iter().map(option).collect(),
            ..Question::default()
        };
        Input {
            body: Some(Body::Question(asked)),
            ..Input::default()
        }
    }

    fn label_of(labels: &[&str], given: &str) -> String {
        let Some(Body::Question(asked)) = question(labels).body else {
            panic!("a question");
        };
        resolve_option_label(&asked, given).unwrap_or_else(|refused| refused.to_string())
    }

    fn typed_answer(input: &Input, line: &str) -> Option<Answer> {
        let content = parse_typed_answer(input, line).unwrap()?;
        build_answer_request(input, content).unwrap().answer
    }

    #[test]
    fn an_answer_is_bound_to_the_attempt_and_the_shown_arguments() {
        let content = AnswerContent {
            allow: Some(true),
            ..AnswerContent::default()
        };
        let request = build_answer_request(&permission(false), content).unwrap();
        assert_eq!(request.tool_input_sha256, &[7; 32][..]);
        assert_eq!(request.attempt_id, "a");
    }

    #[test]
    fn a_typed_line_is_accepted_only_if_it_is_unambiguous() {
        let once = permission(false);
        let Some(Answer::Permission(yes)) = typed_answer(&once, " Y ") else {
            panic!("a yes");
        };
        assert!(yes.allow && yes.scope() == PermissionScope::Once);
        let Some(Answer::Permission(always)) = typed_answer(&permission(true), "a") else {
            panic!("a yes");
        };
        assert_eq!(always.scope(), PermissionScope::Attempt);
        assert_eq!(typed_answer(&once, ""), None);
        for unclear in ["a", "ja", "yes please", "1"] {
            assert!(parse_typed_answer(&once, unclear).is_err(), "{unclear}");
        }
    }

    #[test]
    fn options_are_chosen_by_number_or_label_and_the_rest_is_text() {
        let asked = question(&["red", "2", "dark blue"]);
        let labels = |line: &str| match typed_answer(&asked, line) {
            Some(Answer::Question(reply)) => (reply.labels, reply.text),
            other => panic!("{other:?}"),
        };
        let texts = |list: &[&str]| {
            list.iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(labels("1, 3").0, texts(&["red", "dark blue"]));
        assert_eq!(
            labels("2").0,
            texts(&["2"]),
            "a label takes precedence over a number"
        );
        assert_eq!(labels("dark blue").0, texts(&["dark blue"]));
        assert_eq!(labels("Dark Blue").0, texts(&["dark blue"]));
        assert_eq!(labels("green").1, "green");
        let twice = label_of(&["Yes", "YES"], "yes");
        assert!(twice.contains("1 Yes, 2 YES"), "{twice}");
        let missing = AnswerContent {
            options: vec!["4".to_owned()],
            ..AnswerContent::default()
        };
        assert!(build_answer_request(&asked, missing).is_err());
        assert!(
            build_answer_request(
                &asked,
                AnswerContent {
                    allow: Some(true),
                    ..AnswerContent::default()
                }
            )
            .is_err()
        );
    }
}
