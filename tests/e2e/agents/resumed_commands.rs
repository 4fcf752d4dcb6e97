//! A plain command that is sent on: the words of whoever did it, and where the work stood, are in a private file that its
//! environment names, and nowhere on its command line.

use baton_proto::v1::{LifecyclePhase, Role, Task, TaskState};
use baton_tests::{DaemonProcess, RelayProcess, poll_until};
use serde_json::Value;

use crate::BATON;

/// Waits when it is the first attempt. Else shows what it finds, and what stands on its command line.
const COMMAND_SCRIPT: &str = r#"
if [ -z "$BATON_RESUME_FILE" ]; then echo first; sleep 600; fi
stat -c %a "$BATON_RESUME_FILE"
cat "$BATON_RESUME_FILE"
tr '\0' ' ' < /proc/$$/cmdline | grep -c 'blue ke[y]' || true
"#;

struct ResumedCommandsFixture {
    relay: RelayProcess,
    daemon: DaemonProcess,
    _dir: tempfile::TempDir,
}

impl ResumedCommandsFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("daemon.toml");
        let agents = "[agents.shell]\nkind = \"command\"\nprogram = \"sh\"\n";
        std::fs::write(&file, agents).expect("a file can be written");
        let (_, secret) = relay.admin().create_token("", Role::Daemon).await;
        let more = ["--config", file.to_str().expect("a plain path")];
        let link = (relay.admin().url(), &secret[..]);
        let daemon = DaemonProcess::start_with(BATON, dir.path(), "d", link, &more).await;
        Self {
            relay,
            daemon,
            _dir: dir,
        }
    }

    async fn run_and_read(&self, arguments: &[&str]) -> String {
        let said = BATON.run(self.relay.data(), arguments).await;
        assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}");
        said.stdout
    }

    async fn submit_command(&self, arguments: &[&str]) -> Task {
        let arguments = [&["submit", "--json"], arguments].concat();
        let told: Value =
            serde_json::from_str(&self.run_and_read(&arguments).await).expect("a task as JSON");
        let id = told["taskId"].as_str().expect("an id");
        self.relay.admin().get(id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_sent_on_finds_the_words_in_a_private_file() {
    let fleet = ResumedCommandsFixture::start().await;
    let own: &[&str] = &["--", "sh", "-c", COMMAND_SCRIPT];
    let configured: &[&str] = &["--agent", "shell", "--", "-c", COMMAND_SCRIPT];
    for arguments in [own, configured] {
        let task = fleet.submit_command(arguments).await;
        let id = task.task_id.as_str();
        let mut watch = fleet.relay.admin().watch(id).await;
        let speaks = |event: &baton_proto::v1::TaskEvent| {
            event.phase() == LifecyclePhase::FirstVisibleEventSeen
        };
        watch
            .wait_for_event("the first attempt to work", speaks)
            .await;
        let stood = ["--summary", "half of it", "--cursor", "line 7"];
        fleet
            .run_and_read(&[&["progress", id], &stood[..]].concat())
            .await;
        fleet
            .run_and_read(&["block", id, "--reason", "no key"])
            .await;
        let words = [
            "--reason",
            "the key is there",
            "--instructions",
            "Use the blue key.",
        ];
        let resume = ["resume", id, "--answer", "which key?=blue"];
        fleet.run_and_read(&[&resume[..], &words].concat()).await;
        fleet
            .relay
            .admin()
            .wait_for_state(id, TaskState::Completed)
            .await;
        let shown = fleet.run_and_read(&["output", id]).await;
        let lines: Vec<&str> = shown.lines().collect();
        let [.., mode, found, on_command_line] = lines[..] else {
            panic!("{shown}");
        };
        assert_eq!((mode, on_command_line), ("600", "0"), "{shown}");
        let found: Value = serde_json::from_str(found).expect("one line of JSON");
        let done = fleet.relay.admin().get(id).await;
        assert_eq!(found["previousAttemptId"], done.attempts[0].attempt_id);
        assert_eq!(found["resumeReason"], "the key is there");
        assert_eq!(found["instructions"], "Use the blue key.");
        assert_eq!(found["answers"][0]["question"], "which key?");
        assert_eq!(found["answers"][0]["answer"], "blue");
        assert_eq!(found["checkpoint"]["summary"], "half of it", "{found}");
        assert_eq!(found["checkpoint"]["cursor"], "line 7", "{found}");
    }
    poll_until("the file to be gone with its attempt", || {
        fleet.daemon.has_empty_outbox().then_some(())
    })
    .await;
}
