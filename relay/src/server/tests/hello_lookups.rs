//! Cost of the attempts that a daemon lists in its Hello.

use baton_proto::v1;
use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use baton_proto::v1::{daemon_frame, relay_frame};
use tokio_stream::StreamExt;
use uuid::Uuid;

use super::{RelayFixture, in_time};

const LISTED: usize = 200;
/// An unknown task is looked up among live tasks, among finished tasks, and once more among
/// live tasks.
const LOOKUPS_EACH: u64 = 3;

impl RelayFixture {
    fn lookup_count(&self) -> u64 {
        let counted = self.relay.telemetry().lookups().totals();
        counted
            .iter()
            .find(|(what, _)| *what == "record")
            .unwrap()
            .1
    }
}

#[tokio::test]
async fn unknown_attempts_of_a_hello_are_looked_up_once() {
    let relay = RelayFixture::new().await;
    let (_, token) = relay.create_token("acme", v1::Role::Daemon).await;
    let mut operator = relay.operator(&relay.admin);
    let info = operator.relay_info(v1::RelayInfoRequest {}).await;
    let incarnation = info.unwrap().into_inner().incarnation;
    let unknown = || v1::ActiveAttempt {
        r#ref: Some(v1::AttemptRef {
            task_id: Uuid::now_v7().to_string(),
            attempt_id: Uuid::now_v7().to_string(),
            attempt_number: 1,
            incarnation: incarnation.clone(),
            ..Default::default()
        }),
        state: v1::ActiveState::Running.into(),
        ..Default::default()
    };
    let hello = v1::Hello {
        instance_id: Uuid::now_v7().to_string(),
        boot_id: "boot".into(),
        name: "away for long".into(),
        protocol_version: baton_proto::PROTOCOL_VERSION,
        slots: 1,
        active: (0..LISTED).map(|_| unknown()).collect(),
        ..Default::default()
    };
    let frame = Some(daemon_frame::Frame::Hello(hello));
    let before = relay.lookup_count();
    let frames = tokio_stream::once(v1::DaemonFrame { frame }).chain(tokio_stream::pending());
    let mut client = DaemonLinkClient::new(relay.token_channel(&token));
    let link = in_time("link", client.link(frames)).await.unwrap();
    let received = in_time("Welcome", async { link.into_inner().message().await });
    let received = received.await.unwrap().unwrap().frame;
    let Some(relay_frame::Frame::Welcome(welcome)) = received else {
        panic!("{received:?}");
    };
    assert_eq!(welcome.settlements.len(), LISTED);
    let lookups = relay.lookup_count() - before;
    let (once, twice) = (
        LISTED as u64 * LOOKUPS_EACH,
        2 * LISTED as u64 * LOOKUPS_EACH,
    );
    assert!((once..twice).contains(&lookups), "{lookups} lookups");
    in_time("stop", relay.relay.stop()).await.unwrap();
}
