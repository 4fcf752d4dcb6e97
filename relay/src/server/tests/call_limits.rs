//! One client cannot use up the limits of the others: unread answers, long messages and health
//! watches are bounded.

use std::time::Duration;

use baton_proto::v1;
use bytes::Bytes;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus::Serving;
use tonic_health::pb::health_client::HealthClient;

use super::raw_client::call_raw;
use super::{
    BearerInterceptor, RelayFixture, TokenChannel, get_request, in_time, refusal_code, spec,
    submission,
};

impl RelayFixture {
    /// A client on a separate connection with a zero window, so that the relay cannot send any
    /// answer.
    async fn non_reading_client(&self, token: &str) -> v1::tasks_client::TasksClient<TokenChannel> {
        let uri = format!("http://{}", self.relay.address());
        let endpoint = Endpoint::from_shared(uri).unwrap();
        let channel: Channel = endpoint
            .initial_stream_window_size(0)
            .connect()
            .await
            .unwrap();
        let bearer = BearerInterceptor(Some(format!("Bearer {token}").parse().unwrap()));
        v1::tasks_client::TasksClient::new(TokenChannel::new(channel, bearer))
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_has_few_large_answers_for_a_short_time() {
    let relay =
        RelayFixture::with_config(|config| config.network.unary_timeout = Duration::from_secs(2))
            .await;
    let (_, greedy) = relay.create_token("acme", v1::Role::ReadOnly).await;
    let (_, other) = relay.create_token("acme", v1::Role::Submitter).await;
    let task = relay.submit(&other, submission(spec())).await.task.unwrap();
    let non_reading = relay.non_reading_client(&greedy).await;
    let mut unread = JoinSet::new();
    let refusal = async {
        // Every call waits for an answer that cannot be sent, until one call is refused.
        loop {
            let (mut non_reading, request) = (non_reading.clone(), get_request(&task.task_id));
            unread.spawn(async move { non_reading.get(request).await });
            if let Some(Ok(Err(status))) = unread.try_join_next() {
                return status;
            }
            tokio::task::yield_now().await;
        }
    };
    let status = in_time("refusal", refusal).await;
    assert_eq!(
        refusal_code::<()>(Err(status)),
        (Code::Unavailable, "overloaded".to_owned())
    );
    let seen = relay.tasks(&other).get(get_request(&task.task_id)).await;
    assert_eq!(
        seen.unwrap().into_inner().task.unwrap().task_id,
        task.task_id
    );
    // After the timeout of the unread answers, their permits are free again.
    let again = async {
        while relay
            .tasks(&greedy)
            .get(get_request(&task.task_id))
            .await
            .is_err()
        {
            tokio::task::yield_now().await;
        }
    };
    in_time("answer to the same token", again).await;
}

#[tokio::test]
async fn an_unauthenticated_client_may_send_only_short_messages() {
    let relay = RelayFixture::new().await;
    let long = Bytes::from(vec![0; 1 << 20]);
    let answer = call_raw(relay.channel.clone(), "/grpc.health.v1.Health/Check", long).await;
    let refusal = answer.unwrap_err();
    assert!(
        refusal.message().contains("exceeds the size limit"),
        "{refusal:?}"
    );
}

#[tokio::test]
async fn unauthenticated_watches_do_not_displace_health_checks() {
    let relay = RelayFixture::new().await;
    let uri = format!("http://{}", relay.relay.address());
    let mut watching = Vec::new();
    let fill = async {
        // Many connections, because each connection has a limit of its own.
        loop {
            let endpoint = Endpoint::from_shared(uri.clone()).unwrap();
            let mut health = HealthClient::new(endpoint.connect().await.unwrap());
            for _ in 0..32 {
                match health.watch(HealthCheckRequest::default()).await {
                    Ok(stream) => watching.push((stream, health.clone())),
                    Err(status) => return status,
                }
            }
        }
    };
    let full = in_time("refusal", fill).await;
    assert_eq!(full.code(), Code::Unavailable);
    let mut health = HealthClient::new(relay.channel.clone());
    let answer = health.check(HealthCheckRequest::default()).await;
    assert_eq!(answer.unwrap().into_inner().status(), Serving);
}
