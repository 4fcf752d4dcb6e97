//! Inputs over the API: watches, lists in pages, and questions that belong together.

use baton_daemon::AgentWire;
use baton_proto::v1::{
    Hello, Input, InputOutcome, InputState, ListInputsRequest, Role, TaskState, WatchInputsRequest,
    WatchInputsResponse,
};
use baton_tests::{
    EmbeddedRelay, ScriptedDaemon, TestClient, agent_task, error_code, hello, wait_within,
};
use tonic::Streaming;

use crate::agents::input_answers::start_fixture;
use crate::agents::shell_agents::agent_of_wire;

#[tokio::test(flavor = "multi_thread")]
async fn an_input_watch_shows_open_inputs_and_their_outcome() {
    let fixture = start_fixture().await;
    let (task, input) = fixture.submit_until_asked(AgentWire::Claude).await;
    let foreign = fixture
        .client
        .client_of_tenant("other", Role::Answerer)
        .await;
    let mut own_watch = watch_inputs(&fixture.client, "").await;
    let first = next_input(&mut own_watch).await;
    assert_eq!(
        (first.input_id.as_str(), first.state()),
        (&*input.input_id, InputState::Open)
    );
    fixture.client.answer_permission(&input, true).await;
    let states = [
        next_input(&mut own_watch).await,
        next_input(&mut own_watch).await,
    ]
    .map(|input| input.state());
    assert_eq!(states, [InputState::Answered, InputState::Received]);
    fixture
        .assert_completed_once(&task, "allowed", "watched")
        .await;
    let (_, other) = fixture.submit_until_asked(AgentWire::Acp).await;
    assert_eq!(next_input(&mut own_watch).await.input_id, other.input_id);
    fixture.client.cancel(&other.task_id).await;
    assert_eq!(
        next_input(&mut own_watch).await.outcome(),
        InputOutcome::Superseded
    );
    let listed = foreign
        .inputs()
        .list_inputs(ListInputsRequest::default())
        .await;
    assert!(
        listed.unwrap().into_inner().inputs.is_empty(),
        "another tenant sees nothing"
    );
    for (caller, task_id) in [
        (&foreign, task.task_id.clone()),
        (&fixture.client, uuid::Uuid::now_v7().to_string()),
    ] {
        let refused = caller
            .inputs()
            .watch_inputs(WatchInputsRequest { task_id })
            .await;
        assert_eq!(error_code(&refused.unwrap_err()), "unknown_task");
    }
}

type InputStream = Streaming<WatchInputsResponse>;

async fn watch_inputs(client: &TestClient, task_id: &str) -> InputStream {
    let request = WatchInputsRequest {
        task_id: task_id.to_owned(),
    };
    let opened = wait_within("a watch", client.inputs().watch_inputs(request)).await;
    opened.expect("inputs can be watched").into_inner()
}

async fn next_input(watched: &mut InputStream) -> Input {
    loop {
        let message = wait_within("an input", watched.message()).await;
        let message = message
            .expect("the watch has no error")
            .expect("the watch continues");
        if let Some(input) = message.input {
            return input;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_input_lists_come_in_pages_that_fit_a_message() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin().clone();
    let roomy = Hello {
        slots: 12,
        ..hello(&["coder"])
    };
    let worker = client.with_token(&relay.daemon_token().await);
    let mut daemon = ScriptedDaemon::connect(&worker, roomy).await;
    let mut asked = Vec::new();
    let mut running = Vec::new();
    for number in 0..12 {
        client.submit(agent_task("coder")).await;
        let mut attempt = daemon.start_next_attempt().await;
        let arguments = format!("{number} {}", "x".repeat(250 * 1024));
        asked.push(attempt.ask_permission_for(arguments.as_bytes()).await);
        daemon.wait_until_acked(&attempt).await;
        running.push(attempt);
    }
    let mut request = ListInputsRequest::default();
    let (mut listed, mut pages) = (Vec::new(), 0);
    loop {
        let page = client.inputs().list_inputs(request.clone()).await;
        let page = page.expect("every page fits").into_inner();
        listed.extend(page.inputs.into_iter().map(|input| input.input_id));
        pages += 1;
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(listed, asked, "all inputs, oldest first");
    assert!(pages >= 3, "{pages} pages");

    let closed = ListInputsRequest {
        include_closed: true,
        ..ListInputsRequest::default()
    };
    let refused = client.inputs().list_inputs(closed).await.unwrap_err();
    assert_eq!(error_code(&refused), "conflicting_fields");
}

const QUESTIONS_SCRIPT: &str = r#"
read -r prompt
printf '%s\n' '{"type":"system","subtype":"init","session_id":"talk-1"}'
printf '%s\n' '{"type":"control_request","request_id":"q","request":{"subtype":"can_use_tool","tool_name":"AskUserQuestion","input":{"questions":[{"question":"Which colour?","header":"Colour","options":[{"label":"Red"},{"label":"Blue"}],"multiSelect":false},{"question":"Which sizes?","header":"Size","options":[{"label":"S"},{"label":"M"}],"multiSelect":true}]},"tool_use_id":"t-1"}}'
read -r answer
said=$(printf '%s' "$answer" | sed 's/.*"answers":{\([^}]*\)}.*/\1/; s/"/|/g')
printf '%s\n' '{"type":"result","subtype":"success","is_error":false,"result":"'"$said"'","session_id":"talk-1"}'
while read -r more; do printf '%s\n' "$more" >&2; done
"#;

#[tokio::test(flavor = "multi_thread")]
async fn grouped_questions_are_answered_in_any_order_and_delivered_together() {
    let fixture = start_fixture().await;
    let path = fixture
        .servers
        .dir
        .path()
        .join(agent_of_wire(AgentWire::Claude).0);
    std::fs::write(path, QUESTIONS_SCRIPT).unwrap();
    let task = fixture
        .client
        .submit(agent_task(agent_of_wire(AgentWire::Claude).0))
        .await;
    let mut watched = watch_inputs(&fixture.client, &task.task_id).await;
    let (colour, sizes) = (
        next_input(&mut watched).await,
        next_input(&mut watched).await,
    );
    let answer = async |input: &Input, flags: &[&str]| {
        fixture
            .run_command(&[&["answer", &input.input_id], flags].concat())
            .await
    };
    for (input, wrong) in [
        (&colour, &["--allow"][..]),
        (&colour, &["--option", "3"]),
        (&colour, &["--option", "1", "--option", "2"]),
    ] {
        let refused = answer(input, wrong).await;
        assert_eq!(refused.code, Some(2), "{wrong:?}: {refused:?}");
    }
    let given = answer(
        &sizes,
        &["--option", "M", "--option", "1", "--text", "and L"],
    )
    .await;
    assert_eq!(given.code, Some(0), "{given:?}");
    let done = fixture.client.get(&task.task_id).await;
    assert_eq!(
        done.state(),
        TaskState::Running,
        "the other question is still open"
    );
    let given = answer(&colour, &["--option", "2"]).await;
    assert_eq!(given.code, Some(0), "{given:?}");
    let answers = "|Which colour?|:|Blue|,|Which sizes?|:|M, S, and L|";
    fixture
        .assert_completed_once(&task, answers, "questions")
        .await;
}
