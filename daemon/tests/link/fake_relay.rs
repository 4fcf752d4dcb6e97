//! A relay controlled by the test: real gRPC, but the test gives every answer. Heartbeats are
//! answered while the test waits for something else, unless it turns that off.

use std::time::Duration;

use baton_proto::codes::features;
use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::daemon_frame::Frame as Up;
use baton_proto::v1::daemon_link_server::{DaemonLink, DaemonLinkServer};
use baton_proto::v1::relay_frame::Frame as Down;
use baton_proto::v1::{
    Ack, AckEntry, AttemptCommand, AttemptFrame, AttemptRef, CommandSpec, DaemonFrame, Dispatch,
    ErrorDetail, FenceCode, FrameRejected, Heartbeat, HeartbeatAck, Hello, LeaseConfirmed,
    LeaseToken, LifecyclePhase, OutputKind, RelayFrame, RenewResult, Renewed, Revoked, Settlement,
    TurnKind, Welcome, attempt_command, renew_result, settlement,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

/// Nothing here takes this long unless it hangs.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const INCARNATION: &str = "incarnation-1";

type RelayFrameSender = mpsc::Sender<Result<RelayFrame, Status>>;

pub(crate) struct FakeRelay {
    pub(crate) url: String,
    /// One per relay: daemons find what they left by it, and tests run in parallel.
    pub(crate) daemon_id: String,
    streams: mpsc::Receiver<(String, Streaming<DaemonFrame>, RelayFrameSender)>,
    server: JoinHandle<()>,
}

struct FakeLinkService {
    streams: mpsc::Sender<(String, Streaming<DaemonFrame>, RelayFrameSender)>,
}

#[tonic::async_trait]
impl DaemonLink for FakeLinkService {
    async fn link(
        &self,
        request: Request<Streaming<DaemonFrame>>,
    ) -> Result<Response<BoxStream<RelayFrame>>, Status> {
        let token = request.metadata().get("authorization");
        let token = token
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        if token != "Bearer btn_test" {
            return Err(Status::unauthenticated("unknown token"));
        }
        let (tx, rx) = mpsc::channel(64);
        let stream = request.into_inner();
        self.streams
            .send((token, stream, tx))
            .await
            .map_err(|_| Status::aborted("the test has ended"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(rx))))
    }
}

impl FakeRelay {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the test can set itself up");
        let url = format!(
            "http://{}",
            listener.local_addr().expect("the test can set itself up")
        );
        let (tx, streams) = mpsc::channel(8);
        let service = DaemonLinkServer::new(FakeLinkService { streams: tx });
        let server = tokio::spawn(async move {
            // tonic's own option applies only to its own listener; without it small frames wait
            // 40 ms for an acknowledgement.
            let incoming = TcpListenerStream::new(listener).map(|tcp| {
                let tcp = tcp?;
                tcp.set_nodelay(true)?;
                Ok::<_, std::io::Error>(tcp)
            });
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .expect("the test can set itself up");
        });
        Self {
            url,
            daemon_id: format!("daemon-{}", uuid::Uuid::now_v7()),
            streams,
            server,
        }
    }

    /// The daemon's next stream, up to its Hello.
    pub(crate) async fn accept(&mut self) -> (FakeRelaySession, Hello) {
        let streams = self.streams.recv();
        let (_, mut up, down) = tokio::time::timeout(TEST_TIMEOUT, streams)
            .await
            .expect("no daemon connected")
            .expect("the test can set itself up");
        let first = up
            .message()
            .await
            .expect("the test can set itself up")
            .expect("a frame");
        let Some(Up::Hello(hello)) = first.frame else {
            panic!("not Hello: {first:?}")
        };
        let renewal = Some(Duration::from_secs(30));
        (
            FakeRelaySession {
                daemon_id: self.daemon_id.clone(),
                up,
                down,
                epoch: 1,
                renewal,
                heartbeats: Vec::new(),
                attempt_frames: Vec::new(),
            },
            hello,
        )
    }

    /// Accepts and welcomes, settling nothing.
    pub(crate) async fn welcome(&mut self) -> FakeRelaySession {
        let (mut session, _) = self.accept().await;
        session.welcome(Vec::new()).await;
        session
    }
}

impl Drop for FakeRelay {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub(crate) struct FakeRelaySession {
    daemon_id: String,
    up: Streaming<DaemonFrame>,
    down: RelayFrameSender,
    pub(crate) epoch: u64,
    /// The answer to a heartbeat's renewals; `None` leaves heartbeats unanswered.
    pub(crate) renewal: Option<Duration>,
    pub(crate) heartbeats: Vec<Heartbeat>,
    /// Every attempt frame that was received.
    pub(crate) attempt_frames: Vec<AttemptFrame>,
}

impl FakeRelaySession {
    pub(crate) async fn send(&mut self, frame: Down) {
        let frame = self.with_epoch(frame);
        self.down.send(Ok(frame)).await.expect("the stream is open");
    }

    fn with_epoch(&self, frame: Down) -> RelayFrame {
        RelayFrame {
            relay_epoch: self.epoch,
            incarnation: INCARNATION.into(),
            frame: Some(frame),
        }
    }

    pub(crate) async fn welcome(&mut self, settlements: Vec<Settlement>) {
        self.welcome_every(Duration::from_millis(500), settlements)
            .await;
    }

    pub(crate) async fn welcome_every(&mut self, beat: Duration, settlements: Vec<Settlement>) {
        self.send(Down::Welcome(Welcome {
            relay_id: "relay-1".into(),
            daemon_id: self.daemon_id.clone(),
            protocol_version: 1,
            heartbeat_ms: beat.as_millis() as u64,
            settlements,
            features: features::ALL.map(str::to_owned).to_vec(),
            ..Welcome::default()
        }))
        .await;
    }

    pub(crate) async fn command(&mut self, attempt: &AttemptRef, body: attempt_command::Body) {
        let r#ref = Some(attempt.clone());
        self.send(Down::Attempt(AttemptCommand {
            r#ref,
            body: Some(body),
        }))
        .await;
    }

    pub(crate) async fn dispatch(&mut self, attempt: &AttemptRef, dispatch: Dispatch) {
        self.command(attempt, attempt_command::Body::Dispatch(dispatch))
            .await;
    }

    /// Dispatch, TaskAccepted, LeaseConfirmed.
    pub(crate) async fn run(&mut self, attempt: &AttemptRef, dispatch: Dispatch) {
        let granted_ms = dispatch.granted_ms;
        self.dispatch(attempt, dispatch).await;
        self.until_frame(|body| matches!(body, Body::Accepted(_)))
            .await;
        self.confirm(attempt, granted_ms).await;
    }

    pub(crate) async fn confirm(&mut self, attempt: &AttemptRef, granted_ms: u64) {
        let confirmed = LeaseConfirmed {
            granted_ms,
            expires_at: None,
        };
        self.command(attempt, attempt_command::Body::LeaseConfirmed(confirmed))
            .await;
    }

    /// The next frame of any kind; heartbeats are recorded and answered.
    pub(crate) async fn next_frame(&mut self) -> Option<Up> {
        let next = tokio::time::timeout(TEST_TIMEOUT, self.up.message()).await;
        let frame = next
            .expect("the daemon sends nothing")
            .ok()
            .flatten()?
            .frame?;
        if let Up::Attempt(frame) = &frame {
            self.attempt_frames.push(frame.clone());
        }
        if let Up::Heartbeat(heartbeat) = &frame {
            self.heartbeats.push(heartbeat.clone());
            if let Some(granted) = self.renewal {
                let granted_ms = granted.as_millis() as u64;
                let renewed = Renewed {
                    granted_ms,
                    expires_at: None,
                };
                self.answer_renewals(heartbeat, renew_result::Result::Renewed(renewed))
                    .await;
            }
        }
        Some(frame)
    }

    async fn answer_renewals(&mut self, heartbeat: &Heartbeat, result: renew_result::Result) {
        let entry = |attempt_id: &String| RenewResult {
            attempt_id: attempt_id.clone(),
            result: Some(result),
        };
        let results = heartbeat
            .renew
            .iter()
            .map(|renew| entry(&renew.attempt_id))
            .collect();
        let ack = HeartbeatAck {
            seq: heartbeat.seq,
            results,
            ..HeartbeatAck::default()
        };
        // The daemon may have ended the stream after its heartbeat.
        let _ = self
            .down
            .send(Ok(self.with_epoch(Down::HeartbeatAck(ack))))
            .await;
    }

    /// Answers the next heartbeat that renews something with "revoked".
    pub(crate) async fn revoke_next(&mut self) {
        self.renewal = None;
        loop {
            if let Some(Up::Heartbeat(heartbeat)) = self.next_frame().await
                && !heartbeat.renew.is_empty()
            {
                let revoked = Revoked {
                    code: FenceCode::LeaseExpired.into(),
                };
                self.answer_renewals(&heartbeat, renew_result::Result::Revoked(revoked))
                    .await;
                self.renewal = Some(TEST_TIMEOUT);
                return;
            }
        }
    }

    /// The next frame of an attempt. Heartbeats never stop, so the whole wait has a limit and
    /// not only each frame.
    pub(crate) async fn next_attempt_frame(&mut self) -> AttemptFrame {
        let wanted = async {
            loop {
                let frame = self
                    .next_frame()
                    .await
                    .expect("the daemon closed the stream");
                if let Up::Attempt(frame) = frame {
                    return frame;
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, wanted)
            .await
            .expect("the daemon sends no frame of an attempt")
    }

    pub(crate) async fn until_frame(&mut self, wanted: impl Fn(&Body) -> bool) -> AttemptFrame {
        loop {
            let frame = self.next_attempt_frame().await;
            if frame.body.as_ref().is_some_and(&wanted) {
                return frame;
            }
        }
    }

    pub(crate) async fn until_terminal(&mut self) -> AttemptFrame {
        self.until_frame(is_terminal).await
    }

    pub(crate) async fn until_output(&mut self) -> AttemptFrame {
        self.until_frame(|body| matches!(body, Body::Stream(_)))
            .await
    }

    /// Acknowledges what comes, as a relay does, until the terminal frame.
    pub(crate) async fn until_terminal_acking(&mut self, attempt: &AttemptRef) -> AttemptFrame {
        loop {
            let control_seq = self
                .attempt_frames
                .iter()
                .map(|frame| frame.control_seq)
                .max();
            let offset = self.output_bytes() as u64;
            self.ack(attempt, control_seq.unwrap_or(0), offset).await;
            let frame = self.next_attempt_frame().await;
            if frame.body.as_ref().is_some_and(is_terminal) {
                return frame;
            }
        }
    }

    /// Reads until the daemon ends the stream.
    pub(crate) async fn until_closed(&mut self) {
        while self.next_frame().await.is_some() {}
    }

    pub(crate) async fn ack(&mut self, attempt: &AttemptRef, control_seq: u64, output_offset: u64) {
        let attempt_id = attempt.attempt_id.clone();
        let entries = vec![AckEntry {
            attempt_id,
            control_seq,
            output_offset,
        }];
        self.send(Down::Ack(Ack { entries })).await;
    }

    /// Output bytes of the received frames.
    pub(crate) fn output(&self) -> Vec<u8> {
        let chunks = self
            .attempt_frames
            .iter()
            .filter_map(|frame| match &frame.body {
                Some(Body::Stream(stream)) => Some(stream.chunk.to_vec()),
                _ => None,
            });
        chunks.flatten().collect()
    }

    pub(crate) fn output_bytes(&self) -> usize {
        self.chunk_lengths().sum()
    }

    pub(crate) fn largest_chunk(&self) -> usize {
        self.chunk_lengths().max().unwrap_or(0)
    }

    fn chunk_lengths(&self) -> impl Iterator<Item = usize> {
        self.attempt_frames
            .iter()
            .filter_map(|frame| match &frame.body {
                Some(Body::Stream(stream)) => Some(stream.chunk.len()),
                _ => None,
            })
    }

    /// Control frames after `seq`, by number.
    pub(crate) fn control_after(&self, seq: u64) -> Vec<(u64, Option<Body>)> {
        let later = self
            .attempt_frames
            .iter()
            .filter(|frame| frame.control_seq > seq);
        later
            .map(|frame| (frame.control_seq, frame.body.clone()))
            .collect()
    }

    pub(crate) fn phases(&self) -> Vec<LifecyclePhase> {
        let phases = self
            .attempt_frames
            .iter()
            .filter_map(|frame| match &frame.body {
                Some(Body::Lifecycle(lifecycle)) => Some(lifecycle.phase()),
                _ => None,
            });
        phases.collect()
    }

    pub(crate) fn kinds(&self) -> Vec<OutputKind> {
        let kinds = self
            .attempt_frames
            .iter()
            .filter_map(|frame| match &frame.body {
                Some(Body::Stream(stream)) => Some(stream.kind()),
                _ => None,
            });
        kinds.collect()
    }

    /// The process of the latest attempt.
    pub(crate) fn pid(&self) -> u32 {
        let pids = self
            .attempt_frames
            .iter()
            .filter_map(|frame| match &frame.body {
                Some(Body::Lifecycle(lifecycle)) => lifecycle.pid,
                _ => None,
            });
        pids.last().expect("a process was started")
    }

    /// Refuses a frame of `attempt` with a machine code.
    pub(crate) async fn refuse(&mut self, attempt: &AttemptRef, control_seq: u64, code: &str) {
        let error = ErrorDetail {
            code: code.into(),
            ..ErrorDetail::default()
        };
        self.send(Down::Rejected(FrameRejected {
            attempt_id: attempt.attempt_id.clone(),
            control_seq,
            error: Some(error),
            ..FrameRejected::default()
        }))
        .await;
    }

    /// Welcomes with one decision about `attempt`.
    pub(crate) async fn settle(&mut self, attempt: &AttemptRef, decision: settlement::Decision) {
        let attempt_id = attempt.attempt_id.clone();
        self.welcome(vec![Settlement {
            attempt_id,
            decision: Some(decision),
        }])
        .await;
    }

    pub(crate) fn terminal_count(&self) -> usize {
        self.attempt_frames
            .iter()
            .filter(|frame| frame.body.as_ref().is_some_and(is_terminal))
            .count()
    }
}

pub(crate) fn is_terminal(body: &Body) -> bool {
    matches!(body, Body::Complete(_) | Body::Error(_) | Body::Canceled(_))
}

pub(crate) fn attempt() -> AttemptRef {
    AttemptRef {
        task_id: uuid::Uuid::now_v7().to_string(),
        attempt_id: uuid::Uuid::now_v7().to_string(),
        attempt_number: 3,
        incarnation: INCARNATION.into(),
        conversation_id: "conversation".into(),
        channel_id: "channel".into(),
        turn_kind: TurnKind::User.into(),
        traceparent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01".into(),
    }
}

pub(crate) fn shell(script: &str) -> Dispatch {
    Dispatch {
        token: Some(LeaseToken {
            value: vec![7; 32].into(),
        }),
        granted_ms: 30_000,
        accept_ms: 10_000,
        agent: "command".into(),
        command: Some(CommandSpec {
            argv: ["sh", "-c", script].map(String::from).to_vec(),
        }),
        default_cleanup_term_ms: 500,
        ..Dispatch::default()
    }
}
