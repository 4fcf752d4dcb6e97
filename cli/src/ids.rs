//! Ids as people type them: whole, or as much of the beginning as nothing else has. The relay takes whole ones only, so what
//! was begun is looked for in lists; a whole one is never looked for.

use baton_proto::v1::{Input, ListDaemonsRequest, ListTasksRequest, ListTokensRequest, Task};

use crate::client::Relay;
use crate::commands::inbox;
use crate::errors::{CliError, Story};
use crate::follow;
use crate::sanitize::one_line;

/// Digits of a whole id, with its dashes.
const WHOLE: usize = 36;
/// Fewer digits are a typing mistake rather than an id: ids of one day share as many.
const SHORTEST: usize = 4;
const PAGE: u32 = 200;
/// Newest tasks among which one is looked for.
const LOOKED_AT: usize = 10_000;
/// Candidates that are named.
const NAMED: usize = 10;

/// The task that a word means.
pub(crate) async fn task(relay: &Relay, given: &str) -> Result<String, CliError> {
    match Begun::of(given) {
        None => Ok(given.to_owned()),
        Some(begun) => only(&begun, "task", tasks(relay, &begun).await?),
    }
}

/// The same for a verb that needs a reason: a blank one is refused before anything is looked for, and by the relay.
pub(crate) async fn task_because(
    relay: &Relay,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _said => task(relay, given).await,
    }
}

/// Several, each by itself.
pub(crate) async fn tasks_because(
    relay: &Relay,
    given: &[String],
    reason: &str,
) -> Result<Vec<String>, CliError> {
    let mut found = Vec::with_capacity(given.len());
    for one in given {
        found.push(task_because(relay, one, reason).await?);
    }
    Ok(found)
}

/// An attempt of a task that is known by its whole id.
pub(crate) async fn attempt(relay: &Relay, task_id: &str, given: &str) -> Result<String, CliError> {
    let Some(begun) = Begun::of(given) else {
        return Ok(given.to_owned());
    };
    let task = follow::get(relay, task_id).await?;
    let attempts = task.attempts.into_iter();
    let fit = attempts.filter(|attempt| begun.fits(&attempt.attempt_id));
    let fit = fit.map(|attempt| {
        let about = format!("attempt {}", attempt.attempt_number);
        (attempt.attempt_id, about)
    });
    only(&begun, "attempt", fit.collect())
}

/// The same for a verb that needs a reason.
pub(crate) async fn attempt_because(
    relay: &Relay,
    task_id: &str,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _said => attempt(relay, task_id, given).await,
    }
}

/// A daemon by its id or its name; a name goes before the beginning of an id.
pub(crate) async fn daemon(relay: &Relay, given: &str) -> Result<String, CliError> {
    let Some(begun) = Begun::of(given) else {
        return Ok(given.to_owned());
    };
    let mut request = ListDaemonsRequest {
        page_size: PAGE,
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
        let fitting = fitting.filter(|daemon| begun.fits(&daemon.daemon_id));
        fit.extend(fitting.map(|daemon| (daemon.daemon_id, one_line(&daemon.name))));
        if page.next_page_token.is_empty() {
            return only(&begun, "daemon", fit);
        }
        request.page_token = page.next_page_token;
    }
}

/// The same for a verb that needs a reason.
pub(crate) async fn daemon_because(
    relay: &Relay,
    given: &str,
    reason: &str,
) -> Result<String, CliError> {
    match reason.trim() {
        "" => Ok(given.to_owned()),
        _said => daemon(relay, given).await,
    }
}

pub(crate) async fn token(relay: &Relay, given: &str) -> Result<String, CliError> {
    let Some(begun) = Begun::of(given) else {
        return Ok(given.to_owned());
    };
    let mut request = ListTokensRequest {
        page_size: PAGE,
        ..ListTokensRequest::default()
    };
    let mut fit = Vec::new();
    loop {
        let page = relay.operator().list_tokens(request.clone()).await?;
        let page = page.into_inner();
        let fitting = page.tokens.into_iter();
        let fitting = fitting.filter(|token| begun.fits(&token.token_id));
        fit.extend(fitting.map(|token| (token.token_id, one_line(&token.name))));
        if page.next_page_token.is_empty() {
            return only(&begun, "token", fit);
        }
        request.page_token = page.next_page_token;
    }
}

/// Which of these inputs a word means.
pub(crate) async fn input(relay: &Relay, task_id: &str, given: &str) -> Result<String, CliError> {
    let Some(begun) = Begun::of(given) else {
        return Ok(given.to_owned());
    };
    let listed = inbox::list(relay, task_id, !task_id.is_empty()).await?;
    let fit = listed.into_iter().filter(|one| begun.fits(&one.input_id));
    let about = |one: Input| {
        let about = format!("of task {}", one.task_id);
        (one.input_id, about)
    };
    only(&begun, "input", fit.map(about).collect())
}

/// Newest first, and in the order of their ids: behind the first that is smaller there is none.
async fn tasks(relay: &Relay, begun: &Begun) -> Result<Vec<(String, String)>, CliError> {
    let mut request = ListTasksRequest {
        page_size: PAGE,
        ..ListTasksRequest::default()
    };
    let (mut fit, mut looked_at) = (Vec::new(), 0);
    loop {
        let page = relay.tasks().list(request.clone()).await?.into_inner();
        looked_at += page.tasks.len();
        let passed = page.tasks.iter().any(|task| begun.is_behind(&task.task_id));
        let fitting = page
            .tasks
            .into_iter()
            .filter(|task| begun.fits(&task.task_id));
        fit.extend(fitting.map(about));
        let over = passed || page.next_page_token.is_empty() || looked_at >= LOOKED_AT;
        if over || fit.len() > NAMED {
            return Ok(fit);
        }
        request.page_token = page.next_page_token;
    }
}

fn about(task: Task) -> (String, String) {
    let about = crate::task_view::about(&task);
    (task.task_id, about)
}

/// The beginning of an id.
#[derive(Debug)]
struct Begun(String);

impl Begun {
    /// None where it is a whole one, or nothing that an id begins with: the relay says what is wrong with that.
    fn of(given: &str) -> Option<Self> {
        let lower = given.to_ascii_lowercase();
        let digits = lower.bytes().filter(u8::is_ascii_hexdigit).count();
        let fits = lower.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let begun = fits && digits >= SHORTEST && given.len() < WHOLE;
        begun.then(|| Self(dashed(&lower)))
    }

    fn fits(&self, id: &str) -> bool {
        id.starts_with(&self.0)
    }

    /// Older than all that fit.
    fn is_behind(&self, id: &str) -> bool {
        id < self.0.as_str()
    }
}

/// With dashes where ids have them, for who leaves them out.
fn dashed(given: &str) -> String {
    let mut dashed = String::with_capacity(WHOLE);
    for digit in given.chars().filter(|digit| *digit != '-') {
        if matches!(dashed.len(), 8 | 13 | 18 | 23) {
            dashed.push('-');
        }
        dashed.push(digit);
    }
    dashed
}

fn only(begun: &Begun, kind: &str, mut fit: Vec<(String, String)>) -> Result<String, CliError> {
    let begun = &begun.0;
    match fit.len() {
        1 => Ok(fit.remove(0).0),
        0 => Err(CliError::Usage(Story {
            what: format!("no {kind} begins with {begun}"),
            why: "it was mistyped, is of another tenant, or too old to be found by its beginning"
                .to_owned(),
            hint: format!("give the whole id; {} lists them", list_of(kind)),
        })),
        many => {
            let shown = fit.iter().take(NAMED);
            let mut why: String = shown
                .map(|(id, about)| format!("\n  {id}  {about}"))
                .collect();
            if many > NAMED {
                why.push_str("\n  …");
            }
            Err(CliError::Usage(Story {
                what: format!("more than one {kind} begins with {begun}:{why}"),
                why: String::new(),
                hint: "give more of its id".to_owned(),
            }))
        }
    }
}

fn list_of(kind: &str) -> &'static str {
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
            let begun = Begun::of(given).unwrap();
            assert!(begun.fits(ID), "{given}: {begun:?}");
        }
        for other in ["019", ID, "nonsense", "", "../../etc", "-----"] {
            assert!(Begun::of(other).is_none(), "{other}");
        }
    }

    #[test]
    fn what_is_older_than_all_that_fit_ends_the_search() {
        let begun = Begun::of("0197c1de").unwrap();
        assert!(begun.is_behind("0197c1dd-ffff-7d61-9f3c-2f1f6f2c9a10"));
        assert!(!begun.is_behind(ID));
        assert!(!begun.is_behind("0197c1df-0000-7d61-9f3c-2f1f6f2c9a10"));
    }

    #[test]
    fn none_and_many_are_told_and_many_with_their_names() {
        let begun = Begun::of("0197").unwrap();
        let fit = |count: usize| {
            (0..count)
                .map(|n| (format!("0197-{n}"), "x".to_owned()))
                .collect()
        };
        assert_eq!(only(&begun, "task", fit(1)).unwrap(), "0197-0");
        let none = only(&begun, "task", fit(0)).unwrap_err().to_string();
        assert!(none.contains("no task begins with 0197"), "{none}");
        let two = only(&begun, "task", fit(2)).unwrap_err().to_string();
        assert!(two.contains("0197-0") && two.contains("0197-1"), "{two}");
        let many = only(&begun, "task", fit(NAMED + 1))
            .unwrap_err()
            .to_string();
        assert!(
            many.contains('…') && many.contains("give more of its id"),
            "{many}"
        );
    }
}
