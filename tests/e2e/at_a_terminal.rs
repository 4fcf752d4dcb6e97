//! `baton submit --follow` at a terminal: what the agent asks is asked there, typed keys are the answer, and whoever sits there
//! learns when somebody else was quicker.

use baton_proto::v1::{InputState, ListInputsRequest, ListTasksRequest, Task, TaskState};
use baton_tests::{Client, DaemonProcess, RelayProcess, Terminal, coding_agents_file, within};
use tempfile::TempDir;

use crate::{BATON, STANDIN};

/// A relay, a daemon with stand-ins, and a person at a terminal.
struct Desk {
    relay: RelayProcess,
    _daemon: DaemonProcess,
    _dir: TempDir,
}

impl Desk {
    async fn open() -> Self {
        let relay = RelayProcess::start(BATON).await;
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let file = dir.path().join("daemon.toml");
        std::fs::write(&file, coding_agents_file(STANDIN, &[])).expect("a file can be written");
        let more = ["--config", file.to_str().expect("paths of tests are text")];
        let (_, secret) = relay
            .admin()
            .make_token("", baton_proto::v1::Role::Daemon)
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
    fn follows(&self, agent: &str, script: &str) -> Terminal {
        let arguments = ["submit", "--follow", "--agent", agent, "--prompt", script];
        Terminal::run(BATON, self.relay.data(), &arguments)
    }

    fn client(&self) -> &Client {
        self.relay.admin()
    }

    /// The only task.
    async fn task(&self) -> Task {
        let mut tasks = self.client().tasks();
        let listed = tasks.list(ListTasksRequest::default());
        let listed = within("a list of tasks", listed).await;
        let mut tasks = listed.expect("tasks are listed").into_inner().tasks;
        assert_eq!(tasks.len(), 1, "{tasks:#?}");
        self.client().get(&tasks.remove(0).task_id).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_and_a_question_are_answered_with_keys() {
    for agent in ["claude", "codex", "acp"] {
        let desk = Desk::open().await;
        // Not every wire has questions; those that do ask one after the permission.
        let asks = agent != "acp";
        let question = if asks {
            "; question Which colour? = red, green"
        } else {
            ""
        };
        let script = format!("ask Bash ls -la{question}; say done with it");
        let mut terminal = desk.follows(agent, &script);
        terminal.shows("permission for").await;
        terminal.shows("ls -la").await;
        terminal.shows("allow? [y]es").await;
        terminal.types("perhaps\n");
        terminal.shows("is no answer to this").await;
        terminal.shows("allow? [y]es").await;
        terminal.types("y\n");
        terminal.shows("allowed by").await;
        if asks {
            terminal.shows("Which colour?").await;
            terminal.shows("2. green").await;
            terminal.shows("number, or Enter").await;
            terminal.types("2\n");
        }
        terminal.shows("done with it").await;
        assert_eq!(terminal.ended().await, Some(0), "{}", terminal.screen());
        let task = desk.task().await;
        assert_eq!(task.state(), TaskState::Completed, "{agent}");
        // The stand-in says what it was told.
        let output = desk.client().output(&task.task_id).await;
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains("allowed"), "{agent}: {output}");
        assert!(!asks || output.contains("green"), "{agent}: {output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_is_no_and_enter_leaves_it_open() {
    let desk = Desk::open().await;
    let mut terminal = desk.follows("claude", "ask Bash rm x; ask Bash ls; say over");
    terminal.shows("allow? [y]es").await;
    terminal.types("n\n");
    terminal.shows("denied by").await;
    terminal.shows("allow? [y]es").await;
    terminal.types("\n");
    terminal.shows("left open; baton answer").await;
    let task = desk.task().await;
    let open = desk.client().open_inputs(&task.task_id).await;
    assert_eq!(open.len(), 1, "{open:?}");
    desk.client().decide(&open[0], true).await;
    terminal.shows("over").await;
    assert_eq!(terminal.ended().await, Some(0), "{}", terminal.screen());
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_in_the_middle_of_a_question_leaves_the_task_and_its_question() {
    let desk = Desk::open().await;
    let mut terminal = desk.follows("claude", "ask Bash ls; say over");
    terminal.shows("allow? [y]es").await;
    // Half an answer, and then the key.
    terminal.types("y\x03");
    terminal.shows("detached; the task goes on").await;
    terminal.shows("come back with: baton watch").await;
    assert_eq!(terminal.ended().await, Some(130), "{}", terminal.screen());
    let task = desk.task().await;
    assert_eq!(task.state(), TaskState::Running);
    let open = desk.client().open_inputs(&task.task_id).await;
    assert_eq!(open.len(), 1, "half an answer is none: {open:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_given_elsewhere_is_told_with_who_gave_it() {
    let desk = Desk::open().await;
    let mut terminal = desk.follows("claude", "ask Bash ls; ask Bash pwd; say over");
    terminal.shows("allow? [y]es").await;
    let task = desk.task().await;
    let open = desk.client().open_inputs(&task.task_id).await;
    desk.client().decide(&open[0], true).await;
    terminal.shows("(allowed by").await;
    // What is asked next is asked anew, and answered by what is typed from then on.
    terminal.shows("pwd").await;
    terminal.shows("allow? [y]es").await;
    terminal.types("n\n");
    terminal.shows("denied by").await;
    assert_eq!(terminal.ended().await, Some(0), "{}", terminal.screen());
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
    let desk = Desk::open().await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let go = dir.path().join("go");
    let script = format!("say working; until {}; ask Bash ls; say over", go.display());
    let mut terminal = desk.follows("claude", &script);
    terminal.shows("attempt 1 streaming").await;
    terminal.types("y\n");
    // The terminal shows what was typed when it has it.
    terminal.shows("y\r\n").await;
    std::fs::write(&go, "").expect("a file can be written");
    terminal.shows("allow? [y]es").await;
    terminal.types("n\n");
    terminal.shows("denied by").await;
    assert_eq!(terminal.ended().await, Some(0), "{}", terminal.screen());
}
