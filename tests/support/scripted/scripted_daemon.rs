//! A daemon that follows a test's script, frame by frame, over the real stream. It starts no
//! process and has no timer except its heartbeat.
//!
//! A background task reads the stream and renews every dispatched attempt once a second until
//! the test stops it. Frames wait in order until the test expects them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::v1::attempt_command::Body;
use baton_proto::v1::relay_frame::Frame;
use baton_proto::v1::settlement::Decision;
use baton_proto::v1::{
    ActiveAttempt, ActiveState, AgentInfo, AgentKind, AttemptCommand, DaemonFrame, DaemonStatus,
    Heartbeat, Hello, LeaseToken, LifecyclePhase, RelayFrame, RenewEntry, Settlement, Welcome,
    daemon_frame,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};

use crate::client::test_client::TestClient;
use crate::scripted::scripted_attempt::ScriptedAttempt;
use crate::wait::wait_within;

/// Frames in either direction. If full, the sender waits; a test reads its frames long before
/// that.
const FRAME_QUEUE_LENGTH: usize = 4096;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// An event of the stream.
#[derive(Debug)]
pub enum RelayStreamEvent {
    Frame(Box<RelayFrame>),
    /// The stream has ended, with this status.
    Ended(Result<(), Status>),
}

#[derive(Debug)]
pub struct ScriptedDaemon {
    pub hello: Hello,
    pub welcome: Welcome,
    client: TestClient,
    outgoing: mpsc::Sender<DaemonFrame>,
    events: mpsc::Receiver<RelayStreamEvent>,
    unread_frames: VecDeque<RelayFrame>,
    heartbeat: Arc<Mutex<HeartbeatState>>,
    _pump: AbortOnDropHandle<()>,
}

/// Content of the next heartbeat.
#[derive(Debug, Default)]
struct HeartbeatState {
    is_silent: bool,
    seq: u64,
    slots: u32,
    leases: BTreeMap<String, LeaseToken>,
}

/// Hello of a daemon that offers these agents.
pub fn hello(agents: &[&str]) -> Hello {
    let agent = |name: &&str| AgentInfo {
        name: (*name).to_owned(),
        kind: AgentKind::Command.into(),
        ..AgentInfo::default()
    };
    Hello {
        instance_id: uuid::Uuid::now_v7().to_string(),
        boot_id: "a-kernel".to_owned(),
        name: format!("scripted-{}", agents.first().unwrap_or(&"idle")),
        version: "test".to_owned(),
        protocol_version: baton_proto::PROTOCOL_VERSION,
        slots: 8,
        agents: agents.iter().map(agent).collect(),
        ..Hello::default()
    }
}

impl ScriptedDaemon {
    pub async fn connect(client: &TestClient, hello: Hello) -> Self {
        Self::try_connect(client, hello)
            .await
            .expect("the relay sends Welcome")
    }

    pub async fn try_connect(client: &TestClient, hello: Hello) -> Result<Self, Status> {
        let (outgoing, queue) = mpsc::channel(FRAME_QUEUE_LENGTH);
        let first = daemon_frame::Frame::Hello(hello.clone());
        outgoing
            .send(wrap_frame(first))
            .await
            .expect("the queue is new");
        let mut link = client.daemon_link();
        let opened = wait_within("the link to open", link.link(ReceiverStream::new(queue))).await?;
        let mut incoming = opened.into_inner();
        let first = wait_within("a Welcome", incoming.message()).await?;
        let welcome = match first.and_then(|frame| frame.frame) {
            Some(Frame::Welcome(welcome)) => welcome,
            other => panic!("the first frame is Welcome or an error, not {other:?}"),
        };
        let heartbeat = Arc::new(Mutex::new(HeartbeatState {
            slots: hello.slots,
            ..HeartbeatState::default()
        }));
        let (event_sender, events) = mpsc::channel(FRAME_QUEUE_LENGTH);
        if let Some(first) = next_heartbeat(&heartbeat) {
            // If the stream has ended, the code below notices.
            drop(outgoing.send(first).await);
        }
        let unread_frames = read_until_heartbeat_ack(&mut incoming, &event_sender).await;
        let reader_task = tokio::spawn(read_stream(
            incoming,
            event_sender,
            outgoing.clone(),
            heartbeat.clone(),
        ));
        Ok(Self {
            hello: Hello {
                daemon_id: welcome.daemon_id.clone(),
                ..hello
            },
            welcome,
            client: client.clone(),
            outgoing,
            events,
            unread_frames,
            heartbeat,
            _pump: AbortOnDropHandle::new(reader_task),
        })
    }

    /// Sends no more heartbeats.
    pub fn stop_heartbeats(&self) {
        lock(&self.heartbeat).is_silent = true;
    }

    /// Stops renewing this attempt while the heartbeats continue.
    pub fn stop_renewing(&self, attempt: &ScriptedAttempt) {
        lock(&self.heartbeat).leases.remove(attempt.id());
    }

    pub async fn send(&self, frame: daemon_frame::Frame) {
        self.outgoing
            .send(wrap_frame(frame))
            .await
            .expect("the stream is open");
    }

    /// The first frame, queued or still to come, for which `pick` returns a value. Others stay
    /// queued.
    pub async fn expect_frame<T>(
        &mut self,
        what: &str,
        pick: impl Fn(&RelayFrame) -> Option<T>,
    ) -> T {
        if let Some((at, found)) = self
            .unread_frames
            .iter()
            .enumerate()
            .find_map(|(at, frame)| Some((at, pick(frame)?)))
        {
            self.unread_frames.remove(at);
            return found;
        }
        let found = async {
            loop {
                match self.events.recv().await {
                    Some(RelayStreamEvent::Frame(frame)) => match pick(&frame) {
                        Some(found) => return found,
                        None => self.unread_frames.push_back(*frame),
                    },
                    Some(RelayStreamEvent::Ended(how)) => {
                        panic!("the stream ended ({how:?}) before {what}")
                    }
                    None => panic!("the stream had ended before {what}"),
                }
            }
        };
        wait_within(what, found).await
    }

    /// A command for this attempt.
    pub async fn expect_command<T>(
        &mut self,
        what: &str,
        attempt: &ScriptedAttempt,
        pick: impl Fn(&Body) -> Option<T>,
    ) -> T {
        self.expect_frame(what, |frame| match command_of_frame(frame) {
            Some((re, body)) if re == attempt.id() => pick(body),
            Some(_) | None => None,
        })
        .await
    }

    /// The next offered attempt; it is renewed from now on.
    pub async fn next_dispatch(&mut self) -> ScriptedAttempt {
        let (re, dispatch) = self
            .expect_frame("a Dispatch", |frame| match &frame.frame {
                Some(Frame::Attempt(AttemptCommand {
                    r#ref: Some(re),
                    body: Some(Body::Dispatch(dispatch)),
                })) => Some((re.clone(), dispatch.clone())),
                Some(_) | None => None,
            })
            .await;
        let attempt = ScriptedAttempt::new(re, dispatch, self.outgoing.clone());
        lock(&self.heartbeat)
            .leases
            .insert(attempt.id().to_owned(), attempt.token());
        attempt
    }

    pub async fn wait_for_confirmation(&mut self, attempt: &ScriptedAttempt) {
        self.expect_command("LeaseConfirmed", attempt, |body| {
            matches!(body, Body::LeaseConfirmed(_)).then_some(())
        })
        .await;
    }

    /// Dispatched, accepted, confirmed and started: the process would run now.
    pub async fn start_next_attempt(&mut self) -> ScriptedAttempt {
        let mut attempt = self.next_dispatch().await;
        attempt.accept().await;
        self.wait_for_confirmation(&attempt).await;
        attempt.send_started().await;
        attempt.send_phase(LifecyclePhase::AgentStarted).await;
        attempt.send_phase(LifecyclePhase::PromptWritten).await;
        attempt
    }

    /// Waits until all frames and output of this attempt are durable on the relay.
    pub async fn wait_until_acked(&mut self, attempt: &ScriptedAttempt) {
        self.expect_frame("an Ack of everything", |frame| {
            let Some(Frame::Ack(ack)) = &frame.frame else {
                return None;
            };
            let all = ack.entries.iter().any(|entry| {
                entry.attempt_id == attempt.id()
                    && entry.control_seq >= attempt.control_seq
                    && entry.output_offset >= attempt.offset
            });
            all.then_some(())
        })
        .await;
    }

    /// The end of the stream. Frames before it stay queued.
    pub async fn wait_for_stream_end(&mut self) -> Result<(), Status> {
        let ended = async {
            loop {
                match self.events.recv().await {
                    Some(RelayStreamEvent::Frame(frame)) => self.unread_frames.push_back(*frame),
                    Some(RelayStreamEvent::Ended(how)) => return how,
                    None => return Ok(()),
                }
            }
        };
        wait_within("the stream's end", ended).await
    }

    /// Frames that arrived and were not expected by the test.
    pub fn collect_unread_frames(&mut self) -> Vec<RelayFrame> {
        while let Ok(RelayStreamEvent::Frame(frame)) = self.events.try_recv() {
            self.unread_frames.push_back(*frame);
        }
        self.unread_frames.iter().cloned().collect()
    }

    /// The same process on a new stream, over `client` if the relay moved, with its remaining
    /// attempts.
    pub async fn reconnect(
        self,
        client: &TestClient,
        attempts: &mut [&mut ScriptedAttempt],
    ) -> Self {
        let Self { mut hello, .. } = self;
        hello.active = attempts
            .iter()
            .map(|attempt| active_attempt(attempt))
            .collect();
        let again = Self::connect(client, hello).await;
        for attempt in attempts {
            again.take_over_attempt(attempt);
        }
        again
    }

    /// Sends the attempt's frames over this stream from here on, and renews it there.
    fn take_over_attempt(&self, attempt: &mut ScriptedAttempt) {
        attempt.move_to_stream(self.outgoing.clone());
        lock(&self.heartbeat)
            .leases
            .insert(attempt.id().to_owned(), attempt.token());
    }

    /// The same daemon reconnects with an attempt that has finished meanwhile. The relay must
    /// adopt it.
    pub async fn reconnect_with_finished(
        client: &TestClient,
        hello: Hello,
        attempt: &mut ScriptedAttempt,
    ) -> Self {
        let finished = ActiveAttempt {
            token: None,
            state: ActiveState::Finished.into(),
            ..active_attempt(attempt)
        };
        let hello = Hello {
            active: vec![finished],
            ..hello
        };
        let again = Self::connect(client, hello).await;
        let is_adopted = |one: &Settlement| matches!(one.decision, Some(Decision::Adopt(_)));
        assert!(
            again.welcome.settlements.iter().all(is_adopted),
            "{:?}",
            again.welcome
        );
        attempt.move_to_stream(again.outgoing.clone());
        again
    }

    /// Sends the attempt's frames over this stream, even if the attempt belongs to another
    /// daemon.
    pub fn send_frames_of(&self, attempt: &mut ScriptedAttempt) {
        attempt.move_to_stream(self.outgoing.clone());
    }

    /// Entries for Hello of running attempts.
    pub fn list_as_running(attempts: &[&ScriptedAttempt]) -> Vec<ActiveAttempt> {
        attempts
            .iter()
            .map(|attempt| active_attempt(attempt))
            .collect()
    }

    pub fn client(&self) -> &TestClient {
        &self.client
    }
}

/// Entry for Hello of a running attempt.
pub fn active_attempt(attempt: &ScriptedAttempt) -> ActiveAttempt {
    ActiveAttempt {
        r#ref: Some(attempt.attempt_ref.clone()),
        token: Some(attempt.token()),
        state: ActiveState::Running.into(),
        last_control_seq: attempt.control_seq,
        oldest_control_seq: 1,
        output_end: attempt.offset,
        ..ActiveAttempt::default()
    }
}

fn command_of_frame(frame: &RelayFrame) -> Option<(&str, &Body)> {
    match &frame.frame {
        Some(Frame::Attempt(AttemptCommand {
            r#ref: Some(re),
            body: Some(body),
        })) => Some((&re.attempt_id, body)),
        Some(_) | None => None,
    }
}

fn wrap_frame(frame: daemon_frame::Frame) -> DaemonFrame {
    DaemonFrame { frame: Some(frame) }
}

fn lock(heartbeat: &Mutex<HeartbeatState>) -> MutexGuard<'_, HeartbeatState> {
    heartbeat.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads up to the answer of the first heartbeat. From then on the relay offers work, because
/// the daemon has confirmed that it receives.
async fn read_until_heartbeat_ack(
    incoming: &mut Streaming<RelayFrame>,
    event_sender: &mpsc::Sender<RelayStreamEvent>,
) -> VecDeque<RelayFrame> {
    let mut unread_frames = VecDeque::new();
    loop {
        let ended = match wait_within("the first heartbeat's answer", incoming.message()).await {
            Ok(Some(frame)) if matches!(frame.frame, Some(Frame::HeartbeatAck(_))) => break,
            Ok(Some(frame)) => {
                unread_frames.push_back(frame);
                continue;
            }
            Ok(None) => Ok(()),
            Err(status) => Err(status),
        };
        // The queue is new, so it is not full. A test reads the end after the queued frames.
        let _ = event_sender.try_send(RelayStreamEvent::Ended(ended));
        break;
    }
    unread_frames
}

async fn read_stream(
    mut incoming: Streaming<RelayFrame>,
    event_sender: mpsc::Sender<RelayStreamEvent>,
    outgoing: mpsc::Sender<DaemonFrame>,
    heartbeat: Arc<Mutex<HeartbeatState>>,
) {
    let mut ticks = tokio::time::interval(HEARTBEAT_INTERVAL);
    loop {
        let event = tokio::select! {
            _ = ticks.tick() => {
                if let Some(frame) = next_heartbeat(&heartbeat) {
                    // If the stream has ended, the other branch notices.
                    drop(outgoing.send(frame).await);
                }
                continue;
            }
            message = incoming.message() => match message {
                Ok(Some(RelayFrame { frame: Some(Frame::HeartbeatAck(_)), .. })) => continue,
                Ok(Some(frame)) => RelayStreamEvent::Frame(Box::new(frame)),
                Ok(None) => RelayStreamEvent::Ended(Ok(())),
                Err(status) => RelayStreamEvent::Ended(Err(status)),
            },
        };
        let has_ended = matches!(event, RelayStreamEvent::Ended(_));
        if event_sender.send(event).await.is_err() || has_ended {
            return;
        }
    }
}

fn next_heartbeat(heartbeat: &Mutex<HeartbeatState>) -> Option<DaemonFrame> {
    let mut heartbeat = lock(heartbeat);
    if heartbeat.is_silent {
        return None;
    }
    heartbeat.seq += 1;
    let taken = u32::try_from(heartbeat.leases.len()).unwrap_or(u32::MAX);
    let renew = heartbeat
        .leases
        .iter()
        .map(|(attempt_id, token)| RenewEntry {
            attempt_id: attempt_id.clone(),
            token: Some(token.clone()),
            ..RenewEntry::default()
        });
    Some(wrap_frame(daemon_frame::Frame::Heartbeat(Heartbeat {
        seq: heartbeat.seq,
        free_slots: heartbeat.slots.saturating_sub(taken),
        status: DaemonStatus::Online.into(),
        renew: renew.collect(),
        ..Heartbeat::default()
    })))
}
