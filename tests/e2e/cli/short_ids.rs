//! Ids as people type them: as much of the beginning as nothing else has, everywhere an id is taken.

use baton_proto::v1::Task;
use baton_tests::{CommandOutput, RelayProcess, command_task};

use crate::BATON;

async fn run_command(relay: &RelayProcess, arguments: &[&str]) -> CommandOutput {
    BATON.run(relay.data(), arguments).await
}

/// As much of the first as the second does not have, and as much as both have.
fn id_prefixes(first: &Task, second: &Task) -> (String, String) {
    let (first, second) = (&first.task_id, &second.task_id);
    let both = first.bytes().zip(second.bytes());
    let shared = both.take_while(|(one, other)| one == other).count();
    (first[..=shared].to_owned(), first[..shared].to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_beginning_of_an_id_is_enough_where_nothing_else_has_it() {
    let relay = RelayProcess::start(BATON).await;
    let first = relay
        .admin()
        .submit(command_task("true", &["one"], "ids"))
        .await;
    let second = relay
        .admin()
        .submit(command_task("true", &["two"], "ids"))
        .await;
    let (own, both) = id_prefixes(&first, &second);

    for arguments in [
        vec!["show", &own, "--json"],
        vec!["progress", &own, "--json"],
        vec!["pause", &own, "--reason", "a look"],
        vec!["unpause", &own],
        vec!["inspect", &own],
        vec!["attempts", &own, "--json"],
        vec!["inbox", "--task", &own],
        vec!["checkpoints", &own],
        vec!["watch", &own, "--history", "--json"],
        vec!["cancel", &own, "--json"],
    ] {
        let said = run_command(&relay, &arguments).await;
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}");
        assert!(
            !said.stdout.contains(&second.task_id),
            "{arguments:?}: {said:?}"
        );
    }

    let said = run_command(&relay, &["show", &both]).await;
    assert_eq!(said.code, Some(2), "{said:?}");
    for words in [
        &first.task_id,
        &second.task_id,
        "true one",
        "true two",
        "give more",
    ] {
        assert!(said.stderr.contains(words), "{words}: {said:?}");
    }
    let said = run_command(&relay, &["show", "ffffffff"]).await;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.stderr.contains("no task begins with ffffffff"),
        "{said:?}"
    );
    // Nothing that an id could begin with is the relay's to refuse.
    let said = run_command(&relay, &["show", "nonsense"]).await;
    assert!(said.stderr.contains("is not an id"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_what_was_submitted_without_its_secrets() {
    let relay = RelayProcess::start(BATON).await;
    let words = [
        "-H",
        "Authorization: Bearer abcdef0123456789",
        "x\u{1b}[2Jy",
    ];
    relay
        .admin()
        .submit(command_task("curl", &words, "ids"))
        .await;
    let said = run_command(&relay, &["tasks"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let shown = "curl -H Authorization: Bearer [redacted]";
    assert!(said.stdout.contains(shown), "{said:?}");
    assert!(
        !said.stdout.contains('\u{1b}') && !said.stdout.contains("abcdef01"),
        "{said:?}"
    );
}
