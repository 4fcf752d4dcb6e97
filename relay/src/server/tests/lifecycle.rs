//! Start, restart and stop of a relay.

use std::time::Duration;

use baton_proto::v1;
use baton_proto::v1::fleet_client::FleetClient;
use baton_proto::v1::operator_client::OperatorClient;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Endpoint;

use super::super::{RelayConfig, start};
use super::single_attempt_daemon::SingleAttemptDaemon;
use super::{BearerInterceptor, RelayFixture, in_time, machine_code, spec, submission};

#[tokio::test]
async fn a_restart_keeps_tokens_and_makes_no_second_admin() {
    let data = tempfile::tempdir().unwrap();
    let config = RelayConfig::new(data.path().join("relay"), "127.0.0.1:0".parse().unwrap());
    let file = config.data_dir.join("admin.token");
    let first = start(config.clone()).await.unwrap();
    let token = std::fs::read_to_string(&file).unwrap();
    in_time("stop", first.stop()).await.unwrap();
    let second = start(config).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), token);
    let uri = format!("http://{}", second.address());
    let channel = Endpoint::from_shared(uri).unwrap().connect().await.unwrap();
    let bearer = BearerInterceptor(Some(
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
async fn a_drain_ends_by_its_deadline_even_if_peers_stay_connected() {
    let relay = RelayFixture::new().await;
    let mut silent_peer = TcpStream::connect(relay.relay.address()).await.unwrap();
    // A preface and an empty SETTINGS frame: an HTTP/2 peer that then neither sends nor reads.
    silent_peer
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut fleet = FleetClient::new(relay.token_channel(&relay.admin));
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
async fn a_drain_notifies_daemons_and_watchers_and_ends_early() {
    let relay =
        RelayFixture::with_config(|config| config.drain_timeout = Duration::from_secs(3600)).await;
    let (_, token) = relay.create_token("*", v1::Role::Daemon).await;
    let task = relay
        .submit(&relay.admin, submission(spec()))
        .await
        .task
        .unwrap();
    let mut daemon = SingleAttemptDaemon::connect_and_accept(&relay, &token).await;
    let ask = v1::WatchTaskRequest {
        task_id: task.task_id,
        ..Default::default()
    };
    let mut watch = relay
        .tasks(&relay.admin)
        .watch(ask)
        .await
        .unwrap()
        .into_inner();
    in_time("stop", relay.relay.stop()).await.unwrap();
    let goodbye = daemon.wait_goodbye().await;
    assert_eq!(goodbye.code(), v1::GoodbyeCode::Shutdown);
    assert_eq!(
        goodbye.retry_after_ms,
        Some(500),
        "Goodbye contains the time to reconnect"
    );
    let ended = loop {
        match in_time("end of the watch", watch.message()).await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the watch ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        (ended.code(), machine_code(&ended).as_str()),
        (Code::Unavailable, "relay_draining")
    );
}
