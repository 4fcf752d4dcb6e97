//! A relay whose system calls are counted, and a careful client of it: for failures at a chosen instant of one commit or one start.

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

/// Bytes of a prompt.
const PROMPT_BYTES: usize = 8_000;
/// The tenant of the local administrator.
pub(crate) const TENANT: &str = "default";

/// A relay that may end at any instant, and the directory that stays.
pub(crate) struct TracedRelay {
    pub(crate) dir: TempDir,
    child: Child,
    pub(crate) client: TestClient,
}

/// What became of a start.
pub(crate) enum RelayStart {
    Listening(Box<TracedRelay>),
    /// It ended before it listened; here is its directory.
    Exited(TempDir, ExitStatus),
}

/// On the data under `dir`, with what the tracer is to do. With `later` it begins when it is told to.
pub(crate) async fn start_traced_relay(
    dir: TempDir,
    token: &str,
    deed: &[&str],
    later: bool,
) -> RelayStart {
    let data = dir.path().join("data");
    if later {
        std::fs::write(dir.path().join("wait"), "").expect("a file can be written");
    }
    let traced = [TRACER, data.to_str().expect("a plain name")];
    let wrapper: Vec<&str> = traced.into_iter().chain(deed.iter().copied()).collect();
    let wrapper = if deed.is_empty() { Vec::new() } else { wrapper };
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
                "no clean start: {status}; its data is in {}",
                kept.display()
            );
        }
    }
}

impl TracedRelay {
    /// From now on the tracer counts.
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

    /// Asks it to stop, by its own process and not by the tracer's, and waits for both.
    pub(crate) async fn stop(mut self) -> TempDir {
        let own = self.child.id().expect("it runs");
        let pid = first_child_process(own).unwrap_or(own).cast_signed();
        // It may just have died; a tracer takes no notice.
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

/// Tells a tracer to begin, and waits until it has; it says so in a file.
pub(crate) async fn arm_tracer_process(tracer: u32, said: &Path) {
    send_signal(tracer, Signal::USR1);
    let has_begun = || std::fs::metadata(said).is_ok_and(|said| said.len() > 0);
    poll_until("the tracer to begin", || has_begun().then_some(())).await;
}

/// The process that a tracer runs.
fn first_child_process(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// How many changes the tracer has counted.
pub(crate) fn counted_changes(dir: &Path) -> u64 {
    let text = std::fs::read_to_string(dir.join("data.counted")).expect("the tracer counts");
    let number = text.split_whitespace().next();
    number.and_then(|text| text.parse().ok()).expect("a number")
}

/// A client that asks once, whatever comes.
pub(crate) fn single_call_client(run: &ChaosRun, client: &TestClient) -> LoadClient {
    let view = run
        .recorder
        .participant_log("client")
        .expect("a file can be made");
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
    /// A task whose prompt has some weight, so that files grow.
    pub(crate) async fn submit_once(
        &self,
        agent: &str,
        key: &str,
    ) -> (CallOutcome, Option<String>) {
        let question = ClientRequest {
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
        self.call_and_record(question, answer).await
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

/// Ends what is open and writes down all that there is.
pub(crate) async fn cancel_open_and_record(run: &ChaosRun, relay: &TestClient) {
    let asker = single_call_client(run, relay);
    for task in list_all_tasks(relay).await {
        if matches!(task.state(), TaskState::Queued | TaskState::Pending) {
            let outcome = asker.cancel_once(&task.task_id).await;
            assert_eq!(outcome, CallOutcome::Ok, "a relay that started works");
        }
    }
    record_final_state(relay, TENANT, &run.recorder).await;
}
