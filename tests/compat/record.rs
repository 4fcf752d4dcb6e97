//! Records a conversation of the code as it stands: a real relay, a real daemon, and a tap on the wire between them.

use std::path::PathBuf;

use baton_proto::ShortName;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    Daemon, DaemonFrame, DaemonState, ListDaemonsRequest, RetryPolicy, Role, SubmitRequest,
    SubmitResponse, TaskSpec, TaskState, daemon_frame, relay_frame,
};
use baton_tests::{
    Client, DaemonProcess, RelayProcess, Tap, Taped, command, marked_gone, poll_until, within,
};
use prost::Message;

use crate::BATON;
use crate::frames::{DOWN, UP, arm, decode, kind, list};
use crate::releases::{directory, head, pool, proto_files, sources};
use crate::tape::{Step, Tape};

/// Carried by the children, so that their end is seen.
const MARK: &str = "recorded";
/// In place of the kernel's.
const BOOT_ID: &str = "00000000-0000-4000-8000-000000000000";

/// One release a minor version.
fn release() -> PathBuf {
    let version = env!("CARGO_PKG_VERSION");
    let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    directory().join(minor)
}

/// Part of making a release; see `README.md`. Replaces what is recorded of this version.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes into the source: run it by name to record a release"]
async fn record_this_release() {
    let tape = record().await;
    check(&tape);
    let release = release();
    for file in proto_files(&sources()) {
        let to = release.join(&file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(sources().join(&file), to).unwrap();
    }
    std::fs::write(release.join("tape"), tape.text()).unwrap();
}

/// The scene: what the recording needs while it runs.
struct Scene {
    client: Client,
    tap: Tap,
    work: PathBuf,
    /// What clients did, each behind how many frames.
    done: Vec<(usize, Step)>,
    tasks: Vec<String>,
}

async fn record() -> Tape {
    let relay = RelayProcess::start(BATON).await;
    let client = relay.admin().clone();
    let (_, secret) = client.make_token("", Role::Daemon).await;
    let tap = Tap::start(client.url()).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut daemon = DaemonProcess::start(BATON, dir.path(), "recorded", &tap.url(), &secret).await;
    let mut scene = Scene {
        client,
        tap,
        work: daemon.data.join("work"),
        done: Vec::new(),
        tasks: Vec::new(),
    };
    ordinary_ends(&mut scene).await;
    broken_wires(&mut scene).await;
    scene.note(Step::Terminate);
    assert_eq!(daemon.terminate().await.code(), Some(0));
    scene.finish().await
}

/// One of each end.
async fn ordinary_ends(scene: &mut Scene) {
    let done = scene.submit(shell("printf 'one\\ntwo\\n'")).await;
    scene.until(&done, TaskState::Completed).await;
    let mut failing = shell("echo no >&2; exit 7");
    failing.retry = Some(RetryPolicy {
        max_attempts: Some(1),
        ..RetryPolicy::default()
    });
    let failed = scene.submit(failing).await;
    scene.until(&failed, TaskState::Failed).await;
    let mut prompted = shell("cat");
    "a prompt on standard input\n".clone_into(&mut prompted.prompt);
    let prompted = scene.submit(prompted).await;
    scene.until(&prompted, TaskState::Completed).await;
    let endless = scene.submit(waits_for("never")).await;
    scene.begun(&endless).await;
    scene.cancel(&endless).await;
    scene.until(&endless, TaskState::Canceled).await;
}

/// One attempt goes on through a broken wire, one ends behind it.
async fn broken_wires(scene: &mut Scene) {
    let kept = scene.submit(waits_for("kept")).await;
    scene.begun(&kept).await;
    scene.cut().await;
    scene.mend().await;
    scene.touch("kept");
    scene.until(&kept, TaskState::Completed).await;
    let adopted = scene.submit(waits_for("adopted")).await;
    scene.begun(&adopted).await;
    scene.cut().await;
    scene.touch("adopted");
    marked_gone(MARK).await;
    scene.mend().await;
    scene.until(&adopted, TaskState::Completed).await;
}

/// Paths are relative to where the daemon runs its children, so that no machine's paths are recorded.
fn shell(script: &str) -> TaskSpec {
    command("sh", &["-c", script], MARK)
}

fn waits_for(file: &str) -> TaskSpec {
    shell(&format!(
        "echo begun; until [ -e {file} ]; do sleep 0.05; done; echo finished"
    ))
}

impl Scene {
    fn note(&mut self, step: Step) {
        self.done.push((self.tap.frames().len(), step));
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
        self.done.push((
            before,
            Step::Submit {
                request: request.encode_to_vec(),
                response: response.encode_to_vec(),
            },
        ));
        self.tasks.push(task.clone());
        task
    }

    async fn until(&mut self, task: &str, state: TaskState) {
        self.client.until_state(task, state).await;
        self.note(Step::Until {
            task: task.to_owned(),
            state: state.short_name().to_owned(),
        });
    }

    /// The child runs and has said so.
    async fn begun(&self, task: &str) {
        let is_output = |frame: &Taped| match frame {
            Taped::Up(frame) => match &frame.frame {
                Some(daemon_frame::Frame::Attempt(attempt)) => {
                    let of = attempt.r#ref.as_ref().map(|it| it.task_id.as_str());
                    of == Some(task) && matches!(attempt.body, Some(Body::Stream(_)))
                }
                Some(_) | None => false,
            },
            Taped::Down(_) => false,
        };
        poll_until("output", || {
            self.tap.frames().iter().any(is_output).then_some(())
        })
        .await;
    }

    async fn cancel(&mut self, task: &str) {
        self.note(Step::Cancel {
            task: task.to_owned(),
        });
        self.client.cancel(task).await;
    }

    fn touch(&mut self, file: &str) {
        self.note(Step::Touch {
            file: file.to_owned(),
        });
        std::fs::write(self.work.join(file), "").expect("a file can be written");
    }

    /// Returns once the relay has noticed.
    async fn cut(&mut self) {
        self.tap.cut();
        self.note(Step::Cut);
        let mut fleet = self.client.fleet();
        let gone = |daemon: &Daemon| daemon.state() == DaemonState::Offline;
        within("the relay to notice", async {
            loop {
                let listed = fleet.list_daemons(ListDaemonsRequest::default()).await;
                let listed = listed.expect("daemons can be listed").into_inner();
                if listed.daemons.iter().all(gone) {
                    return;
                }
            }
        })
        .await;
    }

    /// Returns once the daemon is back.
    async fn mend(&mut self) {
        let before = self.welcomes();
        self.note(Step::Mend);
        self.tap.mend();
        poll_until("the daemon to be back", || {
            (self.welcomes() > before).then_some(())
        })
        .await;
    }

    fn welcomes(&self) -> usize {
        let is_welcome = |frame: &&Taped| match frame {
            Taped::Down(frame) => matches!(frame.frame, Some(relay_frame::Frame::Welcome(_))),
            Taped::Up(_) => false,
        };
        self.tap.frames().iter().filter(is_welcome).count()
    }

    /// Frames and what clients did, in one order, and how everything ended.
    async fn finish(self) -> Tape {
        let pool = pool(head().clone());
        let frames = self.tap.frames();
        let mut steps = Vec::new();
        let mut done = self.done.into_iter().peekable();
        for (at, frame) in frames.iter().enumerate() {
            while let Some((_, step)) = done.next_if(|(before, _)| *before <= at) {
                steps.push(step);
            }
            steps.push(match frame {
                Taped::Up(frame) => {
                    let bytes = of_no_machine(frame).encode_to_vec();
                    let kind = kind(&decode(&pool, UP, &bytes));
                    Step::Up { kind, bytes }
                }
                Taped::Down(frame) => {
                    let bytes = frame.encode_to_vec();
                    let kind = kind(&decode(&pool, DOWN, &bytes));
                    Step::Down { kind, bytes }
                }
            });
        }
        steps.extend(done.map(|(_, step)| step));
        for task in &self.tasks {
            let ended = self.client.get(task).await;
            steps.push(Step::End {
                task: task.clone(),
                state: ended.state().short_name().to_owned(),
                output: self.client.output(task).await,
            });
        }
        Tape(steps)
    }
}

fn of_no_machine(frame: &DaemonFrame) -> DaemonFrame {
    let mut frame = frame.clone();
    if let Some(daemon_frame::Frame::Hello(hello)) = &mut frame.frame {
        BOOT_ID.clone_into(&mut hello.boot_id);
    }
    frame
}

/// A recording that lacks one of these is made again.
fn check(tape: &Tape) {
    let pool = pool(head().clone());
    let mut decisions = Vec::new();
    for step in &tape.0 {
        if let Step::Down { bytes, .. } = step {
            let settled = list(&decode(&pool, DOWN, bytes), &["welcome", "settlements"]);
            decisions.extend(settled.iter().filter_map(|one| arm(one, "decision")));
        }
    }
    assert_eq!(decisions, ["keep", "adopt"], "record again");
}
