//! A minimal daemon for tests: one slot, one attempt. The test chooses the order of the frames.

use baton_proto::v1;
use baton_proto::v1::attempt_command::Body as Command;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::daemon_link_client::DaemonLinkClient;
use baton_proto::v1::{daemon_frame, relay_frame};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use uuid::Uuid;

use super::{RelayFixture, in_time};

pub(super) struct SingleAttemptDaemon {
    frames: mpsc::Sender<v1::DaemonFrame>,
    relay: Streaming<v1::RelayFrame>,
    attempt: v1::AttemptRef,
    control_seq: u64,
}

impl SingleAttemptDaemon {
    /// Connects, waits for a dispatch, accepts it and waits for the confirmation.
    pub(super) async fn connect_and_accept(fixture: &RelayFixture, token: &str) -> Self {
        let (frames, sent) = mpsc::channel(16);
        let hello = v1::Hello {
            instance_id: Uuid::now_v7().to_string(),
            boot_id: "boot".into(),
            name: "scripted".into(),
            protocol_version: baton_proto::PROTOCOL_VERSION,
            slots: 1,
            agents: vec![v1::AgentInfo {
                name: "command".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let first = daemon_frame::Frame::Hello(hello);
        frames
            .send(v1::DaemonFrame { frame: Some(first) })
            .await
            .unwrap();
        let mut client = DaemonLinkClient::new(fixture.token_channel(token));
        let link = client.link(ReceiverStream::new(sent));
        let relay = in_time("link", link).await.unwrap().into_inner();
        let mut this = Self {
            frames,
            relay,
            attempt: v1::AttemptRef::default(),
            control_seq: 0,
        };
        // The heartbeat shows that the daemon has read Welcome.
        let beat = daemon_frame::Frame::Heartbeat(v1::Heartbeat {
            seq: 1,
            ..Default::default()
        });
        let beat = v1::DaemonFrame { frame: Some(beat) };
        this.frames.send(beat).await.unwrap();
        this.expect("dispatch", |body| matches!(body, Command::Dispatch(_)))
            .await;
        this.send(Body::Accepted(v1::TaskAccepted::default())).await;
        this.expect("confirmation", |body| {
            matches!(body, Command::LeaseConfirmed(_))
        })
        .await;
        this
    }

    async fn expect(&mut self, what: &str, wanted: fn(&Command) -> bool) {
        loop {
            let frame = in_time(what, self.relay.message()).await.unwrap().unwrap();
            if let Some(relay_frame::Frame::Attempt(command)) = frame.frame
                && command.body.as_ref().is_some_and(wanted)
            {
                self.attempt = command.r#ref.unwrap();
                return;
            }
        }
    }

    /// Waits for the Goodbye that ends the stream.
    pub(super) async fn wait_goodbye(&mut self) -> v1::Goodbye {
        loop {
            let frame = in_time("goodbye", self.relay.message())
                .await
                .unwrap()
                .unwrap();
            if let Some(relay_frame::Frame::Goodbye(goodbye)) = frame.frame {
                return goodbye;
            }
        }
    }

    /// Sends a control frame with the next number.
    pub(super) async fn send(&mut self, body: Body) {
        self.control_seq += 1;
        self.write(self.control_seq, body).await;
    }

    pub(super) async fn output(&mut self, offset: u64, text: &'static str) {
        let stream = v1::Stream {
            offset,
            chunk: text.into(),
            after_control_seq: self.control_seq,
            visible: true,
            kind: v1::OutputKind::Stdout.into(),
            ..Default::default()
        };
        self.write(0, Body::Stream(stream)).await;
    }

    pub(super) async fn complete(&mut self, final_offset: u64) {
        let receipt = v1::TerminationReceipt {
            exit_code: Some(0),
            group_empty: true,
            ..Default::default()
        };
        let complete = v1::TaskComplete {
            final_offset,
            receipt: Some(receipt),
            ..Default::default()
        };
        self.send(Body::Complete(complete)).await;
    }

    async fn write(&mut self, control_seq: u64, body: Body) {
        let frame = v1::AttemptFrame {
            r#ref: Some(self.attempt.clone()),
            control_seq,
            within_lease: true,
            body: Some(body),
            ..Default::default()
        };
        let frame = daemon_frame::Frame::Attempt(frame);
        self.frames
            .send(v1::DaemonFrame { frame: Some(frame) })
            .await
            .unwrap();
    }
}
