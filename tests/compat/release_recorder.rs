//! Records a conversation of the current code: a real relay, a real daemon, and a frame tap
//! between them.

use std::path::PathBuf;

use baton_proto::ShortName;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    Daemon, DaemonFrame, DaemonState, ListDaemonsRequest, RetryPolicy, Role, SubmitRequest,
    SubmitResponse, TaskSpec, TaskState, daemon_frame, relay_frame,
};
use baton_tests::{
    DaemonProcess, FrameTap, RelayProcess, TappedFrame, TestClient, command_task, poll_until,
    wait_until_marked_gone, wait_within,
};
use prost::Message;

use crate::BATON;
use crate::dynamic_frames::{
    DAEMON_FRAME, RELAY_FRAME, decode, frame_kind, messages_at, oneof_arm,
};
use crate::releases::{
    current_protocol, descriptor_pool, proto_directory, proto_files, releases_directory,
};
use crate::tape::{RecordedConversation, RecordedStep};

/// Set on the children, so that their end can be observed.
const PROCESS_MARKER: &str = "recorded";
/// Replaces the kernel's boot id.
const BOOT_ID: &str = "00000000-0000-4000-8000-000000000000";

/// One recorded release per minor version.
fn release_directory() -> PathBuf {
    let version = env!("CARGO_PKG_VERSION");
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    releases_directory().join(minor)
}

/// Part of making a release; see `README.md`. Replaces the recording of this version.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes into the source: run it by name to record a release"]
async fn record_this_release() {
    let tape = record_conversation().await;
    check_decisions(&tape);
    let release = release_directory();
    for file in proto_files(&proto_directory()) {
        let to = release.join(&file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(proto_directory().join(&file), to).unwrap();
    }
    std::fs::write(release.join("tape"), tape.text()).unwrap();
}

/// State of the recording.
struct ReleaseRecording {
    client: TestClient,
    tap: FrameTap,
    work: PathBuf,
    /// Steps of clients, each with the number of frames before it.
    client_steps: Vec<(usize, RecordedStep)>,
    tasks: Vec<String>,
}

async fn record_conversation() -> RecordedConversation {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.create_token("", Role::Daemon).await;
    let tap = FrameTap::start(client.url()).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut daemon = DaemonProcess::start(BATON, dir.path(), "recorded", &tap.url(), &secret).await;
    let mut recording = ReleaseRecording {
        client,
        tap,
        work: daemon.data.join("work"),
        client_steps: Vec::new(),
        tasks: Vec::new(),
    };
    record_ordinary_ends(&mut recording).await;
    record_broken_streams(&mut recording).await;
    recording.add_step(RecordedStep::Terminate);
    assert_eq!(daemon.terminate().await.code(), Some(0));
    recording.into_conversation().await
}

/// One attempt of each kind of end.
async fn record_ordinary_ends(recording: &mut ReleaseRecording) {
    let done = recording.submit(shell_task("printf 'one\\ntwo\\n'")).await;
    recording.wait_for_state(&done, TaskState::Completed).await;
    let mut failing = shell_task("echo no >&2; exit 7");
    failing.retry = Some(RetryPolicy {
        max_attempts: Some(1),
        ..RetryPolicy::default()
    });
    let failed = recording.submit(failing).await;
    recording.wait_for_state(&failed, TaskState::Failed).await;
    let mut prompted = shell_task("cat");
    "a prompt on standard input\n".clone_into(&mut prompted.prompt);
    let prompted = recording.submit(prompted).await;
    recording
        .wait_for_state(&prompted, TaskState::Completed)
        .await;
    let endless = recording.submit(shell_task_until("never")).await;
    recording.wait_for_output(&endless).await;
    recording.cancel(&endless).await;
    recording
        .wait_for_state(&endless, TaskState::Canceled)
        .await;
}

/// One attempt continues across a cut connection, one ends during it.
async fn record_broken_streams(recording: &mut ReleaseRecording) {
    let kept = recording.submit(shell_task_until("kept")).await;
    recording.wait_for_output(&kept).await;
    recording.cut_stream().await;
    recording.restore_stream().await;
    recording.touch_file("kept");
    recording.wait_for_state(&kept, TaskState::Completed).await;
    let adopted = recording.submit(shell_task_until("adopted")).await;
    recording.wait_for_output(&adopted).await;
    recording.cut_stream().await;
    recording.touch_file("adopted");
    wait_until_marked_gone(PROCESS_MARKER).await;
    recording.restore_stream().await;
    recording
        .wait_for_state(&adopted, TaskState::Completed)
        .await;
}

/// Paths are relative to the daemon's working directory, so that no path of this machine is
/// recorded.
fn shell_task(script: &str) -> TaskSpec {
    command_task("sh", &["-c", script], PROCESS_MARKER)
}

fn shell_task_until(file: &str) -> TaskSpec {
    shell_task(&format!(
        "echo begun; until [ -e {file} ]; do sleep 0.05; done; echo finished"
    ))
}

impl ReleaseRecording {
    fn add_step(&mut self, step: RecordedStep) {
        self.client_steps.push((self.tap.frames().len(), step));
    }

    async fn submit(&mut self, spec: TaskSpec) -> String {
        let request = SubmitRequest {
            spec: Some(spec),
            ..SubmitRequest::default()
        };
        let before = self.tap.frames().len();
        let response: SubmitResponse = {
            let submitted = self.client.try_submit(request.clone()).await;
            submitted.expect("a task is accepted")
        };
        let task = response.task.clone().unwrap_or_default().task_id;
        self.client_steps.push((
            before,
            RecordedStep::Submit {
                request: request.encode_to_vec(),
                response: response.encode_to_vec(),
            },
        ));
        self.tasks.push(task.clone());
        task
    }

    async fn wait_for_state(&mut self, task: &str, state: TaskState) {
        self.client.wait_for_state(task, state).await;
        self.add_step(RecordedStep::Until {
            task: task.to_owned(),
            state: state.short_name().to_owned(),
        });
    }

    /// Waits until the child has printed its first output.
    async fn wait_for_output(&self, task: &str) {
        let is_output = |frame: &TappedFrame| match frame {
            TappedFrame::FromDaemon(frame) => match &frame.frame {
                Some(daemon_frame::Frame::Attempt(attempt)) => {
                    let of = attempt.r#ref.as_ref().map(|it| it.task_id.as_str());
                    of == Some(task) && matches!(attempt.body, Some(Body::Stream(_)))
                }
                Some(_) | None => false,
            },
            TappedFrame::FromRelay(_) => false,
        };
        poll_until("output", || {
            self.tap.frames().iter().any(is_output).then_some(())
        })
        .await;
    }

    async fn cancel(&mut self, task: &str) {
        self.add_step(RecordedStep::Cancel {
            task: task.to_owned(),
        });
        self.client.cancel(task).await;
    }

    fn touch_file(&mut self, file: &str) {
        self.add_step(RecordedStep::Touch {
            file: file.to_owned(),
        });
        std::fs::write(self.work.join(file), "").expect("a file can be written");
    }

    /// Returns when the relay has noticed.
    async fn cut_stream(&mut self) {
        self.tap.cut();
        self.add_step(RecordedStep::Cut);
        let mut fleet = self.client.fleet();
        let is_offline = |daemon: &Daemon| daemon.state() == DaemonState::Offline;
        wait_within("the relay to notice", async {
            loop {
                let listed = fleet.list_daemons(ListDaemonsRequest::default()).await;
                let listed = listed.expect("daemons can be listed").into_inner();
                if listed.daemons.iter().all(is_offline) {
                    return;
                }
            }
        })
        .await;
    }

    /// Returns when the daemon has reconnected.
    async fn restore_stream(&mut self) {
        let before = self.welcome_count();
        self.add_step(RecordedStep::Restore);
        self.tap.restore();
        poll_until("the daemon to reconnect", || {
            (self.welcome_count() > before).then_some(())
        })
        .await;
    }

    fn welcome_count(&self) -> usize {
        let is_welcome = |frame: &&TappedFrame| match frame {
            TappedFrame::FromRelay(frame) => {
                matches!(frame.frame, Some(relay_frame::Frame::Welcome(_)))
            }
            TappedFrame::FromDaemon(_) => false,
        };
        self.tap.frames().iter().filter(is_welcome).count()
    }

    /// Frames and client steps in one order, and the ends of all tasks.
    async fn into_conversation(self) -> RecordedConversation {
        let pool = descriptor_pool(current_protocol().clone());
        let frames = self.tap.frames();
        let mut steps = Vec::new();
        let mut done = self.client_steps.into_iter().peekable();
        for (at, frame) in frames.iter().enumerate() {
            while let Some((_, step)) = done.next_if(|(before, _)| *before <= at) {
                steps.push(step);
            }
            steps.push(match frame {
                TappedFrame::FromDaemon(frame) => {
                    let bytes = without_boot_id(frame).encode_to_vec();
                    let kind = frame_kind(&decode(&pool, DAEMON_FRAME, &bytes));
                    RecordedStep::Up { kind, bytes }
                }
                TappedFrame::FromRelay(frame) => {
                    let bytes = frame.encode_to_vec();
                    let kind = frame_kind(&decode(&pool, RELAY_FRAME, &bytes));
                    RecordedStep::Down { kind, bytes }
                }
            });
        }
        steps.extend(done.map(|(_, step)| step));
        for task in &self.tasks {
            let ended = self.client.get(task).await;
            steps.push(RecordedStep::End {
                task: task.clone(),
                state: ended.state().short_name().to_owned(),
                output: self.client.read_output_to_end(task).await,
            });
        }
        RecordedConversation(steps)
    }
}

fn without_boot_id(frame: &DaemonFrame) -> DaemonFrame {
    let mut frame = frame.clone();
    if let Some(daemon_frame::Frame::Hello(hello)) = &mut frame.frame {
        BOOT_ID.clone_into(&mut hello.boot_id);
    }
    frame
}

/// A recording without one of these must be repeated.
fn check_decisions(tape: &RecordedConversation) {
    let pool = descriptor_pool(current_protocol().clone());
    let mut decisions = Vec::new();
    for step in &tape.0 {
        if let RecordedStep::Down { bytes, .. } = step {
            let settled = messages_at(
                &decode(&pool, RELAY_FRAME, bytes),
                &["welcome", "settlements"],
            );
            decisions.extend(settled.iter().filter_map(|one| oneof_arm(one, "decision")));
        }
    }
    assert_eq!(decisions, ["keep", "adopt"], "record again");
}
