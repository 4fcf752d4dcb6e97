//! `baton submit --follow` at a terminal: what the agent asks is asked there, typed keys are the answer, and whoever sits there
//! learns when somebody else was quicker.

use baton_proto::v1::{InputState, ListInputsRequest, ListTasksRequest, Task, TaskState};
use baton_tests::{
    DaemonProcess, PseudoTerminal, RelayProcess, TestClient, standin_agents_toml, wait_within,
};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// A relay, a daemon with stand-ins, and a person at a terminal.
struct TerminalFixture {
    relay: RelayProcess,
    _daemon: DaemonProcess,
    _dir: TempDir,
}

impl TerminalFixture {
    async fn start() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let file = dir.path().join("daemon.toml");
        std::fs::write(&file, standin_agents_toml(STANDIN, &[])).expect("a file can be written");
        let more = ["--config", file.to_str().expect("paths of tests are text")];
        let (_, secret) = relay
            .admin()
            .create_token("", baton_proto::v1::Role::Daemon)
            .await;
        let link = (relay.admin().url(), secret.as_str());
        let daemon = DaemonProcess::start_with(BATON, dir.path(), "d", link, &more).await;
        Self {
            relay,
            _daemon: daemon,
            _dir: dir,
        }
    }

    /// Follows an agent that plays this script.
    fn follow_script(&self, agent: &str, script: &str) -> PseudoTerminal {
        let arguments = ["submit", "--follow", "--agent", agent, "--prompt", script];
        PseudoTerminal::run(BATON, self.relay.data(), &arguments)
    }

    fn client(&self) -> &TestClient {
        self.relay.admin()
    }

    /// The only task.
    async fn only_task(&self) -> Task {
        let mut tasks = self.client().tasks();
        let listed = tasks.list(ListTasksRequest::default());
        let listed = wait_within("a list of tasks", listed).await;
        let mut tasks = listed.expect("tasks are listed").into_inner().tasks;
        assert_eq!(tasks.len(), 1, "{tasks:#?}");
        self.client().get(&tasks.remove(0).task_id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_and_a_question_are_answered_with_keys() {
    for agent in ["claude", "codex", "acp"] {
        let desk = TerminalFixture::start().await;
        // Not every wire has questions; those that do ask one after the permission.
        let asks = agent != "acp";
        let question = if asks {
            "; question Which colour? = red, green"
        } else {
            ""
        };
        let script = format!("ask Bash ls -la{question}; say done with it");
        let mut terminal = desk.follow_script(agent, &script);
        terminal.wait_for_text("permission for").await;
        terminal.wait_for_text("ls -la").await;
        terminal.wait_for_text("allow? [y]es").await;
        terminal.type_keys("perhaps\n");
        terminal.wait_for_text("is no answer to this").await;
        terminal.wait_for_text("allow? [y]es").await;
        terminal.type_keys("y\n");
        terminal.wait_for_text("allowed by").await;
        if asks {
            terminal.wait_for_text("Which colour?").await;
            terminal.wait_for_text("2. green").await;
            terminal.wait_for_text("number, or Enter").await;
            terminal.type_keys("2\n");
        }
        terminal.wait_for_text("done with it").await;
        assert_eq!(
            terminal.wait_for_exit().await,
            Some(0),
            "{}",
            terminal.screen()
        );
        let task = desk.only_task().await;
        assert_eq!(task.state(), TaskState::Completed, "{agent}");
        // The stand-in says what it was told.
        let output = desk.client().read_output_to_end(&task.task_id).await;
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains("allowed"), "{agent}: {output}");
        assert!(!asks || output.contains("green"), "{agent}: {output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_is_no_and_enter_leaves_it_open() {
    let desk = TerminalFixture::start().await;
    let mut terminal = desk.follow_script("claude", "ask Bash rm x; ask Bash ls; say over");
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("n\n");
    terminal.wait_for_text("denied by").await;
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("\n");
    terminal.wait_for_text("left open; baton answer").await;
    let task = desk.only_task().await;
    let open = desk.client().open_inputs(&task.task_id).await;
    assert_eq!(open.len(), 1, "{open:?}");
    desk.client().answer_permission(&open[0], true).await;
    terminal.wait_for_text("over").await;
    assert_eq!(
        terminal.wait_for_exit().await,
        Some(0),
        "{}",
        terminal.screen()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_in_the_middle_of_a_question_leaves_the_task_and_its_question() {
    let desk = TerminalFixture::start().await;
    let mut terminal = desk.follow_script("claude", "ask Bash ls; say over");
    terminal.wait_for_text("allow? [y]es").await;
    // Half an answer, and then the key.
    terminal.type_keys("y\x03");
    terminal.wait_for_text("detached; the task goes on").await;
    terminal.wait_for_text("come back with: baton watch").await;
    assert_eq!(
        terminal.wait_for_exit().await,
        Some(130),
        "{}",
        terminal.screen()
    );
    let task = desk.only_task().await;
    assert_eq!(task.state(), TaskState::Running);
    let open = desk.client().open_inputs(&task.task_id).await;
    assert_eq!(open.len(), 1, "half an answer is none: {open:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_given_elsewhere_is_told_with_who_gave_it() {
    let desk = TerminalFixture::start().await;
    let mut terminal = desk.follow_script("claude", "ask Bash ls; ask Bash pwd; say over");
    terminal.wait_for_text("allow? [y]es").await;
    let task = desk.only_task().await;
    let open = desk.client().open_inputs(&task.task_id).await;
    desk.client().answer_permission(&open[0], true).await;
    terminal.wait_for_text("(allowed by").await;
    // What is asked next is asked anew, and answered by what is typed from then on.
    terminal.wait_for_text("pwd").await;
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("n\n");
    terminal.wait_for_text("denied by").await;
    assert_eq!(
        terminal.wait_for_exit().await,
        Some(0),
        "{}",
        terminal.screen()
    );
    let request = ListInputsRequest {
        task_id: task.task_id.clone(),
        include_closed: true,
        ..ListInputsRequest::default()
    };
    let listed = desk.client().inputs().list_inputs(request).await;
    let inputs = listed.expect("inputs are listed").into_inner().inputs;
    assert_eq!(inputs.len(), 2);
    for input in &inputs {
        assert_eq!(input.state(), InputState::Received, "{input:?}");
    }
}

/// A person who hits keys while output runs by has not allowed what was not asked yet.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_it_was_asked_is_no_answer() {
    let desk = TerminalFixture::start().await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let go = dir.path().join("go");
    let script = format!("say working; until {}; ask Bash ls; say over", go.display());
    let mut terminal = desk.follow_script("claude", &script);
    terminal.wait_for_text("attempt 1 streaming").await;
    terminal.type_keys("y\n");
    // The terminal shows what was typed when it has it.
    terminal.wait_for_text("y\r\n").await;
    std::fs::write(&go, "").expect("a file can be written");
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("n\n");
    terminal.wait_for_text("denied by").await;
    assert_eq!(
        terminal.wait_for_exit().await,
        Some(0),
        "{}",
        terminal.screen()
    );
}
