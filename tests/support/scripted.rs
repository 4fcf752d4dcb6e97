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

use crate::attempt::ScriptedAttempt;
use crate::client::Client;
use crate::patience::within;

/// Frames in either direction. Full: the sender waits; a test reads what it provokes long before that.
const FRAMES: usize = 4096;
const BEAT: Duration = Duration::from_secs(1);

/// What came over the stream.
#[derive(Debug)]
pub enum Heard {
    Frame(Box<RelayFrame>),
    /// The stream is over; with the status it ended with.
    Ended(Result<(), Status>),
}

#[derive(Debug)]
pub struct ScriptedDaemon {
    pub hello: Hello,
    pub welcome: Welcome,
    client: Client,
    outgoing: mpsc::Sender<DaemonFrame>,
    heard: mpsc::Receiver<Heard>,
    waiting: VecDeque<RelayFrame>,
    beat: Arc<Mutex<Beat>>,
    _pump: AbortOnDropHandle<()>,
}

/// What the next heartbeat says.
#[derive(Debug, Default)]
struct Beat {
    silent: bool,
    seq: u64,
    slots: u32,
    held: BTreeMap<String, LeaseToken>,
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
    pub async fn connect(client: &Client, hello: Hello) -> Self {
        Self::try_connect(client, hello)
            .await
            .expect("the daemon is welcome")
    }

    pub async fn try_connect(client: &Client, hello: Hello) -> Result<Self, Status> {
        let (outgoing, queue) = mpsc::channel(FRAMES);
        let first = daemon_frame::Frame::Hello(hello.clone());
        outgoing
            .send(framed(first))
            .await
            .expect("the queue is new");
        let mut link = client.link();
        let opened = within("the link to open", link.link(ReceiverStream::new(queue))).await?;
        let mut incoming = opened.into_inner();
        let first = within("a Welcome", incoming.message()).await?;
        let welcome = match first.and_then(|frame| frame.frame) {
            Some(Frame::Welcome(welcome)) => welcome,
            other => panic!("the first frame is Welcome or an error, not {other:?}"),
        };
        let beat = Arc::new(Mutex::new(Beat {
            slots: hello.slots,
            ..Beat::default()
        }));
        let (tell, heard) = mpsc::channel(FRAMES);
        if let Some(first) = next_beat(&beat) {
            // A stream that has ended is noticed below.
            drop(outgoing.send(first).await);
        }
        let waiting = until_greeted(&mut incoming, &tell).await;
        let pump = tokio::spawn(pump(incoming, tell, outgoing.clone(), beat.clone()));
        Ok(Self {
            hello: Hello {
                daemon_id: welcome.daemon_id.clone(),
                ..hello
            },
            welcome,
            client: client.clone(),
            outgoing,
            heard,
            waiting,
            beat,
            _pump: AbortOnDropHandle::new(pump),
        })
    }

    /// Sends no more heartbeats.
    pub fn fall_silent(&self) {
        lock(&self.beat).silent = true;
    }

    /// Does not renew this attempt any more, though the heartbeats go on.
    pub fn forget(&self, attempt: &ScriptedAttempt) {
        lock(&self.beat).held.remove(attempt.id());
    }

    pub async fn send(&self, frame: daemon_frame::Frame) {
        self.outgoing
            .send(framed(frame))
            .await
            .expect("the stream is open");
    }

    /// The first frame, waiting or yet to come, that `pick` takes. Others stay for later.
    pub async fn expect<T>(&mut self, what: &str, pick: impl Fn(&RelayFrame) -> Option<T>) -> T {
        if let Some((at, found)) = self
            .waiting
            .iter()
            .enumerate()
            .find_map(|(at, frame)| Some((at, pick(frame)?)))
        {
            self.waiting.remove(at);
            return found;
        }
        let found = async {
            loop {
                match self.heard.recv().await {
                    Some(Heard::Frame(frame)) => match pick(&frame) {
                        Some(found) => return found,
                        None => self.waiting.push_back(*frame),
                    },
                    Some(Heard::Ended(how)) => panic!("the stream ended ({how:?}) before {what}"),
                    None => panic!("the stream had ended before {what}"),
                }
            }
        };
        within(what, found).await
    }

    /// A command about this attempt.
    pub async fn expect_command<T>(
        &mut self,
        what: &str,
        attempt: &ScriptedAttempt,
        pick: impl Fn(&Body) -> Option<T>,
    ) -> T {
        self.expect(what, |frame| match command(frame) {
            Some((re, body)) if re == attempt.id() => pick(body),
            Some(_) | None => None,
        })
        .await
    }

    /// The next attempt that is offered; it is renewed from now on.
    pub async fn offered(&mut self) -> ScriptedAttempt {
        let (re, dispatch) = self
            .expect("a Dispatch", |frame| match &frame.frame {
                Some(Frame::Attempt(AttemptCommand {
                    r#ref: Some(re),
                    body: Some(Body::Dispatch(dispatch)),
                })) => Some((re.clone(), dispatch.clone())),
                Some(_) | None => None,
            })
            .await;
        let attempt = ScriptedAttempt::new(re, dispatch, self.outgoing.clone());
        lock(&self.beat)
            .held
            .insert(attempt.id().to_owned(), attempt.token());
        attempt
    }

    pub async fn confirmed(&mut self, attempt: &ScriptedAttempt) {
        self.expect_command("LeaseConfirmed", attempt, |body| {
            matches!(body, Body::LeaseConfirmed(_)).then_some(())
        })
        .await;
    }

    /// Offered, accepted, confirmed and started: the process would run now.
    pub async fn running(&mut self) -> ScriptedAttempt {
        let mut attempt = self.offered().await;
        attempt.accept().await;
        self.confirmed(&attempt).await;
        attempt.started().await;
        attempt.phase(LifecyclePhase::AgentStarted).await;
        attempt.phase(LifecyclePhase::PromptWritten).await;
        attempt
    }

    /// Waits until all that this attempt sent is durable on the relay, output too.
    pub async fn acked(&mut self, attempt: &ScriptedAttempt) {
        self.expect("an Ack of everything", |frame| {
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
    pub async fn ended(&mut self) -> Result<(), Status> {
        let ended = async {
            loop {
                match self.heard.recv().await {
                    Some(Heard::Frame(frame)) => self.waiting.push_back(*frame),
                    Some(Heard::Ended(how)) => return how,
                    None => return Ok(()),
                }
            }
        };
        within("the stream's end", ended).await
    }

    /// Frames that came and that nobody expected.
    pub fn unexpected(&mut self) -> Vec<RelayFrame> {
        while let Ok(Heard::Frame(frame)) = self.heard.try_recv() {
            self.waiting.push_back(*frame);
        }
        self.waiting.iter().cloned().collect()
    }

    /// The same process on a new stream, over `client` if the relay moved, with the attempts it still has.
    pub async fn reconnect(self, client: &Client, attempts: &mut [&mut ScriptedAttempt]) -> Self {
        let Self { mut hello, .. } = self;
        hello.active = attempts.iter().map(|attempt| active(attempt)).collect();
        let again = Self::connect(client, hello).await;
        for attempt in attempts {
            again.takes_over(attempt);
        }
        again
    }

    /// What the attempt says goes over this stream from here on, and it is renewed there.
    pub fn takes_over(&self, attempt: &mut ScriptedAttempt) {
        attempt.moved_to(self.outgoing.clone());
        lock(&self.beat)
            .held
            .insert(attempt.id().to_owned(), attempt.token());
    }

    /// The same daemon comes back with an attempt that has finished meanwhile; the relay must want its end.
    pub async fn resume(client: &Client, hello: Hello, attempt: &mut ScriptedAttempt) -> Self {
        let finished = ActiveAttempt {
            token: None,
            state: ActiveState::Finished.into(),
            ..active(attempt)
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
        attempt.moved_to(again.outgoing.clone());
        again
    }

    /// Lets the attempt's frames go over this stream, whoever's attempt it is.
    pub fn speak_for(&self, attempt: &mut ScriptedAttempt) {
        attempt.moved_to(self.outgoing.clone());
    }

    /// How these would be listed in a Hello while they run.
    pub fn running_now(attempts: &[&ScriptedAttempt]) -> Vec<ActiveAttempt> {
        attempts.iter().map(|attempt| active(attempt)).collect()
    }

    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// How Hello lists an attempt that goes on.
pub fn active(attempt: &ScriptedAttempt) -> ActiveAttempt {
    ActiveAttempt {
        r#ref: Some(attempt.re.clone()),
        token: Some(attempt.token()),
        state: ActiveState::Running.into(),
        last_control_seq: attempt.control_seq,
        oldest_control_seq: 1,
        output_end: attempt.offset,
        ..ActiveAttempt::default()
    }
}

fn command(frame: &RelayFrame) -> Option<(&str, &Body)> {
    match &frame.frame {
        Some(Frame::Attempt(AttemptCommand {
            r#ref: Some(re),
            body: Some(body),
        })) => Some((&re.attempt_id, body)),
        Some(_) | None => None,
    }
}

fn framed(frame: daemon_frame::Frame) -> DaemonFrame {
    DaemonFrame { frame: Some(frame) }
}

fn lock(beat: &Mutex<Beat>) -> MutexGuard<'_, Beat> {
    beat.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads up to the answer of the first heartbeat: from there on the relay knows that this daemon hears, and offers it work.
async fn until_greeted(
    incoming: &mut Streaming<RelayFrame>,
    tell: &mpsc::Sender<Heard>,
) -> VecDeque<RelayFrame> {
    let mut waiting = VecDeque::new();
    loop {
        let ended = match within("the first heartbeat's answer", incoming.message()).await {
            Ok(Some(frame)) if matches!(frame.frame, Some(Frame::HeartbeatAck(_))) => break,
            Ok(Some(frame)) => {
                waiting.push_back(frame);
                continue;
            }
            Ok(None) => Ok(()),
            Err(status) => Err(status),
        };
        // The queue is new, and a test reads it after what waits.
        let _ = tell.try_send(Heard::Ended(ended));
        break;
    }
    waiting
}

async fn pump(
    mut incoming: Streaming<RelayFrame>,
    tell: mpsc::Sender<Heard>,
    outgoing: mpsc::Sender<DaemonFrame>,
    beat: Arc<Mutex<Beat>>,
) {
    let mut ticks = tokio::time::interval(BEAT);
    loop {
        let heard = tokio::select! {
            _ = ticks.tick() => {
                if let Some(frame) = next_beat(&beat) {
                    // A stream that has ended is noticed by the other branch.
                    drop(outgoing.send(frame).await);
                }
                continue;
            }
            message = incoming.message() => match message {
                Ok(Some(RelayFrame { frame: Some(Frame::HeartbeatAck(_)), .. })) => continue,
                Ok(Some(frame)) => Heard::Frame(Box::new(frame)),
                Ok(None) => Heard::Ended(Ok(())),
                Err(status) => Heard::Ended(Err(status)),
            },
        };
        let over = matches!(heard, Heard::Ended(_));
        if tell.send(heard).await.is_err() || over {
            return;
        }
    }
}

fn next_beat(beat: &Mutex<Beat>) -> Option<DaemonFrame> {
    let mut beat = lock(beat);
    if beat.silent {
        return None;
    }
    beat.seq += 1;
    let taken = u32::try_from(beat.held.len()).unwrap_or(u32::MAX);
    let renew = beat.held.iter().map(|(attempt_id, token)| RenewEntry {
        attempt_id: attempt_id.clone(),
        token: Some(token.clone()),
        ..RenewEntry::default()
    });
    Some(framed(daemon_frame::Frame::Heartbeat(Heartbeat {
        seq: beat.seq,
        free_slots: beat.slots.saturating_sub(taken),
        status: DaemonStatus::Online.into(),
        renew: renew.collect(),
        ..Heartbeat::default()
    })))
}
