//! A peer without a credential cannot keep a connection open by answering pings.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use baton_proto::v1;

use super::{RelayFixture, get_request, in_time, spec, submission};

const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, SETTINGS, 0, 0, 0, 0, 0];

/// An HTTP/2 peer that answers settings and pings and calls nothing. Completes when the relay
/// closes the connection.
async fn only_answers_pings(mut tcp: TcpStream) {
    tcp.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    tcp.write_all(&EMPTY_SETTINGS).await.unwrap();
    let mut head = [0; 9];
    while tcp.read_exact(&mut head).await.is_ok() {
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut body = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        if tcp.read_exact(&mut body).await.is_err() {
            return;
        }
        let answer = match kind {
            SETTINGS if flags & ACK == 0 => Vec::new(),
            PING if flags & ACK == 0 => body,
            _unanswered => continue,
        };
        let length = u8::try_from(answer.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, ACK];
        frame.extend(stream);
        frame.extend(answer);
        if tcp.write_all(&frame).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn an_idle_unauthenticated_connection_ends_and_open_calls_go_on() {
    let relay = RelayFixture::with_config(|config| {
        config.network.credential_timeout = Duration::from_secs(2);
        config.network.keepalive_interval = Duration::from_millis(100);
    })
    .await;
    let (_, token) = relay.create_token("acme", v1::Role::Submitter).await;
    let task = relay.submit(&token, submission(spec())).await.task.unwrap();
    let watch = v1::WatchTaskRequest {
        task_id: task.task_id.clone(),
        ..Default::default()
    };
    let watched = relay.tasks(&token).watch(watch).await;
    let mut watched = watched.unwrap().into_inner();
    in_time("first event", watched.message())
        .await
        .unwrap()
        .unwrap();
    // A health watch without a credential, on a connection of its own.
    let uri = format!("http://{}", relay.relay.address());
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let health = HealthClient::new(channel).watch(request).await;
    let mut health = health.unwrap().into_inner();
    let status = in_time("health", health.message()).await.unwrap().unwrap();
    assert_eq!(status.status(), ServingStatus::Serving);
    // Connected last, so the timeouts of the other connections are over when this one ends.
    let idle = TcpStream::connect(relay.relay.address()).await.unwrap();
    in_time("end of the idle connection", only_answers_pings(idle)).await;
    let seen = relay.tasks(&token).get(get_request(&task.task_id)).await;
    assert_eq!(
        seen.unwrap().into_inner().task.unwrap().task_id,
        task.task_id
    );
    let cancel = v1::CancelTaskRequest {
        task_id: task.task_id,
        reason: "enough".into(),
    };
    relay.tasks(&token).cancel(cancel).await.unwrap();
    let rest = async { while watched.message().await.unwrap().is_some() {} };
    in_time("end of the same watch", rest).await;
    relay.relay.stop().await.unwrap();
    let status = in_time("health", health.message()).await.unwrap().unwrap();
    assert_eq!(status.status(), ServingStatus::NotServing);
}
