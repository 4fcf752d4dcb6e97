//! The server as clients meet it: real gRPC over loopback, a real store in a temporary directory.

use std::future::Future;
use std::time::Duration;

use baton_proto::v1;
use baton_proto::v1::fleet_client::FleetClient;
use baton_proto::v1::operator_client::OperatorClient;
use baton_proto::v1::tasks_client::TasksClient;
use bytes::{Buf, BufMut, Bytes};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

type Caller = InterceptedService<Channel, Bearer>;

/// A relay of its own, and its administrator's token.
struct Fixture {
    relay: Relay,
    channel: Channel,
    admin: String,
    _data: TempDir,
}

#[derive(Clone)]
struct Bearer(Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(adjust: impl FnOnce(&mut RelayConfig)) -> Self {
        let data = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let mut config = RelayConfig::new(data.path().join("relay"), listen);
        config.drain = Duration::from_millis(200);
        adjust(&mut config);
        let admin = config.data.join("admin.token");
        let relay = start(config).await.unwrap();
        let uri = format!("http://{}", relay.address());
        let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
        let admin = std::fs::read_to_string(admin)
            .unwrap()
            .trim_end()
            .to_owned();
        Self {
            relay,
            channel,
            admin,
            _data: data,
        }
    }

    fn caller(&self, token: &str) -> Caller {
        let value = (!token.is_empty()).then(|| format!("Bearer {token}").parse().unwrap());
        InterceptedService::new(self.channel.clone(), Bearer(value))
    }

    fn tasks(&self, token: &str) -> TasksClient<Caller> {
        TasksClient::new(self.caller(token))
    }

    fn operator(&self, token: &str) -> OperatorClient<Caller> {
        OperatorClient::new(self.caller(token))
    }

    /// Makes a token of this tenant and role.
    async fn token(&self, tenant: &str, role: v1::Role) -> (String, String) {
        let request = v1::CreateTokenRequest {
            name: format!("{tenant} {role:?}"),
            tenant: tenant.into(),
            role: role.into(),
            agent_scope: if role == v1::Role::Agent {
                "reviewers".into()
            } else {
                String::new()
            },
            ttl_ms: None,
        };
        let made = self
            .operator(&self.admin)
            .create_token(request)
            .await
            .unwrap()
            .into_inner();
        (made.token.unwrap().token_id, made.secret.unwrap().value)
    }

    async fn submit(&self, token: &str, request: v1::SubmitRequest) -> v1::SubmitResponse {
        self.tasks(token)
            .submit(request)
            .await
            .unwrap()
            .into_inner()
    }

    async fn commit_seq(&self) -> u64 {
        let info = self
            .operator(&self.admin)
            .relay_info(v1::RelayInfoRequest {})
            .await;
        info.unwrap().into_inner().commit_seq
    }
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(PATIENCE, future).await;
    outcome.unwrap_or_else(|_| panic!("no {what} within {PATIENCE:?}"))
}

fn machine_code(status: &Status) -> String {
    let detail = baton_proto::unpack_error_detail(status);
    detail
        .unwrap_or_else(|| panic!("{status:?} has no detail"))
        .code
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, Status>) -> (Code, String) {
    let status = outcome.unwrap_err();
    (status.code(), machine_code(&status))
}

const NOWHERE: &str = "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10";

fn get(id: &str) -> v1::GetTaskRequest {
    v1::GetTaskRequest {
        task_id: id.into(),
        include_spec: false,
    }
}

fn submission(spec: v1::TaskSpec) -> v1::SubmitRequest {
    v1::SubmitRequest {
        spec: Some(spec),
        ..Default::default()
    }
}

fn spec() -> v1::TaskSpec {
    v1::TaskSpec {
        agent: "command".into(),
        command: Some(v1::CommandSpec {
            argv: vec!["true".into()],
        }),
        ..v1::TaskSpec::default()
    }
}

#[tokio::test]
async fn every_call_needs_a_credential_and_a_role_but_health_and_reflection_do_not() {
    let relay = Fixture::new().await;
    let (_, reader) = relay.token("acme", v1::Role::ReadOnly).await;
    let (_, daemon) = relay.token("*", v1::Role::Daemon).await;
    let list = v1::ListTasksRequest::default;
    let nobody = (Code::Unauthenticated, "unauthenticated".to_owned());
    let unknown = crate::auth::Token::mint().reveal();
    for token in ["", "btn_x_y", unknown.as_str()] {
        assert_eq!(
            refused(relay.tasks(token).list(list()).await),
            nobody,
            "{token:?}"
        );
    }
    relay.tasks(&reader).list(list()).await.unwrap();
    let forbidden = (Code::PermissionDenied, "permission_denied".to_owned());
    let submit = || submission(spec());
    assert_eq!(
        refused(relay.tasks(&reader).submit(submit()).await),
        forbidden
    );
    assert_eq!(
        refused(relay.tasks(&daemon).submit(submit()).await),
        forbidden
    );
    assert_eq!(refused(relay.tasks(&daemon).list(list()).await), forbidden);
    let unbuilt = relay
        .tasks(&reader)
        .list_blocked(v1::ListBlockedRequest::default())
        .await;
    assert_eq!(
        refused(unbuilt),
        (Code::Unimplemented, "unimplemented".to_owned())
    );

    let check = tonic_health::pb::HealthCheckRequest::default();
    let mut health = tonic_health::pb::health_client::HealthClient::new(relay.channel.clone());
    health.check(check).await.unwrap();
    for path in [
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ] {
        let answer = raw(relay.channel.clone(), path, Bytes::new()).await;
        assert_ne!(
            answer.err().map(|s| s.code()),
            Some(Code::Unimplemented),
            "{path}"
        );
    }
    in_time("stop", relay.relay.stop()).await.unwrap();
}

type Spoil = fn(&mut v1::TaskSpec);

/// Code, field, and how to spoil a good submission so that it is refused with them.
const BAD_SPECS: [(&str, &str, Spoil); 13] = [
    ("missing", "spec.agent", |spec| spec.agent.clear()),
    ("blank", "spec.agent", |spec| spec.agent = "  ".into()),
    ("too_large", "spec.prompt", |spec| {
        spec.prompt = "x".repeat(1024 * 1024 + 1)
    }),
    ("unknown_enum", "spec.turn_kind", |spec| spec.turn_kind = 99),
    ("out_of_range", "spec.priority", |spec| {
        spec.priority = Some(101)
    }),
    ("out_of_range", "spec.lease_ttl_ms", |spec| {
        spec.lease_ttl_ms = Some(10)
    }),
    ("bad_label", "spec.labels", |spec| {
        spec.labels.insert("no spaces".into(), String::new());
    }),
    ("too_many", "spec.command.argv", |spec| {
        spec.command = Some(v1::CommandSpec {
            argv: vec!["x".into(); 1025],
        });
    }),
    ("zero_byte", "spec.cwd", |spec| spec.cwd = "a\0b".into()),
    ("conflicting_fields", "spec.profile_name", |spec| {
        spec.profile = Some(v1::DeadlineProfile::default());
        spec.profile_name = "fast".into();
    }),
    ("unknown_profile", "", |spec| {
        spec.profile_name = "nobody-has-it".into()
    }),
    (
        "bad_path",
        "spec.contract.required_artifacts.path",
        |spec| {
            let artifact = v1::RequiredArtifact {
                path: "../x".into(),
                ..Default::default()
            };
            let contract = spec.contract.get_or_insert_default();
            contract.required_artifacts.push(artifact);
        },
    ),
    ("unimplemented", "", |spec| spec.mcp = true),
];

#[tokio::test]
async fn a_bad_submission_is_refused_with_its_own_code_and_field_and_commits_nothing() {
    let relay = Fixture::new().await;
    let before = relay.commit_seq().await;
    for (code, field, spoil) in BAD_SPECS {
        let mut spec = spec();
        spoil(&mut spec);
        let status = relay
            .tasks(&relay.admin)
            .submit(submission(spec))
            .await
            .unwrap_err();
        let detail = baton_proto::unpack_error_detail(&status).unwrap();
        assert_eq!(
            (detail.code.as_str(), detail.field.as_str()),
            (code, field),
            "{status:?}"
        );
        assert!(!detail.hint.is_empty());
    }
    assert_eq!(relay.commit_seq().await, before);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_request_that_names_nothing_or_is_no_message_commits_nothing() {
    let relay = Fixture::new().await;
    let admin = relay.admin.clone();
    let before = relay.commit_seq().await;
    let mut tasks = relay.tasks(&admin);
    assert_eq!(refused(tasks.get(get("x")).await).1, "malformed_id");
    assert_eq!(refused(tasks.get(get(NOWHERE)).await).1, "unknown_task");
    let watch = v1::WatchTaskRequest {
        task_id: NOWHERE.into(),
        ..Default::default()
    };
    assert_eq!(refused(tasks.watch(watch).await).1, "unknown_task");
    let cancel = v1::CancelTaskRequest {
        task_id: NOWHERE.into(),
        ..Default::default()
    };
    assert_eq!(refused(tasks.cancel(cancel).await).1, "unknown_task");
    let list = v1::ListTasksRequest {
        page_token: "AAAA".into(),
        ..Default::default()
    };
    assert_eq!(refused(tasks.list(list).await).1, "bad_page_token");
    let output = v1::ReadOutputRequest {
        attempt_id: NOWHERE.into(),
        ..Default::default()
    };
    assert_eq!(
        refused(tasks.read_output(output).await).1,
        "unknown_attempt"
    );

    let submit = "/baton.v1.Tasks/Submit";
    // Field 2 (idempotency_key) with a byte that is no UTF-8.
    let bytes = Bytes::from_static(&[0x12, 0x01, 0xff]);
    assert_eq!(
        refused(raw(relay.caller(&admin), submit, bytes).await).1,
        "undecodable"
    );
    let huge = Bytes::from(vec![0; limits::WIRE_BYTES + 1]);
    assert_eq!(
        refused(raw(relay.caller(&admin), submit, huge).await).1,
        "message_too_large"
    );
    let nothing = raw(relay.caller(&admin), "/baton.v1.Tasks/Nope", Bytes::new()).await;
    assert_eq!(refused(nothing).1, "unknown_rpc");
    assert_eq!(relay.commit_seq().await, before);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn administrators_handle_the_tokens_of_their_tenant_only() {
    let relay = Fixture::new().await;
    let (own_id, own) = relay.token("acme", v1::Role::Admin).await;
    let (_, other) = relay.token("globex", v1::Role::Admin).await;
    let make = |tenant: &str, role: v1::Role| v1::CreateTokenRequest {
        name: "x".into(),
        tenant: tenant.into(),
        role: role.into(),
        ..Default::default()
    };
    for tenant in ["globex", "*"] {
        let made = relay
            .operator(&own)
            .create_token(make(tenant, v1::Role::Daemon))
            .await;
        assert_eq!(refused(made).1, "foreign_tenant");
    }
    let wide = relay
        .operator(&relay.admin)
        .create_token(make("*", v1::Role::Submitter))
        .await;
    assert_eq!(refused(wide).1, "conflicting_fields");
    let list = v1::ListTokensRequest {
        include_ended: true,
        ..Default::default()
    };
    let seen = relay
        .operator(&own)
        .list_tokens(list)
        .await
        .unwrap()
        .into_inner()
        .tokens;
    assert!(seen.iter().all(|token| token.tenant == "acme") && seen.len() == 1);
    let revoke = v1::RevokeTokenRequest { token_id: own_id };
    let foreign = relay.operator(&other).revoke_token(revoke.clone()).await;
    assert_eq!(
        refused(foreign),
        (Code::NotFound, "unknown_token".to_owned())
    );
    relay.operator(&own).revoke_token(revoke).await.unwrap();
    let after = relay
        .operator(&own)
        .list_profiles(v1::ListProfilesRequest {})
        .await;
    assert_eq!(refused(after).0, Code::Unauthenticated);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn profiles_belong_to_their_tenant_and_are_kept_as_sent() {
    let relay = Fixture::new().await;
    let (_, own) = relay.token("acme", v1::Role::Operator).await;
    let (_, other) = relay.token("globex", v1::Role::Operator).await;
    let profile = v1::DeadlineProfile {
        stream_idle_ms: Some(0),
        ..Default::default()
    };
    let put = v1::PutProfileRequest {
        name: "calm".into(),
        profile: Some(profile),
    };
    relay.operator(&own).put_profile(put).await.unwrap();
    let list = v1::ListProfilesRequest {};
    let mine = relay
        .operator(&own)
        .list_profiles(list)
        .await
        .unwrap()
        .into_inner()
        .profiles;
    assert_eq!(
        mine[0].profile,
        Some(profile),
        "zero stays zero, absent stays absent"
    );
    let theirs = relay
        .operator(&other)
        .list_profiles(list)
        .await
        .unwrap()
        .into_inner()
        .profiles;
    assert!(theirs.is_empty());
    let delete = v1::DeleteProfileRequest {
        name: "calm".into(),
    };
    let foreign = relay.operator(&other).delete_profile(delete.clone()).await;
    assert_eq!(refused(foreign).1, "unknown_profile");
    relay.operator(&own).delete_profile(delete).await.unwrap();
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_restart_keeps_tokens_and_makes_no_second_admin() {
    let data = tempfile::tempdir().unwrap();
    let config = RelayConfig::new(data.path().join("relay"), "127.0.0.1:0".parse().unwrap());
    let file = config.data.join("admin.token");
    let first = start(config.clone()).await.unwrap();
    let token = std::fs::read_to_string(&file).unwrap();
    in_time("stop", first.stop()).await.unwrap();
    let second = start(config).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), token);
    let uri = format!("http://{}", second.address());
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let bearer = Bearer(Some(
        format!("Bearer {}", token.trim_end()).parse().unwrap(),
    ));
    let mut operator = OperatorClient::with_interceptor(channel, bearer);
    let info = operator
        .relay_info(v1::RelayInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((info.relay_epoch, info.tenant.as_str()), (2, "*"));
    in_time("stop", second.stop()).await.unwrap();
}

#[tokio::test]
async fn a_drain_ends_by_its_deadline_although_peers_stay() {
    let relay = Fixture::new().await;
    let mut mute = TcpStream::connect(relay.relay.address()).await.unwrap();
    // A preface and an empty SETTINGS frame: an HTTP/2 peer that never says anything again and never reads.
    mute.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut fleet = FleetClient::new(relay.caller(&relay.admin));
    fleet
        .clone()
        .list_daemons(v1::ListDaemonsRequest {
            page_size: 201,
            ..Default::default()
        })
        .await
        .unwrap_err();
    in_time("stop", relay.relay.stop()).await.unwrap();
    let after = fleet.list_daemons(v1::ListDaemonsRequest::default()).await;
    assert_eq!(after.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn another_tenants_task_looks_like_none_and_asking_for_it_commits_nothing() {
    let relay = Fixture::new().await;
    let (_, own) = relay.token("acme", v1::Role::Submitter).await;
    let (_, other) = relay.token("globex", v1::Role::Operator).await;
    let task = relay.submit(&own, submission(spec())).await.task.unwrap();
    let before = relay.commit_seq().await;
    for id in [task.task_id.as_str(), NOWHERE] {
        let foreign = relay.tasks(&other).get(get(id)).await.unwrap_err();
        let unknown = relay.tasks(&other).get(get(NOWHERE)).await.unwrap_err();
        assert_eq!(
            (foreign.code(), foreign.message()),
            (unknown.code(), unknown.message())
        );
        assert_eq!(foreign.details(), unknown.details());
        let cancel = v1::CancelTaskRequest {
            task_id: id.into(),
            ..Default::default()
        };
        assert_eq!(
            refused(relay.tasks(&other).cancel(cancel).await).1,
            "unknown_task"
        );
        let watch = v1::WatchTaskRequest {
            task_id: id.into(),
            ..Default::default()
        };
        assert_eq!(
            refused(relay.tasks(&other).watch(watch).await).1,
            "unknown_task"
        );
        let retry = v1::RetryTaskRequest {
            task_id: id.into(),
            ..Default::default()
        };
        assert_eq!(
            refused(relay.operator(&other).retry_task(retry).await).1,
            "unknown_task"
        );
        let inspect = v1::InspectRequest { task_id: id.into() };
        assert_eq!(
            refused(relay.operator(&other).inspect(inspect).await).1,
            "unknown_task"
        );
    }
    let listed = relay
        .tasks(&other)
        .list(v1::ListTasksRequest::default())
        .await
        .unwrap();
    assert!(listed.into_inner().tasks.is_empty());
    assert_eq!(relay.commit_seq().await, before);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn absent_empty_and_partial_profiles_come_back_as_they_were_sent() {
    let relay = Fixture::new().await;
    let partial = v1::DeadlineProfile {
        stream_idle_ms: Some(7_000),
        tool_idle_ms: Some(0),
        ..Default::default()
    };
    for sent in [None, Some(v1::DeadlineProfile::default()), Some(partial)] {
        let spec = v1::TaskSpec {
            profile: sent,
            ..spec()
        };
        let id = relay
            .submit(&relay.admin, submission(spec))
            .await
            .task
            .unwrap()
            .task_id;
        let ask = v1::GetTaskRequest {
            task_id: id,
            include_spec: true,
        };
        let task = relay
            .tasks(&relay.admin)
            .get(ask)
            .await
            .unwrap()
            .into_inner()
            .task
            .unwrap();
        assert_eq!(task.requested_profile, sent);
        assert_eq!(task.spec.unwrap().profile, sent);
        let effective = task
            .effective_profile
            .expect("what is enforced is always said");
        match sent {
            None => assert_eq!(effective.process_start_ms, Some(15_000)),
            Some(sent) => assert_eq!(effective, sent),
        }
    }
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn one_key_makes_one_task_and_fail_fast_without_a_daemon_is_refused() {
    let relay = Fixture::new().await;
    let keyed = |spec| v1::SubmitRequest {
        idempotency_key: "k".into(),
        ..submission(spec)
    };
    let first = relay.submit(&relay.admin, keyed(spec())).await;
    let again = relay.submit(&relay.admin, keyed(spec())).await;
    assert!(!first.existed && again.existed);
    assert_eq!(first.task.unwrap().task_id, again.task.unwrap().task_id);
    let other = v1::TaskSpec {
        goal: "another".into(),
        ..spec()
    };
    let before = relay.commit_seq().await;
    let conflict = relay.tasks(&relay.admin).submit(keyed(other)).await;
    assert_eq!(
        refused(conflict),
        (Code::AlreadyExists, "idempotency_conflict".to_owned())
    );
    let policy = v1::DispatchPolicy::FailFast.into();
    let impatient = v1::TaskSpec {
        dispatch_policy: policy,
        ..spec()
    };
    let nobody = relay
        .tasks(&relay.admin)
        .submit(submission(impatient))
        .await;
    assert_eq!(refused(nobody), (Code::Unavailable, "no_daemon".to_owned()));
    assert_eq!(relay.commit_seq().await, before);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_is_refused_and_many_rows_are_answered_in_order() {
    let relay = Fixture::with(|config| config.max_open = 3).await;
    let row = |goal: &str| {
        submission(v1::TaskSpec {
            goal: goal.into(),
            ..spec()
        })
    };
    let bad = submission(v1::TaskSpec {
        agent: String::new(),
        ..spec()
    });
    let tasks = vec![row("a"), bad, row("b"), row("c"), row("d")];
    let many = relay
        .tasks(&relay.admin)
        .submit_many(v1::SubmitManyRequest { tasks })
        .await;
    let results = many.unwrap().into_inner().results;
    let told: Vec<String> = results
        .into_iter()
        .map(|row| told(row.result.unwrap()))
        .collect();
    assert_eq!(told, ["a", "missing", "b", "c", "queue_full"]);
    let full = relay.tasks(&relay.admin).submit(row("e")).await;
    assert_eq!(
        refused(full),
        (Code::ResourceExhausted, "queue_full".to_owned())
    );

    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let ask = v1::ListTasksRequest {
            page_size: 2,
            page_token,
            ..Default::default()
        };
        let page = relay
            .tasks(&relay.admin)
            .list(ask)
            .await
            .unwrap()
            .into_inner();
        seen.extend(page.tasks.into_iter().map(|task| task.goal));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["c", "b", "a"], "newest first, over two pages");
    in_time("stop", relay.relay.stop()).await.unwrap();
}

/// The goal of an accepted row, the machine code of a refused one.
fn told(row: v1::submit_many_result::Result) -> String {
    match row {
        v1::submit_many_result::Result::Accepted(accepted) => accepted.task.unwrap().goal,
        v1::submit_many_result::Result::Error(error) => error.code,
    }
}

#[tokio::test]
async fn a_watch_shows_history_then_the_cancel_and_ends_with_the_task() {
    let relay = Fixture::new().await;
    let task_id = relay
        .submit(&relay.admin, submission(spec()))
        .await
        .task
        .unwrap()
        .task_id;
    let ask = v1::WatchTaskRequest {
        task_id: task_id.clone(),
        ..Default::default()
    };
    let mut watch = relay
        .tasks(&relay.admin)
        .watch(ask)
        .await
        .unwrap()
        .into_inner();
    let mut revisions = Vec::new();
    let mut states = Vec::new();
    while let Some(message) = in_time("event", watch.message()).await.unwrap() {
        match message.item.unwrap() {
            v1::watch_task_response::Item::Event(event) => {
                revisions.push(event.revision);
                states.push(event.task_state());
            }
            v1::watch_task_response::Item::CaughtUp(at) => {
                assert_eq!(at.state(), v1::TaskState::Queued);
                let cancel = v1::CancelTaskRequest {
                    task_id: task_id.clone(),
                    ..Default::default()
                };
                let first = relay
                    .tasks(&relay.admin)
                    .cancel(cancel.clone())
                    .await
                    .unwrap();
                assert!(!first.into_inner().already_finished);
                let second = relay.tasks(&relay.admin).cancel(cancel).await.unwrap();
                assert!(second.into_inner().already_finished);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(
        revisions.iter().copied().eq(1..=revisions.len() as u64),
        "{revisions:?}"
    );
    assert_eq!(states.last(), Some(&v1::TaskState::Canceled));
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn revoking_a_token_ends_its_live_streams() {
    let relay = Fixture::new().await;
    let (id, reader) = relay.token("default", v1::Role::ReadOnly).await;
    let task_id = relay
        .submit(&relay.admin, submission(spec()))
        .await
        .task
        .unwrap()
        .task_id;
    let ask = v1::WatchTaskRequest {
        task_id,
        ..Default::default()
    };
    let mut watch = relay.tasks(&reader).watch(ask).await.unwrap().into_inner();
    let revoke = v1::RevokeTokenRequest { token_id: id };
    relay
        .operator(&relay.admin)
        .revoke_token(revoke)
        .await
        .unwrap();
    let ended = loop {
        match in_time("end of the stream", watch.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (ended.code(), machine_code(&ended).as_str()),
        (Code::Unauthenticated, "credential_ended")
    );
    in_time("stop", relay.relay.stop()).await.unwrap();
}

/// Sends bytes as one message, whatever they are.
async fn raw<C>(channel: C, path: &'static str, message: Bytes) -> Result<Bytes, Status>
where
    C: tonic::client::GrpcService<tonic::body::Body>,
    C::ResponseBody: tonic::codegen::Body<Data = Bytes> + Send + 'static,
    <C::ResponseBody as tonic::codegen::Body>::Error: Into<tonic::codegen::StdError> + Send,
    C::Error: Into<tonic::codegen::StdError>,
{
    let mut client = tonic::client::Grpc::new(channel);
    client
        .ready()
        .await
        .map_err(|error| Status::unknown(error.into().to_string()))?;
    let path = http::uri::PathAndQuery::from_static(path);
    let answer = client.unary(Request::new(message), path, Raw).await?;
    Ok(answer.into_inner())
}

struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
