//! Resolves ids as people type them: a full id or a unique prefix. The relay accepts full ids only, so
//! a prefix is searched in lists. A full id is passed on without a search.

use baton_proto::v1::{Input, ListDaemonsRequest, ListTasksRequest, ListTokensRequest, Task};

use crate::client::relay_client::RelayClient;
use crate::commands::task::inbox;
use crate::error::cli_error::{CliError, ErrorText};
use crate::follow::task_follower;
use crate::render::sanitizer::one_line;

/// Length of a full id with its dashes.
const ID_LENGTH: usize = 36;
/// Ids of one day share this many digits, so a shorter prefix is treated as a typing error.
const MIN_PREFIX_DIGITS: usize = 4;
const PAGE_SIZE: u32 = 200;
/// Number of newest tasks that are searched.
const MAX_TASKS_SEARCHED: usize = 10_000;
/// Maximum of candidates in the error message.
const MAX_CANDIDATES_SHOWN: usize = 10;

/// Returns the full id of a task.
pub(crate) async fn resolve_task_id(relay: &RelayClient, given: &str) -> Result<String, CliError> {
    match IdPrefix::parse(given) {
        None => Ok(given.to_owned()),
        Some(prefix) => single_match(&prefix, "task", tasks_with_prefix(relay, &prefix).await?),
    }
}

/// Like [`resolve_task_id`], for a command that needs a reason. With a blank reason nothing is
/// searched: the relay refuses the request anyway.
pub(crate) async fn resolve_task_id_with_reason(
    relay: &RelayClient,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _given => resolve_task_id(relay, given).await,
    }
}

/// Resolves several tasks one after the other.
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

/// Returns the full id of an attempt; the task is given by its full id.
pub(crate) async fn resolve_attempt_id(
    relay: &RelayClient,
    task_id: &str,
    given: &str,
) -> Result<String, CliError> {
    let Some(prefix) = IdPrefix::parse(given) else {
        return Ok(given.to_owned());
    };
    let task = task_follower::get_task(relay, task_id).await?;
    let attempts = task.attempts.into_iter();
    let fit = attempts.filter(|attempt| prefix.matches(&attempt.attempt_id));
    let fit = fit.map(|attempt| {
        let about = format!("attempt {}", attempt.attempt_number);
        (attempt.attempt_id, about)
    });
    single_match(&prefix, "attempt", fit.collect())
}

/// Like [`resolve_attempt_id`], for a command that needs a reason.
pub(crate) async fn resolve_attempt_id_with_reason(
    relay: &RelayClient,
    task_id: &str,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _given => resolve_attempt_id(relay, task_id, given).await,
    }
}

/// Resolves a daemon by name or id prefix; a name takes precedence.
pub(crate) async fn resolve_daemon(relay: &RelayClient, given: &str) -> Result<String, CliError> {
    let Some(prefix) = IdPrefix::parse(given) else {
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
        let fitting = fitting.filter(|daemon| prefix.matches(&daemon.daemon_id));
        fit.extend(fitting.map(|daemon| (daemon.daemon_id, one_line(&daemon.name))));
        if page.next_page_token.is_empty() {
            return single_match(&prefix, "daemon", fit);
        }
        request.page_token = page.next_page_token;
    }
}

/// Like [`resolve_daemon`], for a command that needs a reason.
pub(crate) async fn resolve_daemon_with_reason(
    relay: &RelayClient,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _given => resolve_daemon(relay, given).await,
    }
}

pub(crate) async fn resolve_token_id(relay: &RelayClient, given: &str) -> Result<String, CliError> {
    let Some(prefix) = IdPrefix::parse(given) else {
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
        let fitting = fitting.filter(|token| prefix.matches(&token.token_id));
        fit.extend(fitting.map(|token| (token.token_id, one_line(&token.name))));
        if page.next_page_token.is_empty() {
            return single_match(&prefix, "token", fit);
        }
        request.page_token = page.next_page_token;
    }
}

/// Returns the full id of an input: of one task, or an open one of any task.
pub(crate) async fn resolve_input_id(
    relay: &RelayClient,
    task_id: &str,
    given: &str,
) -> Result<String, CliError> {
    let Some(prefix) = IdPrefix::parse(given) else {
        return Ok(given.to_owned());
    };
    let listed = inbox::list_inputs(relay, task_id, !task_id.is_empty()).await?;
    let fit = listed
        .into_iter()
        .filter(|one| prefix.matches(&one.input_id));
    let about = |one: Input| {
        let about = format!("of task {}", one.task_id);
        (one.input_id, about)
    };
    single_match(&prefix, "input", fit.map(about).collect())
}

/// Searches the task list. It is sorted by id, newest first, so the search ends at the first smaller
/// id.
async fn tasks_with_prefix(
    relay: &RelayClient,
    prefix: &IdPrefix,
) -> Result<Vec<(String, String)>, CliError> {
    let mut request = ListTasksRequest {
        page_size: PAGE_SIZE,
        ..ListTasksRequest::default()
    };
    let (mut fit, mut searched) = (Vec::new(), 0);
    loop {
        let page = relay.tasks().list(request.clone()).await?.into_inner();
        searched += page.tasks.len();
        let passed = page.tasks.iter().any(|task| prefix.is_past(&task.task_id));
        let fitting = page
            .tasks
            .into_iter()
            .filter(|task| prefix.matches(&task.task_id));
        fit.extend(fitting.map(id_and_description));
        let is_last = passed || page.next_page_token.is_empty() || searched >= MAX_TASKS_SEARCHED;
        if is_last || fit.len() > MAX_CANDIDATES_SHOWN {
            return Ok(fit);
        }
        request.page_token = page.next_page_token;
    }
}

fn id_and_description(task: Task) -> (String, String) {
    let about = crate::render::task_view::task_description(&task);
    (task.task_id, about)
}

/// A prefix of an id, in lower case and with dashes.
#[derive(Debug)]
struct IdPrefix(String);

impl IdPrefix {
    /// `None` for a full id, and for text that no id begins with: the relay then reports what is wrong.
    fn parse(given: &str) -> Option<Self> {
        let lower = given.to_ascii_lowercase();
        let digits = lower.bytes().filter(u8::is_ascii_hexdigit).count();
        let fits = lower.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let prefix = fits && digits >= MIN_PREFIX_DIGITS && given.len() < ID_LENGTH;
        prefix.then(|| Self(insert_dashes(&lower)))
    }

    fn matches(&self, id: &str) -> bool {
        id.starts_with(&self.0)
    }

    /// Whether this id is smaller than all ids with the prefix.
    fn is_past(&self, id: &str) -> bool {
        id < self.0.as_str()
    }
}

/// Adds the dashes of an id if they were omitted.
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
    prefix: &IdPrefix,
    kind: &str,
    mut fit: Vec<(String, String)>,
) -> Result<String, CliError> {
    let prefix = &prefix.0;
    match fit.len() {
        1 => Ok(fit.remove(0).0),
        0 => Err(CliError::Usage(ErrorText {
            what: format!("no {kind} begins with {prefix}"),
            why: "the id is mistyped, belongs to another tenant, or is too old for a search by prefix"
                .to_owned(),
            hint: format!("use the full id; {} lists them", list_command(kind)),
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
                what: format!("more than one {kind} begins with {prefix}:{why}"),
                why: String::new(),
                hint: "use more digits of the id".to_owned(),
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
    fn a_prefix_matches_with_and_without_dashes_in_any_case() {
        for given in [
            "0197",
            "0197c1de-",
            "0197C1DE7A4E",
            "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a1",
        ] {
            let prefix = IdPrefix::parse(given).unwrap();
            assert!(prefix.matches(ID), "{given}: {prefix:?}");
        }
        for other in ["019", ID, "nonsense", "", "../../etc", "-----"] {
            assert!(IdPrefix::parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn an_id_smaller_than_all_matches_ends_the_search() {
        let prefix = IdPrefix::parse("0197c1de").unwrap();
        assert!(prefix.is_past("0197c1dd-ffff-7d61-9f3c-2f1f6f2c9a10"));
        assert!(!prefix.is_past(ID));
        assert!(!prefix.is_past("0197c1df-0000-7d61-9f3c-2f1f6f2c9a10"));
    }

    #[test]
    fn no_match_and_several_matches_are_usage_errors() {
        let prefix = IdPrefix::parse("0197").unwrap();
        let fit = |count: usize| {
            (0..count)
                .map(|n| (format!("0197-{n}"), "x".to_owned()))
                .collect()
        };
        assert_eq!(single_match(&prefix, "task", fit(1)).unwrap(), "0197-0");
        let none = single_match(&prefix, "task", fit(0))
            .unwrap_err()
            .to_string();
        assert!(none.contains("no task begins with 0197"), "{none}");
        let two = single_match(&prefix, "task", fit(2))
            .unwrap_err()
            .to_string();
        assert!(two.contains("0197-0") && two.contains("0197-1"), "{two}");
        let many = single_match(&prefix, "task", fit(MAX_CANDIDATES_SHOWN + 1))
            .unwrap_err()
            .to_string();
        assert!(
            many.contains('…') && many.contains("use more digits of the id"),
            "{many}"
        );
    }
}
