//! A relay whose system calls are counted by the tracer, and a client for it. For failures at a
//! chosen point of one commit or one start.

use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::AtomicU64;

use baton_history::{CallOutcome, ClientOperation};
use baton_proto::v1::{SubmitRequest, TaskSpec, TaskState};
use baton_tests::{TestClient, agent_task, poll_until, send_signal, unused_port, wait_within};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tonic::Status;

use crate::chaos_run::ChaosRun;
use crate::client_load::{ClientLoad, ClientRequest, LoadClient, request_about_task};
use crate::final_state::{list_all_tasks, record_final_state};
use crate::{BATON, TRACER};

/// Size of a prompt in bytes.
const PROMPT_BYTES: usize = 8_000;
/// The tenant of the local administrator.
pub(crate) const TENANT: &str = "default";

/// A relay that may end at any time, and its data directory.
pub(crate) struct TracedRelay {
    pub(crate) dir: TempDir,
    child: Child,
    pub(crate) client: TestClient,
}

/// Result of a start.
pub(crate) enum RelayStart {
    Listening(Box<TracedRelay>),
    /// It ended before it listened, with its directory.
    Exited(TempDir, ExitStatus),
}

/// On the data under `dir`, with an action for the tracer. With `later` the tracer waits until
/// it is armed.
pub(crate) async fn start_traced_relay(
    dir: TempDir,
    token: &str,
    action: &[&str],
    later: bool,
) -> RelayStart {
    let data = dir.path().join("data");
    if later {
        std::fs::write(dir.path().join("wait"), "").expect("a file can be written");
    }
    let traced = [TRACER, data.to_str().expect("the path is UTF-8")];
    let wrapper: Vec<&str> = traced.into_iter().chain(action.iter().copied()).collect();
    let wrapper = if action.is_empty() {
        Vec::new()
    } else {
        wrapper
    };
    let listen = format!("127.0.0.1:{}", unused_port());
    let mut command = BATON.command_with_prefix(&data, &wrapper);
    let started = command.args(["relay", "--listen", &listen]).spawn();
    let mut child = started.expect("the executable can be started");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    let up = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains("listening on http") {
                return true;
            }
        }
        false
    };
    if wait_within("a start or an end", up).await {
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let client = TestClient::new(&format!("http://{listen}"), token);
        return RelayStart::Listening(Box::new(TracedRelay { dir, child, client }));
    }
    let ended = wait_within("its end", child.wait()).await;
    RelayStart::Exited(dir, ended.expect("a child can be waited for"))
}

/// A start that must succeed.
pub(crate) async fn start_untraced_relay(dir: TempDir, token: &str) -> TracedRelay {
    match start_traced_relay(dir, token, &[], false).await {
        RelayStart::Listening(relay) => *relay,
        RelayStart::Exited(dir, status) => {
            let kept = dir.keep();
            panic!(
                "no clean start: {status}; the data is kept in {}",
                kept.display()
            );
        }
    }
}

impl TracedRelay {
    /// The tracer counts from now on.
    pub(crate) async fn arm_tracer(&self) {
        let tracer = self.child.id().expect("the tracer runs");
        arm_tracer_process(tracer, &self.dir.path().join("data.armed")).await;
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    pub(crate) async fn kill(mut self) -> TempDir {
        self.child.start_kill().expect("the relay runs");
        self.wait_for_exit().await
    }

    /// Sends TERM to the relay itself, not to the tracer, and waits for both.
    pub(crate) async fn stop(mut self) -> TempDir {
        let own = self.child.id().expect("the tracer runs");
        let pid = first_child_process(own).unwrap_or(own).cast_signed();
        // The relay may just have ended. The tracer ignores the signal.
        let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
        self.wait_for_exit().await
    }

    pub(crate) async fn wait_for_exit(&mut self) -> TempDir {
        let ended = wait_within("the end of the relay", self.child.wait()).await;
        ended.expect("a child can be waited for");
        let empty = tempfile::tempdir().expect("a temporary directory can be made");
        std::mem::replace(&mut self.dir, empty)
    }
}

/// Arms a tracer and waits until it has written its confirmation file.
pub(crate) async fn arm_tracer_process(tracer: u32, confirmation: &Path) {
    send_signal(tracer, Signal::USR1);
    let has_begun = || std::fs::metadata(confirmation).is_ok_and(|file| file.len() > 0);
    poll_until("the tracer to begin", || has_begun().then_some(())).await;
}

/// The process that the tracer runs.
fn first_child_process(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Number of changes that the tracer has counted.
pub(crate) fn counted_changes(dir: &Path) -> u64 {
    let text = std::fs::read_to_string(dir.join("data.counted")).expect("the tracer counts");
    let number = text.split_whitespace().next();
    number
        .and_then(|text| text.parse().ok())
        .expect("the count is a number")
}

/// A client that makes each call only once.
pub(crate) fn single_call_client(run: &ChaosRun, client: &TestClient) -> LoadClient {
    let view = run
        .recorder
        .participant_log("client")
        .expect("a file can be created");
    LoadClient {
        client: client.clone(),
        tenant: TENANT,
        name: "client".to_owned(),
        view,
        load: ClientLoad::new(Path::new("/nowhere"), "nobody"),
        calls: AtomicU64::new(rand::random_range(0..u64::MAX / 2)),
    }
}

impl LoadClient {
    /// Submits a task with a large prompt, so that files grow.
    pub(crate) async fn submit_once(
        &self,
        agent: &str,
        key: &str,
    ) -> (CallOutcome, Option<String>) {
        let call = ClientRequest {
            op: ClientOperation::Submit,
            task: None,
            key: Some(key.to_owned()),
            body: Some(agent.to_owned()),
        };
        let request = SubmitRequest {
            spec: Some(TaskSpec {
                prompt: agent.repeat(PROMPT_BYTES / agent.len()),
                ..agent_task(agent)
            }),
            idempotency_key: key.to_owned(),
            ..SubmitRequest::default()
        };
        let answer = async {
            let answer = self.client.try_submit(request).await?;
            Ok::<_, Status>((answer.task, answer.existed))
        };
        self.call_and_record(call, answer).await
    }

    pub(crate) async fn cancel_once(&self, task: &str) -> CallOutcome {
        let answer = async {
            let answer = self.client.try_cancel(task).await?;
            Ok::<_, Status>((answer.task, answer.already_finished))
        };
        self.call_and_record(request_about_task(ClientOperation::Cancel, task), answer)
            .await
            .0
    }
}

/// Cancels all open tasks and records the final state.
pub(crate) async fn cancel_open_and_record(run: &ChaosRun, relay: &TestClient) {
    let single_caller = single_call_client(run, relay);
    for task in list_all_tasks(relay).await {
        if matches!(task.state(), TaskState::Queued | TaskState::Pending) {
            let outcome = single_caller.cancel_once(&task.task_id).await;
            assert_eq!(outcome, CallOutcome::Ok, "a relay that started works");
        }
    }
    record_final_state(relay, TENANT, &run.recorder).await;
}
