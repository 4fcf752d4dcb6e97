//! Ids as people type them: whole, or as much of the beginning as nothing else has. The relay takes whole ones only, so what
//! was begun is looked for in lists; a whole one is never looked for.

use baton_proto::v1::{Input, ListDaemonsRequest, ListTasksRequest, ListTokensRequest, Task};

use crate::client::relay_client::RelayClient;
use crate::commands::task::inbox;
use crate::error::cli_error::{CliError, ErrorText};
use crate::follow::task_follower;
use crate::render::sanitizer::one_line;

/// Digits of a whole id, with its dashes.
const ID_LENGTH: usize = 36;
/// Fewer digits are a typing mistake rather than an id: ids of one day share as many.
const MIN_PREFIX_DIGITS: usize = 4;
const PAGE_SIZE: u32 = 200;
/// Newest tasks among which one is looked for.
const MAX_TASKS_SEARCHED: usize = 10_000;
/// Candidates that are named.
const MAX_CANDIDATES_SHOWN: usize = 10;

/// The task that a word means.
pub(crate) async fn resolve_task_id(relay: &RelayClient, given: &str) -> Result<String, CliError> {
    match IdPrefix::parse(given) {
        None => Ok(given.to_owned()),
        Some(begun) => single_match(&begun, "task", tasks_with_prefix(relay, &begun).await?),
    }
}

/// The same for a verb that needs a reason: a blank one is refused before anything is looked for, and by the relay.
pub(crate) async fn resolve_task_id_with_reason(
    relay: &RelayClient,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _said => resolve_task_id(relay, given).await,
    }
}

/// Several, each by itself.
pub(crate) async fn resolve_task_ids_with_reason(
    relay: &RelayClient,
    given: &[String],
    reason: &str,
) -> Result<Vec<String>, CliError> {
    let mut found = Vec::with_capacity(given.len());
    for one in given {
        found.push(resolve_task_id_with_reason(relay, one, reason).await?);
    }
    Ok(found)
}

/// An attempt of a task that is known by its whole id.
pub(crate) async fn resolve_attempt_id(
    relay: &RelayClient,
    task_id: &str,
    given: &str,
) -> Result<String, CliError> {
    let Some(begun) = IdPrefix::parse(given) else {
        return Ok(given.to_owned());
    };
    let task = task_follower::get_task(relay, task_id).await?;
    let attempts = task.attempts.into_iter();
    let fit = attempts.filter(|attempt| begun.matches(&attempt.attempt_id));
    let fit = fit.map(|attempt| {
        let about = format!("attempt {}", attempt.attempt_number);
        (attempt.attempt_id, about)
    });
    single_match(&begun, "attempt", fit.collect())
}

/// The same for a verb that needs a reason.
pub(crate) async fn resolve_attempt_id_with_reason(
    relay: &RelayClient,
    task_id: &str,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _said => resolve_attempt_id(relay, task_id, given).await,
    }
}

/// A daemon by its id or its name; a name goes before the beginning of an id.
pub(crate) async fn resolve_daemon(relay: &RelayClient, given: &str) -> Result<String, CliError> {
    let Some(begun) = IdPrefix::parse(given) else {
        return Ok(given.to_owned());
    };
    let mut request = ListDaemonsRequest {
        page_size: PAGE_SIZE,
        ..ListDaemonsRequest::default()
    };
    let mut fit = Vec::new();
    loop {
        let page = relay.fleet().list_daemons(request.clone()).await?;
        let page = page.into_inner();
        if page.daemons.iter().any(|daemon| daemon.name == given) {
            return Ok(given.to_owned());
        }
        let fitting = page.daemons.into_iter();
        let fitting = fitting.filter(|daemon| begun.matches(&daemon.daemon_id));
        fit.extend(fitting.map(|daemon| (daemon.daemon_id, one_line(&daemon.name))));
        if page.next_page_token.is_empty() {
            return single_match(&begun, "daemon", fit);
        }
        request.page_token = page.next_page_token;
    }
}

/// The same for a verb that needs a reason.
pub(crate) async fn resolve_daemon_with_reason(
    relay: &RelayClient,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _said => resolve_daemon(relay, given).await,
    }
}

pub(crate) async fn resolve_token_id(relay: &RelayClient, given: &str) -> Result<String, CliError> {
    let Some(begun) = IdPrefix::parse(given) else {
        return Ok(given.to_owned());
    };
    let mut request = ListTokensRequest {
        page_size: PAGE_SIZE,
        ..ListTokensRequest::default()
    };
    let mut fit = Vec::new();
    loop {
        let page = relay.operator().list_tokens(request.clone()).await?;
        let page = page.into_inner();
        let fitting = page.tokens.into_iter();
        let fitting = fitting.filter(|token| begun.matches(&token.token_id));
        fit.extend(fitting.map(|token| (token.token_id, one_line(&token.name))));
        if page.next_page_token.is_empty() {
            return single_match(&begun, "token", fit);
        }
        request.page_token = page.next_page_token;
    }
}

/// Which of these inputs a word means.
pub(crate) async fn resolve_input_id(
    relay: &RelayClient,
    task_id: &str,
    given: &str,
) -> Result<String, CliError> {
    let Some(begun) = IdPrefix::parse(given) else {
        return Ok(given.to_owned());
    };
    let listed = inbox::list_inputs(relay, task_id, !task_id.is_empty()).await?;
    let fit = listed
        .into_iter()
        .filter(|one| begun.matches(&one.input_id));
    let about = |one: Input| {
        let about = format!("of task {}", one.task_id);
        (one.input_id, about)
    };
    single_match(&begun, "input", fit.map(about).collect())
}

/// Newest first, and in the order of their ids: behind the first that is smaller there is none.
async fn tasks_with_prefix(
    relay: &RelayClient,
    begun: &IdPrefix,
) -> Result<Vec<(String, String)>, CliError> {
    let mut request = ListTasksRequest {
        page_size: PAGE_SIZE,
        ..ListTasksRequest::default()
    };
    let (mut fit, mut looked_at) = (Vec::new(), 0);
    loop {
        let page = relay.tasks().list(request.clone()).await?.into_inner();
        looked_at += page.tasks.len();
        let passed = page.tasks.iter().any(|task| begun.is_past(&task.task_id));
        let fitting = page
            .tasks
            .into_iter()
            .filter(|task| begun.matches(&task.task_id));
        fit.extend(fitting.map(id_and_description));
        let over = passed || page.next_page_token.is_empty() || looked_at >= MAX_TASKS_SEARCHED;
        if over || fit.len() > MAX_CANDIDATES_SHOWN {
            return Ok(fit);
        }
        request.page_token = page.next_page_token;
    }
}

fn id_and_description(task: Task) -> (String, String) {
    let about = crate::render::task_view::task_description(&task);
    (task.task_id, about)
}

/// The beginning of an id.
#[derive(Debug)]
struct IdPrefix(String);

impl IdPrefix {
    /// None where it is a whole one, or nothing that an id begins with: the relay says what is wrong with that.
    fn parse(given: &str) -> Option<Self> {
        let lower = given.to_ascii_lowercase();
        let digits = lower.bytes().filter(u8::is_ascii_hexdigit).count();
        let fits = lower.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let begun = fits && digits >= MIN_PREFIX_DIGITS && given.len() < ID_LENGTH;
        begun.then(|| Self(insert_dashes(&lower)))
    }

    fn matches(&self, id: &str) -> bool {
        id.starts_with(&self.0)
    }

    /// Older than all that fit.
    fn is_past(&self, id: &str) -> bool {
        id < self.0.as_str()
    }
}

/// With dashes where ids have them, for who leaves them out.
fn insert_dashes(given: &str) -> String {
    let mut dashed = String::with_capacity(ID_LENGTH);
    for digit in given.chars().filter(|digit| *digit != '-') {
        if matches!(dashed.len(), 8 | 13 | 18 | 23) {
            dashed.push('-');
        }
        dashed.push(digit);
    }
    dashed
}

fn single_match(
    begun: &IdPrefix,
    kind: &str,
    mut fit: Vec<(String, String)>,
) -> Result<String, CliError> {
    let begun = &begun.0;
    match fit.len() {
        1 => Ok(fit.remove(0).0),
        0 => Err(CliError::Usage(ErrorText {
            what: format!("no {kind} begins with {begun}"),
            why: "it was mistyped, is of another tenant, or too old to be found by its beginning"
                .to_owned(),
            hint: format!("give the whole id; {} lists them", list_command(kind)),
        })),
        many => {
            let shown = fit.iter().take(MAX_CANDIDATES_SHOWN);
            let mut why: String = shown
                .map(|(id, about)| format!("\n  {id}  {about}"))
                .collect();
            if many > MAX_CANDIDATES_SHOWN {
                why.push_str("\n  …");
            }
            Err(CliError::Usage(ErrorText {
                what: format!("more than one {kind} begins with {begun}:{why}"),
                why: String::new(),
                hint: "give more of its id".to_owned(),
            }))
        }
    }
}

fn list_command(kind: &str) -> &'static str {
    match kind {
        "input" => "`baton inbox`",
        "attempt" => "`baton attempts TASK`",
        "daemon" => "`baton daemons`",
        "token" => "`baton token list`",
        _task => "`baton tasks`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

    #[test]
    fn a_beginning_is_known_with_and_without_dashes_in_any_case() {
        for given in [
            "0197",
            "0197c1de-",
            "0197C1DE7A4E",
            "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a1",
        ] {
            let begun = IdPrefix::parse(given).unwrap();
            assert!(begun.matches(ID), "{given}: {begun:?}");
        }
        for other in ["019", ID, "nonsense", "", "../../etc", "-----"] {
            assert!(IdPrefix::parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn what_is_older_than_all_that_fit_ends_the_search() {
        let begun = IdPrefix::parse("0197c1de").unwrap();
        assert!(begun.is_past("0197c1dd-ffff-7d61-9f3c-2f1f6f2c9a10"));
        assert!(!begun.is_past(ID));
        assert!(!begun.is_past("0197c1df-0000-7d61-9f3c-2f1f6f2c9a10"));
    }

    #[test]
    fn none_and_many_are_told_and_many_with_their_names() {
        let begun = IdPrefix::parse("0197").unwrap();
        let fit = |count: usize| {
            (0..count)
                .map(|n| (format!("0197-{n}"), "x".to_owned()))
                .collect()
        };
        assert_eq!(single_match(&begun, "task", fit(1)).unwrap(), "0197-0");
        let none = single_match(&begun, "task", fit(0))
            .unwrap_err()
            .to_string();
        assert!(none.contains("no task begins with 0197"), "{none}");
        let two = single_match(&begun, "task", fit(2))
            .unwrap_err()
            .to_string();
        assert!(two.contains("0197-0") && two.contains("0197-1"), "{two}");
        let many = single_match(&begun, "task", fit(MAX_CANDIDATES_SHOWN + 1))
            .unwrap_err()
            .to_string();
        assert!(
            many.contains('…') && many.contains("give more of its id"),
            "{many}"
        );
    }
}
