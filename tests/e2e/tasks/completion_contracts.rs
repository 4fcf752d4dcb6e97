//! Completion contracts with real processes: all missing files are listed at once, links that
//! leave the workspace are not followed, and a result is accepted once its files exist.

use baton_proto::codes::refusals;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    ArtifactReceipt, AttentionCause, CompletionContract, CutReason, ErrorDetail, FrameRejected,
    MissingPolicy, RelayFrame, RequiredArtifact, TaskComplete, TaskEventKind, TaskSpec, TaskState,
    relay_frame,
};
use baton_tests::{
    CommandOutput, EmbeddedRelay, RelayAndDaemon, ScriptedAttempt, ScriptedDaemon, agent_task,
    hello,
};

use crate::BATON;

struct ContractsFixture {
    servers: RelayAndDaemon,
}

impl ContractsFixture {
    async fn start() -> Self {
        let servers = RelayAndDaemon::start(BATON).await;
        Self { servers }
    }

    /// Runs a shell script as a task with these flags and waits for its end.
    async fn submit(&self, flags: &[&str], script: &str) -> CommandOutput {
        let mut arguments = vec!["submit", "--json", "--wait", "--max-attempts", "1"];
        arguments.extend(flags);
        arguments.extend(["--", "sh", "-c", script]);
        self.servers.run_command(&arguments).await
    }
}

/// Creates wrong kinds of files at the required paths: directory, pipe, links out of the
/// workspace.
const BAD_FILES_SCRIPT: &str = "mkdir -p trouble/dir && cd trouble && mkfifo pipe && ln -s /etc/passwd away \
    && ln -s ../.. up && ln -s /proc/self/root magic && printf abc > small && printf x > other && printf good > good";

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_its_required_files_fails_and_lists_each() {
    let fixture = ContractsFixture::start().await;
    let zeros = format!("trouble/other,sha256={}", "0".repeat(64));
    let flags = [
        "--require",
        "trouble/gone",
        "--require",
        "trouble/dir",
        "--require",
        "trouble/pipe",
        "--require",
        "trouble/away",
        "--require",
        "trouble/up/etc/passwd",
        "--require",
        "trouble/magic/etc/passwd",
        "--require",
        "trouble/small,min=4B",
        "--require",
        &zeros,
        "--require",
        "trouble/good",
    ];
    let refused = fixture.submit(&flags, BAD_FILES_SCRIPT).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let task = refused.stdout_json();
    assert_eq!(task["state"], "failed");
    let attempt = &task["attempts"][0];
    assert_eq!(attempt["failureCode"], "receipts_missing", "{attempt}");
    let message = attempt["message"].as_str().expect("a message");
    for expected in [
        "8 required files",
        "trouble/gone: missing",
        "trouble/dir: it is a directory, not a regular file",
        "trouble/pipe: it is a pipe, not a regular file",
        "trouble/away: it leads out of the workspace",
        "trouble/up/etc/passwd: it leads out of the workspace",
        "trouble/small: 3 bytes, at least 4 are required",
        "trouble/other: SHA-256 does not match, found ",
    ] {
        assert!(
            message.contains(expected),
            "{expected:?} is not in {message:?}"
        );
    }
    assert!(!message.contains("trouble/good"), "{message:?}");
    let receipts = attempt["artifacts"].as_array().expect("receipts");
    assert_eq!(receipts.len(), 9);
    let receipt_of = |path: &str| {
        let found = receipts.iter().find(|receipt| receipt["path"] == path);
        found.expect("a receipt").clone()
    };
    // A file outside the workspace is not read, so its receipt has no size.
    let outside = receipt_of("trouble/away");
    assert!(
        outside["size"].as_u64().is_none_or(|size| size == 0),
        "{outside}"
    );
    assert!(
        outside["sha256"].as_str().is_none_or(str::is_empty),
        "{outside}"
    );
    assert_eq!(receipt_of("trouble/good")["size"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_its_required_files_completes_through_inner_links() {
    let fixture = ContractsFixture::start().await;
    let script = "mkdir -p out && printf hello > out/a && ln -sf a out/link";
    let hello =
        "out/a,min=5B,sha256=2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let done = fixture
        .submit(&["--require", hello, "--require", "out/link"], script)
        .await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let task = done.stdout_json();
    assert_eq!(task["attempts"][0]["artifacts"][1]["resolvedPath"], "out/a");
    let id = task["taskId"].as_str().expect("the task has an id");
    let shown = fixture.servers.run_command(&["show", id]).await;
    assert!(
        shown.stdout.contains("out/link: 5 bytes"),
        "{}",
        shown.stdout
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_outside_the_workspace_are_refused_at_submit() {
    let fixture = ContractsFixture::start().await;
    for bad in [
        "/etc/passwd",
        "../x",
        "a/../../x",
        ".",
        "C:/x",
        "a\\b",
        "a//b",
        " ",
    ] {
        let refused = fixture.submit(&["--require", bad], "true").await;
        assert_eq!(refused.code, Some(2), "{bad:?}: {refused:?}");
    }
}

fn contract_with_policy(policy: MissingPolicy) -> Option<CompletionContract> {
    let required = |path: &str| RequiredArtifact {
        path: path.to_owned(),
        ..RequiredArtifact::default()
    };
    Some(CompletionContract {
        required_artifacts: ["out/a", "out/b"].map(required).into(),
        missing_policy: policy.into(),
    })
}

fn completion_with_files(attempt: &ScriptedAttempt, paths: &[&str]) -> Body {
    let Body::Complete(result) = attempt.completion_body("done") else {
        unreachable!("a completion");
    };
    let file = |path: &&str| ArtifactReceipt {
        path: (*path).to_owned(),
        exists: true,
        is_file: true,
        ..ArtifactReceipt::default()
    };
    Body::Complete(TaskComplete {
        artifacts: paths.iter().map(file).collect(),
        ..result
    })
}

async fn wait_for_rejection(daemon: &mut ScriptedDaemon) -> ErrorDetail {
    let pick = |frame: &RelayFrame| match &frame.frame {
        Some(relay_frame::Frame::Rejected(FrameRejected { error, .. })) => error.clone(),
        _ => None,
    };
    daemon.expect_frame("a refusal", pick).await
}

/// The attempt keeps its lease after the refusal and completes once the files exist.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_completion_lists_the_paths_and_succeeds_once_files_exist() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let token = relay.daemon_token().await;
    let worker = client.with_token(&token);
    let mut daemon = ScriptedDaemon::connect(&worker, hello(&["scripted"])).await;
    let spec = TaskSpec {
        contract: contract_with_policy(MissingPolicy::Reject),
        ..agent_task("scripted")
    };
    let task = client.submit(spec).await;
    let mut attempt = daemon.start_next_attempt().await;
    let body = completion_with_files(&attempt, &[]);
    attempt.send(body).await;
    let refused = wait_for_rejection(&mut daemon).await;
    assert_eq!(refused.code, refusals::CONTRACT_UNMET);
    assert_eq!(refused.missing, ["out/a", "out/b"]);
    assert!(
        refused
            .message
            .contains("out/a: no receipt; out/b: no receipt")
    );
    let body = completion_with_files(&attempt, &["out/b"]);
    attempt.send(body).await;
    assert_eq!(wait_for_rejection(&mut daemon).await.missing, ["out/a"]);
    let running = client.get(&task.task_id).await;
    assert_eq!(running.state(), TaskState::Running);
    assert!(
        running.attempts[0]
            .lease
            .as_ref()
            .is_some_and(|lease| lease.live)
    );

    let body = completion_with_files(&attempt, &["out/a", "out/b"]);
    attempt.send(body).await;
    daemon.wait_until_acked(&attempt).await;
    let events = client.watch(&task.task_id).await.collect_to_end().await;
    let refused = events
        .iter()
        .filter(|event| event.kind() == TaskEventKind::CompletionRefused);
    let missing: Vec<usize> = refused.map(|event| event.missing.len()).collect();
    assert_eq!(missing, [2, 1]);
    let done = client.get(&task.task_id).await;
    assert_eq!(done.state(), TaskState::Completed);
    assert_eq!(done.attempts[0].artifacts.len(), 2);
    assert_eq!(
        AttentionCause::Unspecified as i32,
        done.attention.map_or(0, |a| a.cause)
    );
}

/// A result whose preceding output is missing is refused, the stream continues, and output that
/// never arrives becomes a recorded cut.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_before_its_output_is_refused_and_the_stream_continues() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let token = relay.daemon_token().await;
    let worker = client.with_token(&token);
    let mut daemon = ScriptedDaemon::connect(&worker, hello(&["scripted"])).await;
    let task = client.submit(agent_task("scripted")).await;
    let mut attempt = daemon.start_next_attempt().await;
    attempt.send_output("first").await;
    let seq = attempt.control_seq + 1;
    attempt.offset += 10;
    let early = attempt.frame(seq, attempt.completion_body("done"));
    attempt.send_frame(early.clone()).await;
    assert_eq!(
        wait_for_rejection(&mut daemon).await.code,
        refusals::OUTPUT_GAP
    );
    assert_eq!(client.get(&task.task_id).await.state(), TaskState::Running);
    // Sent again with the same number. The ten bytes do not exist, so they are recorded as a
    // cut.
    attempt.complete("done").await;
    daemon.wait_until_acked(&attempt).await;
    assert_eq!(
        client.get(&task.task_id).await.state(),
        TaskState::Completed
    );
    let (cut, end) = client.read_last_cut_and_end(&task.task_id, 0).await;
    let cut = cut.map(|cut| (cut.offset, cut.length, cut.reason()));
    assert_eq!(cut, Some((5, 10, CutReason::NotReceived)));
    assert_eq!(end.offset, 15);
}
