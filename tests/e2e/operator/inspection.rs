//! Inspection of tasks, attempts and daemons: diagnostics, next actions, and lists without gap
//! or duplicate.

use baton_proto::v1::{NextAction, RetryTaskRequest, Role, TaskState};
use baton_tests::{
    EmbeddedRelay, RelayProcess, ScriptedDaemon, TaskWatch, agent_task, command_task, hello,
    marked_processes, wait_until_marked_gone, wait_within,
};

use crate::operator::force_commands::{run_baton, start_worker};
use crate::{BATON, STANDIN};

#[tokio::test(flavor = "multi_thread")]
async fn inspect_shows_problems_and_the_next_action() {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let inspect = async |id: &str| {
        run_baton(&relay, &["inspect", id, "--json"])
            .await
            .stdout_json()
    };
    let stranded = client.submit(agent_task("nobody")).await;
    let inspected = inspect(&stranded.task_id).await;
    assert_eq!(inspected["nextAction"], "stranded");
    assert_eq!(inspected["diagnostics"][0]["code"], "stranded");
    assert_eq!(inspected["timers"][0]["kind"], "queue");

    let link = client.client_of_tenant("", Role::Daemon).await;
    let mut daemon_hello = hello(&["scripted", "claude"]);
    daemon_hello.name = "worker-1".to_owned();
    daemon_hello.agents[1].problem = "provider_missing".to_owned();
    let mut daemon = ScriptedDaemon::connect(&link, daemon_hello).await;
    let missing = client.submit(agent_task("claude")).await;
    let inspected = inspect(&missing.task_id).await;
    let next = inspected["nextActionText"]
        .as_str()
        .expect("the next action has a text");
    assert!(
        next.contains("\"claude\" in working order (on worker-1: its program is missing)"),
        "{next}"
    );
    let task = client.submit(agent_task("scripted")).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send_output("working").await;
    daemon.wait_until_acked(&attempt).await;
    let inspected = inspect(&task.task_id).await;
    assert_eq!(inspected["nextAction"], "running");
    assert_eq!(inspected["currentAttemptId"], attempt.id());
    let timers = inspected["timers"].as_array().expect("timers").clone();
    let lease = timers.iter().find(|timer| timer["kind"] == "lease");
    assert!(
        lease.is_some_and(|timer| timer["limitMs"] != "0"),
        "{timers:?}"
    );
    let daemon_id = client.get(&task.task_id).await.attempts[0]
        .daemon_id
        .clone();
    drop(daemon);
    client.wait_until_offline(&daemon_id).await;
    let inspected = inspect(&task.task_id).await;
    assert_eq!(inspected["diagnostics"][0]["code"], "orphan");
    let output = run_baton(&relay, &["inspect", &task.task_id]).await;
    assert!(
        output.stdout.contains("problem:      orphan: "),
        "{output:?}"
    );
    assert!(output.stdout.contains("next:"), "{output:?}");
    assert_eq!(
        NextAction::Stranded as i32,
        3,
        "the number of the enum value in the protocol"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_daemon_reconnects_and_its_attempt_continues() {
    let relay = RelayProcess::start(BATON).await;
    let dir = tempfile::tempdir().expect("a directory");
    let _daemon = start_worker(&relay, &dir, "one").await;
    let client = relay.admin().clone();
    let task = client
        .submit(command_task(
            STANDIN,
            &["print", "1", "pause"],
            "disconnected",
        ))
        .await;
    let mut watch = client.watch(&task.task_id).await;
    watch.wait_for_output().await;
    let before = marked_processes("disconnected");
    let output = run_baton(&relay, &["disconnect", "one", "--reason", "look"]).await;
    assert_eq!(
        (output.code, output.stdout.trim()),
        (Some(0), "disconnected"),
        "{output:?}"
    );
    let online = baton_proto::v1::DaemonState::Online;
    client.wait_for_daemon_state("one", online).await;
    assert_eq!(
        marked_processes("disconnected"),
        before,
        "the child processes were not restarted"
    );
    let attempts = run_baton(&relay, &["attempts", "--daemon", "one", "--json"]).await;
    let attempts = attempts.stdout_json()["attempts"].clone();
    assert_eq!(attempts[0]["attempt"]["attemptNumber"], 1);
    assert_eq!(attempts[0]["attempt"]["state"], "streaming");
    client.cancel(&task.task_id).await;
    wait_until_marked_gone("disconnected").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_listed_in_pages_without_gap_or_duplicate() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let mut spec = agent_task("nobody");
        spec.queue_ms = Some(20);
        let task = client.submit(spec).await;
        let mut revision = 0;
        for number in 1..=3 {
            let mut watch = TaskWatch::open(client, &task.task_id, revision)
                .await
                .expect("the task can be watched");
            watch.wait_for_state(TaskState::NeedsAttention).await;
            if number < 3 {
                let request = RetryTaskRequest {
                    task_id: task.task_id.clone(),
                    reason: "once more".into(),
                    allow_unsafe: false,
                };
                let again = wait_within("a retry", client.operator().retry_task(request)).await;
                let again = again.expect("a parked task may be retried").into_inner();
                revision = again.task.expect("the task").revision;
            }
        }
        ids.push(task.task_id);
    }
    let mut wanted = Vec::new();
    for id in ids.iter().rev() {
        wanted.extend((1..=3).rev().map(|number| (id.clone(), number)));
    }
    for page_size in [1, 2, 4, 9, 50] {
        let mut request = baton_proto::v1::ListAttemptsRequest {
            page_size,
            ..Default::default()
        };
        let mut seen = Vec::new();
        loop {
            let page = wait_within("a page", client.operator().list_attempts(request.clone()))
                .await
                .expect("a page")
                .into_inner();
            for row in page.attempts {
                let number = row.attempt.map_or(0, |attempt| attempt.attempt_number);
                seen.push((row.task_id, number));
            }
            if page.next_page_token.is_empty() {
                break;
            }
            request.page_token = page.next_page_token;
        }
        assert_eq!(seen, wanted, "pages of {page_size}");
    }
}
