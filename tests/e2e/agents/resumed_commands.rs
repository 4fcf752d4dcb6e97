//! A plain command that is resumed. The instructions and the last checkpoint are in a private
//! file named by an environment variable, and never on its command line.

use baton_proto::v1::{LifecyclePhase, Task, TaskState};
use baton_tests::{RelayAndDaemon, poll_until};
use serde_json::Value;

use crate::BATON;

/// Waits in the first attempt. In the next it prints the resume file and whether its command
/// line contains the instructions.
const COMMAND_SCRIPT: &str = r#"
if [ -z "$BATON_RESUME_FILE" ]; then echo first; sleep 600; fi
stat -c %a "$BATON_RESUME_FILE"
cat "$BATON_RESUME_FILE"
tr '\0' ' ' < /proc/$$/cmdline | grep -c 'blue ke[y]' || true
"#;

struct ResumedCommandsFixture {
    servers: RelayAndDaemon,
}

impl ResumedCommandsFixture {
    async fn start() -> Self {
        let agents = "[agents.shell]\nkind = \"command\"\nprogram = \"sh\"\n";
        let servers = RelayAndDaemon::start_with_config(BATON, |_| agents.to_owned()).await;
        Self { servers }
    }

    async fn run_and_read(&self, arguments: &[&str]) -> String {
        let output = self.servers.run_command(arguments).await;
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        output.stdout
    }

    async fn submit_command(&self, arguments: &[&str]) -> Task {
        let arguments = [&["submit", "--json"], arguments].concat();
        let task: Value =
            serde_json::from_str(&self.run_and_read(&arguments).await).expect("a task as JSON");
        let id = task["taskId"].as_str().expect("the task has an id");
        self.servers.client().get(id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_command_finds_its_instructions_in_a_private_file() {
    let fixture = ResumedCommandsFixture::start().await;
    let from_task: &[&str] = &["--", "sh", "-c", COMMAND_SCRIPT];
    let configured: &[&str] = &["--agent", "shell", "--", "-c", COMMAND_SCRIPT];
    for arguments in [from_task, configured] {
        let task = fixture.submit_command(arguments).await;
        let id = task.task_id.as_str();
        let mut watch = fixture.servers.client().watch(id).await;
        let has_output = |event: &baton_proto::v1::TaskEvent| {
            event.phase() == LifecyclePhase::FirstVisibleEventSeen
        };
        watch
            .wait_for_event("the first attempt to print", has_output)
            .await;
        let checkpoint = ["--summary", "half of it", "--cursor", "line 7"];
        fixture
            .run_and_read(&[&["progress", id], &checkpoint[..]].concat())
            .await;
        fixture
            .run_and_read(&["block", id, "--reason", "no key"])
            .await;
        let instructions = [
            "--reason",
            "the key is there",
            "--instructions",
            "Use the blue key.",
        ];
        let resume = ["resume", id, "--answer", "which key?=blue"];
        fixture
            .run_and_read(&[&resume[..], &instructions].concat())
            .await;
        fixture
            .servers
            .client()
            .wait_for_state(id, TaskState::Completed)
            .await;
        let shown = fixture.run_and_read(&["output", id]).await;
        let lines: Vec<&str> = shown.lines().collect();
        let [.., mode, resume_file, on_command_line] = lines[..] else {
            panic!("{shown}");
        };
        assert_eq!((mode, on_command_line), ("600", "0"), "{shown}");
        let resume_file: Value = serde_json::from_str(resume_file).expect("one line of JSON");
        let done = fixture.servers.client().get(id).await;
        assert_eq!(
            resume_file["previousAttemptId"],
            done.attempts[0].attempt_id
        );
        assert_eq!(resume_file["resumeReason"], "the key is there");
        assert_eq!(resume_file["instructions"], "Use the blue key.");
        assert_eq!(resume_file["answers"][0]["question"], "which key?");
        assert_eq!(resume_file["answers"][0]["answer"], "blue");
        assert_eq!(
            resume_file["checkpoint"]["summary"], "half of it",
            "{resume_file}"
        );
        assert_eq!(
            resume_file["checkpoint"]["cursor"], "line 7",
            "{resume_file}"
        );
    }
    poll_until("the file to be gone with its attempt", || {
        fixture.servers.daemon.has_empty_outbox().then_some(())
    })
    .await;
}
