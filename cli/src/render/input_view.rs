//! Inputs as lines for people. Everything that an answer is bound to is shown completely: characters
//! that a terminal would hide or interpret are escaped.

use baton_proto::v1::input::Body;
use baton_proto::v1::{Input, InputState, PermissionRequest, PermissionRule, Question};
use baton_proto::{ShortName, v1::PermissionEffect};

use crate::args::duration;
use crate::render::sanitizer::{escape_unprintable, one_line};
use crate::render::style::{TextStyle, TextTone};
use crate::render::task_view::{age, time_of_day, unix_ms};

/// One input in full, with the command that answers it.
pub(crate) fn input_lines(input: &Input, now_ms: u64, style: TextStyle) -> Vec<String> {
    let mut lines = vec![header_line(input, now_ms, style)];
    match &input.body {
        Some(Body::Permission(asked)) => push_permission_lines(asked, &mut lines),
        Some(Body::Question(asked)) => push_question_lines(asked, &mut lines),
        None => {}
    }
    if input.state() == InputState::Open {
        lines.push(format!("  answer with:  {}", answer_command(input)));
    } else {
        lines.push(format!("  {}", outcome_text(input)));
    }
    lines
}

fn header_line(input: &Input, now_ms: u64, style: TextStyle) -> String {
    let what = match &input.body {
        Some(Body::Permission(asked)) => format!("permission for {}", one_line(&asked.tool_name)),
        Some(Body::Question(_)) => "question".to_owned(),
        None => "input of an unknown kind".to_owned(),
    };
    let what = style.paint(TextTone::Caution, &what);
    let mut words = vec![
        input.input_id.clone(),
        what,
        format!("asked {} ago", age(input.asked_at.as_ref(), now_ms)),
    ];
    if let Some(ends) = &input.expires_at {
        let left = unix_ms(ends).saturating_sub(now_ms);
        words.push(format!("{} left", duration::format_short(left)));
    }
    words.push(format!("task {}", input.task_id));
    if !input.goal.is_empty() {
        words.push(format!("({})", one_line(&input.goal)));
    }
    words.join("  ")
}

fn push_permission_lines(asked: &PermissionRequest, lines: &mut Vec<String>) {
    let arguments = escape_unprintable(&asked.tool_input);
    lines.extend(arguments.lines().map(|line| format!("    {line}")));
    if !asked.description.is_empty() {
        lines.push(format!("  description:  {}", one_line(&asked.description)));
    }
}

fn push_question_lines(asked: &Question, lines: &mut Vec<String>) {
    let question = escape_unprintable(asked.question.as_bytes());
    lines.extend(question.lines().map(|line| format!("    {line}")));
    for (number, option) in (1..).zip(&asked.options) {
        let mut line = format!("    {number}. {}", one_line(&option.label));
        if !option.description.is_empty() {
            line += &format!(" - {}", one_line(&option.description));
        }
        lines.push(line);
    }
    if asked.group_size > 1 {
        let size = asked.group_size;
        lines.push(format!("  one of {size} questions that belong together"));
    }
}

/// The command that answers the input.
pub(crate) fn answer_command(input: &Input) -> String {
    let flags = match &input.body {
        Some(Body::Permission(asked)) if asked.can_allow_for_attempt => {
            "--allow [--for-attempt] | --deny [--message TEXT]"
        }
        Some(Body::Permission(_)) => "--allow | --deny [--message TEXT]",
        Some(Body::Question(asked)) => match (asked.options.is_empty(), asked.multi_select) {
            (true, _) => "--text TEXT",
            (false, true) => "--option N [--option N …]",
            (false, false) => "--option N",
        },
        None => "",
    };
    format!("baton answer {} {flags}", input.input_id)
}

/// The outcome of an input: the answer, who gave it and when.
pub(crate) fn outcome_text(input: &Input) -> String {
    let mut words = vec![input.outcome().short_name().to_owned()];
    if let Some(rule) = &input.rule {
        words.push(format!("by a rule of the task: {}", rule_text(rule)));
    } else if !input.answered_by.is_empty() {
        words.push(format!("by {}", one_line(&input.answered_by)));
    }
    if input.answered_at.is_some() {
        words.push(format!("at {}", time_of_day(input.answered_at.as_ref())));
    }
    let answer = input.labels.iter().chain([&input.text]);
    let answer = answer
        .filter(|text| !text.is_empty())
        .map(|text| one_line(text));
    let answer = answer.collect::<Vec<_>>().join(", ");
    if !answer.is_empty() {
        words.push(format!("({answer})"));
    }
    words.join(" ")
}

fn rule_text(rule: &PermissionRule) -> String {
    let effect = PermissionEffect::try_from(rule.effect).unwrap_or_default();
    let rule = match rule.pattern.as_str() {
        "" => format!("{} {}", effect.short_name(), rule.tool),
        pattern => format!("{} {}:{pattern}", effect.short_name(), rule.tool),
    };
    one_line(&rule)
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::QuestionOption;

    use super::*;

    fn shown(body: Body) -> String {
        let input = Input {
            input_id: "i".to_owned(),
            state: InputState::Open.into(),
            body: Some(body),
            ..Input::default()
        };
        input_lines(&input, 0, TextStyle::none()).join("\n")
    }

    #[test]
    fn characters_that_a_terminal_would_hide_are_escaped() {
        let asked = PermissionRequest {
            tool_name: "Ba\u{1b}[8msh".to_owned(),
            tool_input: b"ls \x1b[8mrm -r .\x1b[0m \xe2\x80\xae \xff"
                .to_vec()
                .into(),
            ..PermissionRequest::default()
        };
        let shown = shown(Body::Permission(asked));
        assert!(
            !shown.contains('\u{1b}') && !shown.contains('\u{202e}'),
            "{shown}"
        );
        assert!(
            shown.contains(r"ls \u{1b}[8mrm -r .\u{1b}[0m \u{202e} \xff"),
            "{shown}"
        );
        assert!(shown.contains("permission for Bash"), "{shown}");
        assert!(shown.contains("baton answer i --allow"), "{shown}");
    }

    #[test]
    fn a_question_shows_its_options_by_number() {
        let option = |label: &str| QuestionOption {
            label: label.to_owned(),
            ..QuestionOption::default()
        };
        let asked = Question {
            question: "Which?\nSay.".to_owned(),
            options: vec![option("this"), option("that")],
            multi_select: true,
            ..Question::default()
        };
        let shown = shown(Body::Question(asked));
        assert!(shown.contains("    1. this\n    2. that"), "{shown}");
        assert!(shown.contains("--option N [--option N …]"), "{shown}");
    }

    #[test]
    fn an_outcome_names_the_rule_that_decided_it() {
        let input = Input {
            outcome: baton_proto::v1::InputOutcome::Denied.into(),
            answered_by: "rule:1".to_owned(),
            rule: Some(PermissionRule {
                effect: PermissionEffect::Deny.into(),
                tool: "Bash".to_owned(),
                pattern: "*rm *".to_owned(),
            }),
            ..Input::default()
        };
        assert_eq!(
            outcome_text(&input),
            "denied by a rule of the task: deny Bash:*rm *"
        );
    }
}
