//! Permissions, and isolation of tenants from each other.

use baton_proto::v1;
use bytes::Bytes;
use tonic::Code;

use super::raw_client::call_raw;
use super::{
    RelayFixture, UNKNOWN_TASK_ID, get_request, in_time, machine_code, refusal_code, spec,
    submission,
};

#[tokio::test]
async fn only_health_and_reflection_need_no_credential_and_no_role() {
    let relay = RelayFixture::new().await;
    let (_, reader) = relay.create_token("acme", v1::Role::ReadOnly).await;
    let (_, daemon) = relay.create_token("*", v1::Role::Daemon).await;
    let list = v1::ListTasksRequest::default;
    let unauthenticated = (Code::Unauthenticated, "unauthenticated".to_owned());
    let unknown = crate::auth::Token::generate().reveal();
    for token in ["", "btn_x_y", unknown.as_str()] {
        assert_eq!(
            refusal_code(relay.tasks(token).list(list()).await),
            unauthenticated,
            "{token:?}"
        );
    }
    relay.tasks(&reader).list(list()).await.unwrap();
    let forbidden = (Code::PermissionDenied, "permission_denied".to_owned());
    let submit = || submission(spec());
    assert_eq!(
        refusal_code(relay.tasks(&reader).submit(submit()).await),
        forbidden
    );
    assert_eq!(
        refusal_code(relay.tasks(&daemon).submit(submit()).await),
        forbidden
    );
    assert_eq!(
        refusal_code(relay.tasks(&daemon).list(list()).await),
        forbidden
    );
    let unbuilt = relay
        .tasks(&reader)
        .watch_many(v1::WatchManyRequest::default())
        .await;
    assert_eq!(
        refusal_code(unbuilt),
        (Code::Unimplemented, "unimplemented".to_owned())
    );

    let check = tonic_health::pb::HealthCheckRequest::default();
    let mut health = tonic_health::pb::health_client::HealthClient::new(relay.channel.clone());
    health.check(check).await.unwrap();
    for path in [
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ] {
        let answer = call_raw(relay.channel.clone(), path, Bytes::new()).await;
        assert_ne!(
            answer.err().map(|s| s.code()),
            Some(Code::Unimplemented),
            "{path}"
        );
    }
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn administrators_manage_only_tokens_of_their_tenant() {
    let relay = RelayFixture::new().await;
    let (own_id, own) = relay.create_token("acme", v1::Role::Admin).await;
    let (_, other) = relay.create_token("globex", v1::Role::Admin).await;
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
        assert_eq!(refusal_code(made).1, "foreign_tenant");
    }
    let wide = relay
        .operator(&relay.admin)
        .create_token(make("*", v1::Role::Submitter))
        .await;
    assert_eq!(refusal_code(wide).1, "conflicting_fields");
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
        refusal_code(foreign),
        (Code::NotFound, "unknown_token".to_owned())
    );
    relay.operator(&own).revoke_token(revoke).await.unwrap();
    let after = relay
        .operator(&own)
        .list_profiles(v1::ListProfilesRequest {})
        .await;
    assert_eq!(refusal_code(after).0, Code::Unauthenticated);
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn profiles_belong_to_their_tenant_and_are_kept_as_sent() {
    let relay = RelayFixture::new().await;
    let (_, own) = relay.create_token("acme", v1::Role::Operator).await;
    let (_, other) = relay.create_token("globex", v1::Role::Operator).await;
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
    let own_profiles = relay
        .operator(&own)
        .list_profiles(list)
        .await
        .unwrap()
        .into_inner()
        .profiles;
    assert_eq!(
        own_profiles[0].profile,
        Some(profile),
        "zero and absent values are kept as sent"
    );
    let other_profiles = relay
        .operator(&other)
        .list_profiles(list)
        .await
        .unwrap()
        .into_inner()
        .profiles;
    assert!(other_profiles.is_empty());
    let delete = v1::DeleteProfileRequest {
        name: "calm".into(),
    };
    let foreign = relay.operator(&other).delete_profile(delete.clone()).await;
    assert_eq!(refusal_code(foreign).1, "unknown_profile");
    relay.operator(&own).delete_profile(delete).await.unwrap();
    in_time("stop", relay.relay.stop()).await.unwrap();
}

#[tokio::test]
async fn a_task_of_another_tenant_is_unknown_and_reads_commit_nothing() {
    let relay = RelayFixture::new().await;
    let (_, own) = relay.create_token("acme", v1::Role::Submitter).await;
    let (_, other) = relay.create_token("globex", v1::Role::Operator).await;
    let task = relay.submit(&own, submission(spec())).await.task.unwrap();
    let before = relay.commit_seq().await;
    for id in [task.task_id.as_str(), UNKNOWN_TASK_ID] {
        let foreign = relay.tasks(&other).get(get_request(id)).await.unwrap_err();
        let unknown = relay
            .tasks(&other)
            .get(get_request(UNKNOWN_TASK_ID))
            .await
            .unwrap_err();
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
            refusal_code(relay.tasks(&other).cancel(cancel).await).1,
            "unknown_task"
        );
        let watch = v1::WatchTaskRequest {
            task_id: id.into(),
            ..Default::default()
        };
        assert_eq!(
            refusal_code(relay.tasks(&other).watch(watch).await).1,
            "unknown_task"
        );
        let retry = v1::RetryTaskRequest {
            task_id: id.into(),
            reason: "look".into(),
            ..Default::default()
        };
        assert_eq!(
            refusal_code(relay.operator(&other).retry_task(retry).await).1,
            "unknown_task"
        );
        let inspect = v1::InspectRequest { task_id: id.into() };
        assert_eq!(
            refusal_code(relay.operator(&other).inspect(inspect).await).1,
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
async fn revoking_a_token_ends_its_live_streams() {
    let relay = RelayFixture::new().await;
    let (id, reader) = relay.create_token("default", v1::Role::ReadOnly).await;
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
            Ok(None) => panic!("the stream ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (ended.code(), machine_code(&ended).as_str()),
        (Code::Unauthenticated, "credential_ended")
    );
    in_time("stop", relay.relay.stop()).await.unwrap();
}
