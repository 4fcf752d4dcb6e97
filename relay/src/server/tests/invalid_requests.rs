//! Invalid requests: each has its own machine code, and none commits anything.

use baton_proto::v1;
use bytes::Bytes;
use tonic::Code;

use super::raw_client::call_raw;
use super::{RelayFixture, UNKNOWN_TASK_ID, get_request, in_time, refusal_code, spec, submission};
use crate::api::request::limits;

type SpecEdit = fn(&mut v1::TaskSpec);

/// The expected code and field, and the edit that makes a valid submission invalid.
const BAD_SPECS: [(&str, &str, SpecEdit); 13] = [
    ("missing", "spec.agent", |spec| spec.agent.clear()),
    ("blank", "spec.agent", |spec| spec.agent = "  ".into()),
    ("too_large", "spec.prompt", |spec| {
        spec.prompt = "x".repeat(1024 * 1024 + 1)
    }),
    ("unknown_enum_value", "spec.turn_kind", |spec| {
        spec.turn_kind = 99
    }),
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
    ("unimplemented", "", |spec| spec.max_output_bytes = Some(1)),
];

#[tokio::test]
async fn an_invalid_submission_gets_its_code_and_field_and_commits_nothing() {
    let relay = RelayFixture::new().await;
    let before = relay.commit_seq().await;
    for (code, field, edit) in BAD_SPECS {
        let mut spec = spec();
        edit(&mut spec);
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
async fn unknown_ids_and_undecodable_messages_commit_nothing() {
    let relay = RelayFixture::new().await;
    let admin = relay.admin.clone();
    let before = relay.commit_seq().await;
    let mut tasks = relay.tasks(&admin);
    assert_eq!(
        refusal_code(tasks.get(get_request("x")).await).1,
        "malformed_id"
    );
    assert_eq!(
        refusal_code(tasks.get(get_request(UNKNOWN_TASK_ID)).await).1,
        "unknown_task"
    );
    let watch = v1::WatchTaskRequest {
        task_id: UNKNOWN_TASK_ID.into(),
        ..Default::default()
    };
    assert_eq!(refusal_code(tasks.watch(watch).await).1, "unknown_task");
    let cancel = v1::CancelTaskRequest {
        task_id: UNKNOWN_TASK_ID.into(),
        ..Default::default()
    };
    assert_eq!(refusal_code(tasks.cancel(cancel).await).1, "unknown_task");
    let list = v1::ListTasksRequest {
        page_token: "AAAA".into(),
        ..Default::default()
    };
    assert_eq!(refusal_code(tasks.list(list).await).1, "bad_page_token");
    let output = v1::ReadOutputRequest {
        attempt_id: UNKNOWN_TASK_ID.into(),
        ..Default::default()
    };
    assert_eq!(
        refusal_code(tasks.read_output(output).await).1,
        "unknown_attempt"
    );

    let submit = "/baton.v1.Tasks/Submit";
    // Field 2 (idempotency_key) with a byte that is not UTF-8.
    let bytes = Bytes::from_static(&[0x12, 0x01, 0xff]);
    assert_eq!(
        refusal_code(call_raw(relay.token_channel(&admin), submit, bytes).await).1,
        "undecodable"
    );
    let huge = Bytes::from(vec![0; limits::MAX_WIRE_BYTES + 1]);
    assert_eq!(
        refusal_code(call_raw(relay.token_channel(&admin), submit, huge).await).1,
        "message_too_large"
    );
    let nothing = call_raw(
        relay.token_channel(&admin),
        "/baton.v1.Tasks/Nope",
        Bytes::new(),
    )
    .await;
    assert_eq!(refusal_code(nothing).1, "unknown_rpc");
    assert_eq!(relay.commit_seq().await, before);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_blank_progress_item_is_refused_and_commits_nothing() {
    let relay = RelayFixture::new().await;
    let admin = relay.admin.clone();
    let task = relay.submit(&admin, submission(spec())).await.task.unwrap();
    let before = relay.commit_seq().await;
    let done = v1::ProgressUpdate {
        completed_items: vec!["real".into(), " ".into()],
        ..Default::default()
    };
    let failed = v1::ProgressUpdate {
        failed_items: vec![v1::FailedItem {
            item: "\t".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    for update in [done, failed] {
        let request = v1::UpdateProgressRequest {
            task_id: task.task_id.clone(),
            update: Some(update),
        };
        let refusal = refusal_code(relay.tasks(&admin).update_progress(request).await);
        assert_eq!(refusal, (Code::InvalidArgument, "blank".to_owned()));
    }
    assert_eq!(relay.commit_seq().await, before);
}
