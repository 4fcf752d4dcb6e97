//! Id prefixes: a unique prefix is accepted wherever a command takes an id.

use baton_proto::v1::Task;
use baton_tests::{CommandOutput, RelayProcess, command_task};

use crate::BATON;

async fn run_command(relay: &RelayProcess, arguments: &[&str]) -> CommandOutput {
    BATON.run(relay.data(), arguments).await
}

/// The shortest prefix that only the first id has, and the prefix that both ids share.
fn id_prefixes(first: &Task, second: &Task) -> (String, String) {
    let (first, second) = (&first.task_id, &second.task_id);
    let shared_prefix = first.bytes().zip(second.bytes());
    let shared = shared_prefix
        .take_while(|(one, other)| one == other)
        .count();
    (first[..=shared].to_owned(), first[..shared].to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_id_prefix_is_enough() {
    let relay = RelayProcess::start(BATON).await;
    let first = relay
        .admin()
        .submit(command_task("true", &["one"], "ids"))
        .await;
    let second = relay
        .admin()
        .submit(command_task("true", &["two"], "ids"))
        .await;
    let (unique, shared_prefix) = id_prefixes(&first, &second);

    for arguments in [
        vec!["show", &unique, "--json"],
        vec!["progress", &unique, "--json"],
        vec!["pause", &unique, "--reason", "a look"],
        vec!["unpause", &unique],
        vec!["inspect", &unique],
        vec!["attempts", &unique, "--json"],
        vec!["inbox", "--task", &unique],
        vec!["checkpoints", &unique],
        vec!["watch", &unique, "--history", "--json"],
        vec!["cancel", &unique, "--json"],
    ] {
        let output = run_command(&relay, &arguments).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        assert!(
            !output.stdout.contains(&second.task_id),
            "{arguments:?}: {output:?}"
        );
    }

    let output = run_command(&relay, &["show", &shared_prefix]).await;
    assert_eq!(output.code, Some(2), "{output:?}");
    for expected in [
        &first.task_id,
        &second.task_id,
        "true one",
        "true two",
        "use more digits",
    ] {
        assert!(output.stderr.contains(expected), "{expected}: {output:?}");
    }
    let output = run_command(&relay, &["show", "ffffffff"]).await;
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(
        output.stderr.contains("no task begins with ffffffff"),
        "{output:?}"
    );
    // A text that cannot be an id prefix is refused as malformed.
    let output = run_command(&relay, &["show", "nonsense"]).await;
    assert!(output.stderr.contains("is not an id"), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_commands_without_their_secrets() {
    let relay = RelayProcess::start(BATON).await;
    let expected = [
        "-H",
        "Authorization: Bearer abcdef0123456789",
        "x\u{1b}[2Jy",
    ];
    relay
        .admin()
        .submit(command_task("curl", &expected, "ids"))
        .await;
    let output = run_command(&relay, &["tasks"]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let shown = "curl -H Authorization: Bearer [redacted]";
    assert!(output.stdout.contains(shown), "{output:?}");
    assert!(
        !output.stdout.contains('\u{1b}') && !output.stdout.contains("abcdef01"),
        "{output:?}"
    );
}
