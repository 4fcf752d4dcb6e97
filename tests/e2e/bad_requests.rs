//! Requests that no relay should take: each is refused with its own machine code and leaves no trace.

use std::pin::Pin;

use baton_proto::v1::{
    CancelTaskRequest, CommandSpec, CreateTokenRequest, DeadlineProfile, GetTaskRequest,
    ListTasksRequest, PauseRequest, ReadOutputRequest, RetryPolicy, RetryTaskRequest, Role,
    SubmitRequest, TaskSpec, WatchTaskRequest, pause_request,
};
use baton_tests::{Client, Relay, code_of, for_agent, raw_unary, within};
use bytes::Bytes;
use tonic::{Code, Status};

const UNKNOWN: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

type Refused<'a> = Pin<Box<dyn Future<Output = Status> + Send + 'a>>;

fn submit<'a>(client: &'a Client, change: impl FnOnce(&mut TaskSpec)) -> Refused<'a> {
    let mut spec = for_agent("nobody");
    change(&mut spec);
    submit_request(
        client,
        SubmitRequest {
            spec: Some(spec),
            ..SubmitRequest::default()
        },
    )
}

fn submit_request(client: &Client, request: SubmitRequest) -> Refused<'_> {
    Box::pin(async move {
        client
            .try_submit(request)
            .await
            .map(|_| ())
            .expect_err("refused")
    })
}

/// One row per kind of bad submission.
fn submissions(client: &Client) -> Vec<(&'static str, Code, &'static str, Refused<'_>)> {
    let bad = Code::InvalidArgument;
    vec![
        (
            "no spec",
            bad,
            "missing",
            submit_request(client, SubmitRequest::default()),
        ),
        (
            "no agent",
            bad,
            "missing",
            submit(client, |spec| spec.agent.clear()),
        ),
        (
            "blank agent",
            bad,
            "blank",
            submit(client, |spec| spec.agent = " \t".into()),
        ),
        (
            "blank prompt",
            bad,
            "blank",
            submit(client, |spec| spec.prompt = "\n ".into()),
        ),
        (
            "oversize prompt",
            bad,
            "too_large",
            submit(client, |spec| spec.prompt = "x".repeat(1024 * 1024 + 1)),
        ),
        (
            "oversize goal",
            bad,
            "too_large",
            submit(client, |spec| spec.goal = "ü".repeat(4097)),
        ),
        (
            "many labels",
            bad,
            "too_many",
            submit(client, |spec| {
                spec.labels = (0..65).map(|n| (format!("k{n}"), String::new())).collect();
            }),
        ),
        (
            "bad label",
            bad,
            "bad_label",
            submit(client, |spec| {
                spec.labels = [("a b".to_owned(), String::new())].into();
            }),
        ),
        (
            "zero byte",
            bad,
            "zero_byte",
            submit(client, |spec| spec.prompt = "a\0b".into()),
        ),
        (
            "unknown enum",
            bad,
            "unknown_enum_value",
            submit(client, |spec| spec.turn_kind = 99),
        ),
        (
            "short lease",
            bad,
            "out_of_range",
            submit(client, |spec| spec.lease_ttl_ms = Some(4_999)),
        ),
        (
            "many tries",
            bad,
            "out_of_range",
            submit(client, |spec| {
                spec.retry = Some(RetryPolicy {
                    max_attempts: Some(11),
                    ..RetryPolicy::default()
                });
            }),
        ),
        (
            "profile twice",
            bad,
            "conflicting_fields",
            submit(client, |spec| {
                spec.profile = Some(DeadlineProfile::default());
                spec.profile_name = "quick".into();
            }),
        ),
        (
            "empty command",
            bad,
            "missing",
            submit(client, |spec| spec.command = Some(CommandSpec::default())),
        ),
        (
            "bad environment",
            bad,
            "malformed_name",
            submit(client, |spec| {
                spec.env = [("A=B".to_owned(), String::new())].into();
            }),
        ),
        (
            "unknown profile",
            Code::NotFound,
            "unknown_profile",
            submit(client, |spec| {
                spec.profile_name = "nobody-stored-it".into();
            }),
        ),
        (
            "not built",
            Code::Unimplemented,
            "unimplemented",
            submit(client, |spec| spec.mcp = true),
        ),
    ]
}

macro_rules! refused {
    ($client:expr, $service:ident.$method:ident($request:expr)) => {{
        let request = $request;
        Box::pin(async move {
            let mut service = $client.$service();
            let answer = within(stringify!($method), service.$method(request)).await;
            answer.map(|_| ()).expect_err(stringify!($method))
        })
    }};
}

/// One row per kind of bad request about something.
fn others(client: &Client) -> Vec<(&'static str, Code, &'static str, Refused<'_>)> {
    let bad = Code::InvalidArgument;
    let missing = Code::NotFound;
    let get = |id: &str| GetTaskRequest {
        task_id: id.to_owned(),
        ..GetTaskRequest::default()
    };
    let watch = |id: &str| WatchTaskRequest {
        task_id: id.to_owned(),
        ..WatchTaskRequest::default()
    };
    let output = |id: &str| ReadOutputRequest {
        task_id: id.to_owned(),
        ..ReadOutputRequest::default()
    };
    let cancel = |id: &str, reason: &str| CancelTaskRequest {
        task_id: id.to_owned(),
        reason: reason.to_owned(),
    };
    let retry = |id: &str| RetryTaskRequest {
        task_id: id.to_owned(),
        ..RetryTaskRequest::default()
    };
    let list = |size: u32, token: &str| ListTasksRequest {
        page_size: size,
        page_token: token.to_owned(),
        ..ListTasksRequest::default()
    };
    vec![
        (
            "get nothing",
            bad,
            "missing",
            refused!(client, tasks.get(get(""))),
        ),
        (
            "get no id",
            bad,
            "malformed_id",
            refused!(client, tasks.get(get("../etc/passwd"))),
        ),
        (
            "get unknown",
            missing,
            "unknown_task",
            refused!(client, tasks.get(get(UNKNOWN))),
        ),
        (
            "watch unknown",
            missing,
            "unknown_task",
            refused!(client, tasks.watch(watch(UNKNOWN))),
        ),
        (
            "read unknown",
            missing,
            "unknown_task",
            refused!(client, tasks.read_output(output(UNKNOWN))),
        ),
        (
            "cancel unknown",
            missing,
            "unknown_task",
            refused!(client, tasks.cancel(cancel(UNKNOWN, ""))),
        ),
        (
            "oversize reason",
            bad,
            "too_large",
            refused!(client, tasks.cancel(cancel(UNKNOWN, &"r".repeat(2049)))),
        ),
        (
            "retry unknown",
            missing,
            "unknown_task",
            refused!(client, operator.retry_task(retry(UNKNOWN))),
        ),
        (
            "page token",
            bad,
            "bad_page_token",
            refused!(client, tasks.list(list(0, "nonsense"))),
        ),
        (
            "page size",
            bad,
            "out_of_range",
            refused!(client, tasks.list(list(201, ""))),
        ),
        (
            "blank reason",
            bad,
            "blank",
            refused!(
                client,
                operator.pause(PauseRequest {
                    target: Some(pause_request::Target::TaskId(UNKNOWN.to_owned())),
                    reason: "  ".to_owned(),
                })
            ),
        ),
        (
            "token without role",
            bad,
            "missing",
            refused!(client, operator.create_token(CreateTokenRequest::default())),
        ),
        (
            "unknown role",
            bad,
            "unknown_enum_value",
            refused!(
                client,
                operator.create_token(CreateTokenRequest {
                    name: "x".to_owned(),
                    role: 77,
                    ..CreateTokenRequest::default()
                })
            ),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_request_has_its_own_machine_code_and_leaves_the_commit_sequence_unchanged() {
    let relay = Relay::start().await;
    let client = relay.admin();
    let task = client.submit(for_agent("nobody")).await;
    let before = client.commit_seq().await;
    for (what, code, machine, refused) in submissions(client).into_iter().chain(others(client)) {
        let status = refused.await;
        assert_eq!(
            (status.code(), code_of(&status).as_str()),
            (code, machine),
            "{what}: {status:?}"
        );
        assert!(!status.message().is_empty(), "{what} says why");
        assert_eq!(client.commit_seq().await, before, "{what} wrote something");
    }
    assert_eq!(client.get(&task.task_id).await, task);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_decoded_are_refused_and_the_connection_goes_on() {
    let relay = Relay::start().await;
    let client = relay.admin();
    let before = client.commit_seq().await;
    // Field 1 of GetTaskRequest is a string: three bytes that are no UTF-8.
    let malformed = Bytes::from_static(&[0x0a, 0x03, 0xff, 0xfe, 0xfd]);
    let truncated = Bytes::from_static(&[0x0a, 0x7f, b'x']);
    let oversize = Bytes::from(vec![0; 3 * 1024 * 1024]);
    for (what, body, code, machine) in [
        (
            "malformed UTF-8",
            malformed,
            Code::InvalidArgument,
            "undecodable",
        ),
        ("truncated", truncated, Code::InvalidArgument, "undecodable"),
        (
            "oversize",
            oversize,
            Code::ResourceExhausted,
            "message_too_large",
        ),
    ] {
        let status = raw_unary(client, "/baton.v1.Tasks/Get", body)
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), code_of(&status).as_str()),
            (code, machine),
            "{what}: {status:?}"
        );
    }
    let unknown_field = Bytes::from_static(&[0xfa, 0x3e, 0x01, b'x']);
    let status = raw_unary(client, "/baton.v1.Tasks/Get", unknown_field)
        .await
        .unwrap_err();
    assert_eq!(
        code_of(&status),
        "missing",
        "an unknown field is ignored: {status:?}"
    );
    assert_eq!(client.commit_seq().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_built_answers_unimplemented() {
    let relay = Relay::start().await;
    let agent = relay.admin();
    let (_, secret) = {
        let mut operator = agent.operator();
        let made = operator.create_token(CreateTokenRequest {
            name: "agent".to_owned(),
            role: Role::Agent.into(),
            agent_scope: "review".to_owned(),
            ..CreateTokenRequest::default()
        });
        let made = within("a token", made).await.unwrap().into_inner();
        (made.token, made.secret.unwrap().value)
    };
    let client = agent.with_token(&secret);
    let body = Bytes::new();
    let status = raw_unary(&client, "/baton.v1.Agents/Claim", body)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}
