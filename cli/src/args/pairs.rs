//! `KEY=VALUE` arguments: labels, placement rules, deadlines.

use std::time::Duration;

use baton_daemon::check_variable_name;

use crate::args::duration;

/// Splits at the first `=`; the value may be empty, the key may not.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) => Err("the part before = is empty; write KEY=VALUE".to_owned()),
        None => Err("the = is missing; write KEY=VALUE".to_owned()),
    }
}

/// An environment variable for agents. One that the daemon would drop is refused here.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = pair(text)?;
    check_variable_name(&name).map_err(|fault| fault.to_string())?;
    Ok((name, value))
}

/// The deadlines that a submission may set. The first eight form the profile; the last two do not
/// belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadlineName {
    ProcessStart,
    PromptWrite,
    FirstEvent,
    FirstVisibleEvent,
    StreamIdle,
    ToolIdle,
    UserInput,
    CleanupTerm,
    Queue,
    Total,
}

const DEADLINE_NAMES: [(&str, DeadlineName); 10] = [
    ("process_start", DeadlineName::ProcessStart),
    ("prompt_write", DeadlineName::PromptWrite),
    ("first_event", DeadlineName::FirstEvent),
    ("first_visible_event", DeadlineName::FirstVisibleEvent),
    ("stream_idle", DeadlineName::StreamIdle),
    ("tool_idle", DeadlineName::ToolIdle),
    ("user_input", DeadlineName::UserInput),
    ("cleanup_term", DeadlineName::CleanupTerm),
    ("queue", DeadlineName::Queue),
    ("total", DeadlineName::Total),
];

/// One `--deadline NAME=DURATION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedDeadline {
    pub name: DeadlineName,
    pub after: Duration,
}

pub(crate) fn deadline(text: &str) -> Result<NamedDeadline, String> {
    let (name, value) = pair(text)?;
    let known = DEADLINE_NAMES.iter().find(|(known, _)| *known == name);
    let Some(&(_, name)) = known else {
        let names = DEADLINE_NAMES.map(|(name, _)| name).join(", ");
        return Err(format!(
            "there is no deadline named {name}; the names are {names}"
        ));
    };
    let after = duration::parse(&value)?;
    Ok(NamedDeadline { name, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_split_at_the_first_equals_sign() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("a").is_err());
        assert!(pair("=b").is_err());
    }

    #[test]
    fn variables_that_a_daemon_would_drop_are_refused() {
        assert!(variable("A_1=x").is_ok());
        for bad in ["BATON_X=1", "TRACEPARENT=00", "9X=1", "A-B=1"] {
            assert!(variable(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_deadline_has_one_of_ten_names() {
        for (text, name) in DEADLINE_NAMES {
            let parsed = deadline(&format!("{text}=1500ms")).expect("known");
            assert_eq!(
                parsed,
                NamedDeadline {
                    name,
                    after: Duration::from_millis(1500)
                }
            );
        }
        let unknown = deadline("lease=5s").expect_err("lease has its own flag");
        assert!(unknown.contains("stream_idle"), "{unknown}");
        assert!(deadline("queue=5").is_err());
    }
}
