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

type Refused = Pin<Box<dyn Future<Output = Status> + Send>>;
type Change = fn(&mut TaskSpec);
type Ask = fn(Client) -> Refused;

/// What is wrong with a submission, and the code that says so.
const SUBMISSIONS: &[(&str, Code, &str, Change)] = &[
    ("no agent", Code::InvalidArgument, "missing", |spec| {
        spec.agent.clear()
    }),
    ("blank agent", Code::InvalidArgument, "blank", |spec| {
        spec.agent = " \t".into()
    }),
    ("blank prompt", Code::InvalidArgument, "blank", |spec| {
        spec.prompt = "\n ".into()
    }),
    ("long prompt", Code::InvalidArgument, "too_large", |spec| {
        spec.prompt = "x".repeat(1024 * 1024 + 1)
    }),
    ("long goal", Code::InvalidArgument, "too_large", |spec| {
        spec.goal = "ü".repeat(4097)
    }),
    ("many labels", Code::InvalidArgument, "too_many", |spec| {
        spec.labels = (0..65).map(|n| (format!("k{n}"), String::new())).collect();
    }),
    ("bad label", Code::InvalidArgument, "bad_label", |spec| {
        spec.labels = [("a b".to_owned(), String::new())].into();
    }),
    ("zero byte", Code::InvalidArgument, "zero_byte", |spec| {
        spec.prompt = "a\0b".into()
    }),
    (
        "unknown enum",
        Code::InvalidArgument,
        "unknown_enum_value",
        |spec| spec.turn_kind = 99,
    ),
    (
        "short lease",
        Code::InvalidArgument,
        "out_of_range",
        |spec| spec.lease_ttl_ms = Some(4_999),
    ),
    (
        "many tries",
        Code::InvalidArgument,
        "out_of_range",
        |spec| {
            spec.retry = Some(RetryPolicy {
                max_attempts: Some(11),
                ..RetryPolicy::default()
            });
        },
    ),
    (
        "profile twice",
        Code::InvalidArgument,
        "conflicting_fields",
        |spec| {
            spec.profile = Some(DeadlineProfile::default());
            spec.profile_name = "quick".into();
        },
    ),
    ("empty command", Code::InvalidArgument, "missing", |spec| {
        spec.command = Some(CommandSpec::default())
    }),
    (
        "bad variable",
        Code::InvalidArgument,
        "malformed_name",
        |spec| {
            spec.env = [("A=B".to_owned(), String::new())].into();
        },
    ),
    (
        "unknown profile",
        Code::NotFound,
        "unknown_profile",
        |spec| spec.profile_name = "no-such".into(),
    ),
    ("not built", Code::Unimplemented, "unimplemented", |spec| {
        spec.max_output_bytes = Some(1)
    }),
];

macro_rules! ask {
    ($service:ident.$method:ident($request:expr)) => {
        |client| {
            Box::pin(async move {
                let mut service = client.$service();
                let answer = within(stringify!($method), service.$method($request)).await;
                answer.map(|_| ()).expect_err(stringify!($method))
            })
        }
    };
}

/// The same for requests about something.
const OTHERS: &[(&str, Code, &str, Ask)] = &[
    (
        "submit nothing",
        Code::InvalidArgument,
        "missing",
        ask!(tasks.submit(SubmitRequest::default())),
    ),
    (
        "get nothing",
        Code::InvalidArgument,
        "missing",
        ask!(tasks.get(get(""))),
    ),
    (
        "get no id",
        Code::InvalidArgument,
        "malformed_id",
        ask!(tasks.get(get("../etc/passwd"))),
    ),
    (
        "get unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.get(get(UNKNOWN))),
    ),
    (
        "watch unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.watch(watch(UNKNOWN))),
    ),
    (
        "read unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.read_output(output(UNKNOWN))),
    ),
    (
        "cancel unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.cancel(cancel(UNKNOWN, ""))),
    ),
    (
        "long reason",
        Code::InvalidArgument,
        "too_large",
        ask!(tasks.cancel(cancel(UNKNOWN, &"r".repeat(2049)))),
    ),
    (
        "retry unknown",
        Code::NotFound,
        "unknown_task",
        ask!(operator.retry_task(retry(UNKNOWN))),
    ),
    (
        "page token",
        Code::InvalidArgument,
        "bad_page_token",
        ask!(tasks.list(list(0, "nonsense"))),
    ),
    (
        "page size",
        Code::InvalidArgument,
        "out_of_range",
        ask!(tasks.list(list(201, ""))),
    ),
    (
        "blank reason",
        Code::InvalidArgument,
        "blank",
        ask!(operator.pause(pause("  "))),
    ),
    (
        "token without role",
        Code::InvalidArgument,
        "missing",
        ask!(operator.create_token(role(0))),
    ),
    (
        "unknown role",
        Code::InvalidArgument,
        "unknown_enum_value",
        ask!(operator.create_token(role(77))),
    ),
];

fn get(id: &str) -> GetTaskRequest {
    GetTaskRequest {
        task_id: id.to_owned(),
        ..GetTaskRequest::default()
    }
}

fn watch(id: &str) -> WatchTaskRequest {
    WatchTaskRequest {
        task_id: id.to_owned(),
        ..WatchTaskRequest::default()
    }
}

fn output(id: &str) -> ReadOutputRequest {
    ReadOutputRequest {
        task_id: id.to_owned(),
        ..ReadOutputRequest::default()
    }
}

fn cancel(id: &str, reason: &str) -> CancelTaskRequest {
    CancelTaskRequest {
        task_id: id.to_owned(),
        reason: reason.to_owned(),
    }
}

fn retry(id: &str) -> RetryTaskRequest {
    RetryTaskRequest {
        task_id: id.to_owned(),
        reason: "look".to_owned(),
        ..RetryTaskRequest::default()
    }
}

fn list(page_size: u32, token: &str) -> ListTasksRequest {
    ListTasksRequest {
        page_size,
        page_token: token.to_owned(),
        ..ListTasksRequest::default()
    }
}

fn pause(reason: &str) -> PauseRequest {
    let target = Some(pause_request::Target::TaskId(UNKNOWN.to_owned()));
    PauseRequest {
        target,
        reason: reason.to_owned(),
    }
}

fn role(role: i32) -> CreateTokenRequest {
    CreateTokenRequest {
        name: "x".to_owned(),
        role,
        ..CreateTokenRequest::default()
    }
}

fn submission(client: Client, change: Change) -> Refused {
    let mut spec = for_agent("nobody");
    change(&mut spec);
    let request = SubmitRequest {
        spec: Some(spec),
        ..SubmitRequest::default()
    };
    Box::pin(async move {
        client
            .try_submit(request)
            .await
            .map(|_| ())
            .expect_err("refused")
    })
}

/// Every row, with its call under way when it is awaited.
fn rows(client: &Client) -> impl Iterator<Item = (&'static str, Code, &'static str, Refused)> {
    let submissions = SUBMISSIONS.iter().map(|(what, code, machine, change)| {
        (*what, *code, *machine, submission(client.clone(), *change))
    });
    let others = OTHERS
        .iter()
        .map(|(what, code, machine, ask)| (*what, *code, *machine, ask(client.clone())));
    submissions.chain(others)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_request_has_its_own_machine_code_and_leaves_the_commit_sequence_unchanged() {
    let relay = Relay::start().await;
    let client = relay.admin();
    let task = client.submit(for_agent("nobody")).await;
    let before = client.commit_seq().await;
    for (what, code, machine, refused) in rows(client) {
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
    let status = raw_unary(&client, "/baton.v1.Tasks/WatchMany", body)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}
