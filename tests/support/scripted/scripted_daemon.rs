//! A daemon that follows a test's script, frame by frame, over the real stream. It runs no process and no timer.
//!
//! A pump reads the stream and, while it is told to, renews every attempt it was given once a second, so that a test
//! may look elsewhere meanwhile. Frames wait in order until the test expects them.

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

/// Frames in either direction. Full: the sender waits; a test reads what it provokes long before that.
const FRAME_QUEUE_LENGTH: usize = 4096;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// What came over the stream.
#[derive(Debug)]
pub enum RelayStreamEvent {
    Frame(Box<RelayFrame>),
    /// The stream is over; with the status it ended with.
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

/// What the next heartbeat says.
#[derive(Debug, Default)]
struct HeartbeatState {
    is_silent: bool,
    seq: u64,
    slots: u32,
    leases: BTreeMap<String, LeaseToken>,
}

/// A daemon that offers these agents.
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
            .expect("the daemon is welcome")
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
        let beat = Arc::new(Mutex::new(HeartbeatState {
            slots: hello.slots,
            ..HeartbeatState::default()
        }));
        let (tell, heard) = mpsc::channel(FRAME_QUEUE_LENGTH);
        if let Some(first) = next_heartbeat(&beat) {
            // A stream that has ended is noticed below.
            drop(outgoing.send(first).await);
        }
        let waiting = read_until_heartbeat_ack(&mut incoming, &tell).await;
        let pump = tokio::spawn(pump_stream(incoming, tell, outgoing.clone(), beat.clone()));
        Ok(Self {
            hello: Hello {
                daemon_id: welcome.daemon_id.clone(),
                ..hello
            },
            welcome,
            client: client.clone(),
            outgoing,
            events: heard,
            unread_frames: waiting,
            heartbeat: beat,
            _pump: AbortOnDropHandle::new(pump),
        })
    }

    /// Sends no more heartbeats.
    pub fn stop_heartbeats(&self) {
        lock(&self.heartbeat).is_silent = true;
    }

    /// Does not renew this attempt any more, though the heartbeats go on.
    pub fn stop_renewing(&self, attempt: &ScriptedAttempt) {
        lock(&self.heartbeat).leases.remove(attempt.id());
    }

    pub async fn send(&self, frame: daemon_frame::Frame) {
        self.outgoing
            .send(wrap_frame(frame))
            .await
            .expect("the stream is open");
    }

    /// The first frame, waiting or yet to come, that `pick` takes. Others stay for later.
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

    /// A command about this attempt.
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

    /// The next attempt that is offered; it is renewed from now on.
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

    /// Offered, accepted, confirmed and started: the process would run now.
    pub async fn start_next_attempt(&mut self) -> ScriptedAttempt {
        let mut attempt = self.next_dispatch().await;
        attempt.accept().await;
        self.wait_for_confirmation(&attempt).await;
        attempt.send_started().await;
        attempt.send_phase(LifecyclePhase::AgentStarted).await;
        attempt.send_phase(LifecyclePhase::PromptWritten).await;
        attempt
    }

    /// Waits until all that this attempt sent is durable on the relay, output too.
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

    /// The stream's end: frames before it are dropped.
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

    /// Frames that came and that nobody expected.
    pub fn collect_unread_frames(&mut self) -> Vec<RelayFrame> {
        while let Ok(RelayStreamEvent::Frame(frame)) = self.events.try_recv() {
            self.unread_frames.push_back(*frame);
        }
        self.unread_frames.iter().cloned().collect()
    }

    /// The same process on a new stream, over `client` if the relay moved, with the attempts it still has.
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

    /// What the attempt says goes over this stream from here on, and it is renewed there.
    pub fn take_over_attempt(&self, attempt: &mut ScriptedAttempt) {
        attempt.move_to_stream(self.outgoing.clone());
        lock(&self.heartbeat)
            .leases
            .insert(attempt.id().to_owned(), attempt.token());
    }

    /// The same daemon comes back with an attempt that has finished meanwhile; the relay must want its end.
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
        let wanted = |one: &Settlement| matches!(one.decision, Some(Decision::Adopt(_)));
        assert!(
            again.welcome.settlements.iter().all(wanted),
            "{:?}",
            again.welcome
        );
        attempt.move_to_stream(again.outgoing.clone());
        again
    }

    /// Lets the attempt's frames go over this stream, whoever's attempt it is.
    pub fn send_frames_of(&self, attempt: &mut ScriptedAttempt) {
        attempt.move_to_stream(self.outgoing.clone());
    }

    /// How these would be listed in a Hello while they run.
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

/// How Hello lists an attempt that goes on.
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

fn lock(beat: &Mutex<HeartbeatState>) -> MutexGuard<'_, HeartbeatState> {
    beat.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads up to the answer of the first heartbeat: from there on the relay knows that this daemon hears, and offers it work.
async fn read_until_heartbeat_ack(
    incoming: &mut Streaming<RelayFrame>,
    tell: &mpsc::Sender<RelayStreamEvent>,
) -> VecDeque<RelayFrame> {
    let mut waiting = VecDeque::new();
    loop {
        let ended = match wait_within("the first heartbeat's answer", incoming.message()).await {
            Ok(Some(frame)) if matches!(frame.frame, Some(Frame::HeartbeatAck(_))) => break,
            Ok(Some(frame)) => {
                waiting.push_back(frame);
                continue;
            }
            Ok(None) => Ok(()),
            Err(status) => Err(status),
        };
        // The queue is new, and a test reads it after what waits.
        let _ = tell.try_send(RelayStreamEvent::Ended(ended));
        break;
    }
    waiting
}

async fn pump_stream(
    mut incoming: Streaming<RelayFrame>,
    tell: mpsc::Sender<RelayStreamEvent>,
    outgoing: mpsc::Sender<DaemonFrame>,
    beat: Arc<Mutex<HeartbeatState>>,
) {
    let mut ticks = tokio::time::interval(HEARTBEAT_INTERVAL);
    loop {
        let heard = tokio::select! {
            _ = ticks.tick() => {
                if let Some(frame) = next_heartbeat(&beat) {
                    // A stream that has ended is noticed by the other branch.
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
        let over = matches!(heard, RelayStreamEvent::Ended(_));
        if tell.send(heard).await.is_err() || over {
            return;
        }
    }
}

fn next_heartbeat(beat: &Mutex<HeartbeatState>) -> Option<DaemonFrame> {
    let mut beat = lock(beat);
    if beat.is_silent {
        return None;
    }
    beat.seq += 1;
    let taken = u32::try_from(beat.leases.len()).unwrap_or(u32::MAX);
    let renew = beat.leases.iter().map(|(attempt_id, token)| RenewEntry {
        attempt_id: attempt_id.clone(),
        token: Some(token.clone()),
        ..RenewEntry::default()
    });
    Some(wrap_frame(daemon_frame::Frame::Heartbeat(Heartbeat {
        seq: beat.seq,
        free_slots: beat.slots.saturating_sub(taken),
        status: DaemonStatus::Online.into(),
        renew: renew.collect(),
        ..Heartbeat::default()
    })))
}
