//! Bad requests: each is refused with its machine code, and nothing is committed.

use std::pin::Pin;

use baton_proto::v1::{
    CancelTaskRequest, CommandSpec, CreateTokenRequest, DeadlineProfile, GetTaskRequest,
    ListTasksRequest, PauseRequest, ReadOutputRequest, RetryPolicy, RetryTaskRequest, Role,
    SubmitRequest, TaskSpec, WatchTaskRequest, pause_request,
};
use baton_tests::{EmbeddedRelay, TestClient, agent_task, call_raw_unary, error_code, wait_within};
use bytes::Bytes;
use tonic::{Code, Status};

const UNKNOWN_ID: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

type PendingRefusal = Pin<Box<dyn Future<Output = Status> + Send>>;
type SpecChange = fn(&mut TaskSpec);
type RefusedCall = fn(TestClient) -> PendingRefusal;

/// Bad submissions: the fault, the expected status and machine code, and the change that causes
/// it.
const SUBMISSION_CASES: &[(&str, Code, &str, SpecChange)] = &[
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
    (
        "not implemented",
        Code::Unimplemented,
        "unimplemented",
        |spec| spec.max_output_bytes = Some(1),
    ),
];

macro_rules! ask {
    ($service:ident.$method:ident($request:expr)) => {
        |client| {
            Box::pin(async move {
                let mut service = client.$service();
                let answer = wait_within(stringify!($method), service.$method($request)).await;
                answer.map(|_| ()).expect_err(stringify!($method))
            })
        }
    };
}

/// The same for requests other than submissions.
const REQUEST_CASES: &[(&str, Code, &str, RefusedCall)] = &[
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
        ask!(tasks.get(get_request(""))),
    ),
    (
        "get no id",
        Code::InvalidArgument,
        "malformed_id",
        ask!(tasks.get(get_request("../etc/passwd"))),
    ),
    (
        "get unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.get(get_request(UNKNOWN_ID))),
    ),
    (
        "watch unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.watch(watch_request(UNKNOWN_ID))),
    ),
    (
        "read unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.read_output(output_request(UNKNOWN_ID))),
    ),
    (
        "cancel unknown",
        Code::NotFound,
        "unknown_task",
        ask!(tasks.cancel(cancel_request(UNKNOWN_ID, ""))),
    ),
    (
        "long reason",
        Code::InvalidArgument,
        "too_large",
        ask!(tasks.cancel(cancel_request(UNKNOWN_ID, &"r".repeat(2049)))),
    ),
    (
        "retry unknown",
        Code::NotFound,
        "unknown_task",
        ask!(operator.retry_task(retry_request(UNKNOWN_ID))),
    ),
    (
        "page token",
        Code::InvalidArgument,
        "bad_page_token",
        ask!(tasks.list(list_request(0, "nonsense"))),
    ),
    (
        "page size",
        Code::InvalidArgument,
        "out_of_range",
        ask!(tasks.list(list_request(201, ""))),
    ),
    (
        "blank reason",
        Code::InvalidArgument,
        "blank",
        ask!(operator.pause(pause_request("  "))),
    ),
    (
        "token without role",
        Code::InvalidArgument,
        "missing",
        ask!(operator.create_token(token_request(0))),
    ),
    (
        "unknown role",
        Code::InvalidArgument,
        "unknown_enum_value",
        ask!(operator.create_token(token_request(77))),
    ),
];

fn get_request(id: &str) -> GetTaskRequest {
    GetTaskRequest {
        task_id: id.to_owned(),
        ..GetTaskRequest::default()
    }
}

fn watch_request(id: &str) -> WatchTaskRequest {
    WatchTaskRequest {
        task_id: id.to_owned(),
        ..WatchTaskRequest::default()
    }
}

fn output_request(id: &str) -> ReadOutputRequest {
    ReadOutputRequest {
        task_id: id.to_owned(),
        ..ReadOutputRequest::default()
    }
}

fn cancel_request(id: &str, reason: &str) -> CancelTaskRequest {
    CancelTaskRequest {
        task_id: id.to_owned(),
        reason: reason.to_owned(),
    }
}

fn retry_request(id: &str) -> RetryTaskRequest {
    RetryTaskRequest {
        task_id: id.to_owned(),
        reason: "look".to_owned(),
        ..RetryTaskRequest::default()
    }
}

fn list_request(page_size: u32, token: &str) -> ListTasksRequest {
    ListTasksRequest {
        page_size,
        page_token: token.to_owned(),
        ..ListTasksRequest::default()
    }
}

fn pause_request(reason: &str) -> PauseRequest {
    let target = Some(pause_request::Target::TaskId(UNKNOWN_ID.to_owned()));
    PauseRequest {
        target,
        reason: reason.to_owned(),
    }
}

fn token_request(role: i32) -> CreateTokenRequest {
    CreateTokenRequest {
        name: "x".to_owned(),
        role,
        ..CreateTokenRequest::default()
    }
}

fn refused_submission(client: TestClient, change: SpecChange) -> PendingRefusal {
    let mut spec = agent_task("nobody");
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
            .expect_err("the submission is refused")
    })
}

/// Every case with its call, which starts when it is awaited.
fn all_cases(
    client: &TestClient,
) -> impl Iterator<Item = (&'static str, Code, &'static str, PendingRefusal)> {
    let submissions = SUBMISSION_CASES
        .iter()
        .map(|(what, code, machine, change)| {
            (
                *what,
                *code,
                *machine,
                refused_submission(client.clone(), *change),
            )
        });
    let others = REQUEST_CASES
        .iter()
        .map(|(what, code, machine, ask)| (*what, *code, *machine, ask(client.clone())));
    submissions.chain(others)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_request_gets_its_machine_code_and_commits_nothing() {
    let relay = EmbeddedRelay::start().await;
    let client = relay.admin();
    let task = client.submit(agent_task("nobody")).await;
    let before = client.commit_seq().await;
    for (what, code, machine, refused) in all_cases(client) {
        let status = refused.await;
        assert_eq!(
            (status.code(), error_code(&status).as_str()),
            (code, machine),
            "{what}: {status:?}"
        );
        assert!(!status.message().is_empty(), "{what} has a message");
        assert_eq!(
            client.commit_seq().await,
            before,
            "{what} committed something"
        );
    }
    assert_eq!(client.get(&task.task_id).await, task);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unimplemented_rpc_answers_unimplemented() {
    let relay = EmbeddedRelay::start().await;
    let agent = relay.admin();
    let (_, secret) = {
        let mut operator = agent.operator();
        let created = operator.create_token(CreateTokenRequest {
            name: "agent".to_owned(),
            role: Role::Agent.into(),
            agent_scope: "review".to_owned(),
            ..CreateTokenRequest::default()
        });
        let created = wait_within("a token", created).await.unwrap().into_inner();
        (created.token, created.secret.unwrap().value)
    };
    let client = agent.with_token(&secret);
    let body = Bytes::new();
    let status = call_raw_unary(&client, "/baton.v1.Tasks/WatchMany", body)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}
