//! `baton submit --follow` at a terminal: questions of the agent are shown there and answered
//! with keys, and an answer given elsewhere is shown with its author.

use std::path::Path;

use baton_proto::v1::{InputState, ListInputsRequest, ListTasksRequest, Task, TaskState};
use baton_tests::{PseudoTerminal, RelayAndDaemon, TestClient, standin_agents_toml, wait_within};

use crate::{BATON, STANDIN};

/// A relay, and a daemon with stand-ins.
struct TerminalFixture {
    servers: RelayAndDaemon,
}

impl TerminalFixture {
    async fn start() -> Self {
        let config = |_: &Path| standin_agents_toml(STANDIN, &[]);
        let servers = RelayAndDaemon::start_with_config(BATON, config).await;
        Self { servers }
    }

    /// Submits a stand-in script and follows it at a pseudo-terminal.
    fn follow_script(&self, agent: &str, script: &str) -> PseudoTerminal {
        let arguments = ["submit", "--follow", "--agent", agent, "--prompt", script];
        PseudoTerminal::run(BATON, self.servers.relay.data(), &arguments)
    }

    fn client(&self) -> &TestClient {
        self.servers.client()
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

async fn assert_exit_code(terminal: &mut PseudoTerminal, code: i32) {
    let exit_code = terminal.wait_for_exit().await;
    assert_eq!(exit_code, Some(code), "{}", terminal.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_and_questions_are_answered_with_keys() {
    for agent in ["claude", "codex", "acp"] {
        let fixture = TerminalFixture::start().await;
        // ACP has no questions; the other agents ask one after the permission.
        let has_questions = agent != "acp";
        let question = if has_questions {
            "; question Which colour? = red, green"
        } else {
            ""
        };
        let script = format!("ask Bash ls -la{question}; say done with it");
        let mut terminal = fixture.follow_script(agent, &script);
        terminal.wait_for_text("permission for").await;
        terminal.wait_for_text("ls -la").await;
        terminal.wait_for_text("allow? [y]es").await;
        terminal.type_keys("perhaps\n");
        terminal.wait_for_text("is not a valid answer").await;
        terminal.wait_for_text("allow? [y]es").await;
        terminal.type_keys("y\n");
        terminal.wait_for_text("allowed by").await;
        if has_questions {
            terminal.wait_for_text("Which colour?").await;
            terminal.wait_for_text("2. green").await;
            terminal.wait_for_text("number, or Enter").await;
            terminal.type_keys("2\n");
        }
        terminal.wait_for_text("done with it").await;
        assert_exit_code(&mut terminal, 0).await;
        let task = fixture.only_task().await;
        assert_eq!(task.state(), TaskState::Completed, "{agent}");
        // The stand-in prints the answers that it received.
        let output = fixture.client().read_output_to_end(&task.task_id).await;
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains("allowed"), "{agent}: {output}");
        assert!(
            !has_questions || output.contains("green"),
            "{agent}: {output}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_n_key_denies_and_enter_leaves_the_question_open() {
    let fixture = TerminalFixture::start().await;
    let mut terminal = fixture.follow_script("claude", "ask Bash rm x; ask Bash ls; say over");
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("n\n");
    terminal.wait_for_text("denied by").await;
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("\n");
    terminal.wait_for_text("left open; baton answer").await;
    let task = fixture.only_task().await;
    let open = fixture.client().open_inputs(&task.task_id).await;
    assert_eq!(open.len(), 1, "{open:?}");
    fixture.client().answer_permission(&open[0], true).await;
    terminal.wait_for_text("over").await;
    assert_exit_code(&mut terminal, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_during_a_question_leaves_task_and_question_open() {
    let fixture = TerminalFixture::start().await;
    let mut terminal = fixture.follow_script("claude", "ask Bash ls; say over");
    terminal.wait_for_text("allow? [y]es").await;
    // An unfinished answer followed by Ctrl-C.
    terminal.type_keys("y\x03");
    terminal.wait_for_text("detached; the task continues").await;
    terminal.wait_for_text("watch it again: baton watch").await;
    assert_exit_code(&mut terminal, 130).await;
    let task = fixture.only_task().await;
    assert_eq!(task.state(), TaskState::Running);
    let open = fixture.client().open_inputs(&task.task_id).await;
    assert_eq!(
        open.len(),
        1,
        "an unfinished answer must not count: {open:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_given_elsewhere_is_shown_with_its_author() {
    let fixture = TerminalFixture::start().await;
    let mut terminal = fixture.follow_script("claude", "ask Bash ls; ask Bash pwd; say over");
    terminal.wait_for_text("allow? [y]es").await;
    let task = fixture.only_task().await;
    let open = fixture.client().open_inputs(&task.task_id).await;
    fixture.client().answer_permission(&open[0], true).await;
    terminal.wait_for_text("(allowed by").await;
    // The next question is answered only by keys typed after it was shown.
    terminal.wait_for_text("pwd").await;
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("n\n");
    terminal.wait_for_text("denied by").await;
    assert_exit_code(&mut terminal, 0).await;
    let request = ListInputsRequest {
        task_id: task.task_id.clone(),
        include_closed: true,
        ..ListInputsRequest::default()
    };
    let listed = fixture.client().inputs().list_inputs(request).await;
    let inputs = listed.expect("inputs are listed").into_inner().inputs;
    assert_eq!(inputs.len(), 2);
    for input in &inputs {
        assert_eq!(input.state(), InputState::Received, "{input:?}");
    }
}

/// Keys typed during output must not answer a question that is shown later.
#[tokio::test(flavor = "multi_thread")]
async fn keys_typed_before_a_question_do_not_answer_it() {
    let fixture = TerminalFixture::start().await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let go = dir.path().join("go");
    let script = format!("say working; until {}; ask Bash ls; say over", go.display());
    let mut terminal = fixture.follow_script("claude", &script);
    terminal.wait_for_text("attempt 1 streaming").await;
    terminal.type_keys("y\n");
    // The terminal echoes the keys once it has read them.
    terminal.wait_for_text("y\r\n").await;
    std::fs::write(&go, "").expect("a file can be written");
    terminal.wait_for_text("allow? [y]es").await;
    terminal.type_keys("n\n");
    terminal.wait_for_text("denied by").await;
    assert_exit_code(&mut terminal, 0).await;
}
