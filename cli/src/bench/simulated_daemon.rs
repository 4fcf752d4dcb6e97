//! A daemon without processes: it speaks the real stream, takes every offer, and does with it what its work says. Counts a
//! completion only when the relay has said that it is durable. It outlives its connections, like a real one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1::{
    ActiveAttempt, ActiveState, AgentInfo, AgentKind, AttemptCommand, AttemptFrame, AttemptRef,
    CommandResult, DaemonFrame, DaemonStatus, Dispatch, Heartbeat, Hello, LeaseToken,
    LifecyclePhase, RelayFrame, RenewEntry, TaskAccepted, TaskComplete, TaskLifecycle, TaskStarted,
    TerminationReceipt, Welcome, attempt_command, attempt_frame, daemon_frame, relay_frame,
    renew_result, settlement,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::output_writer::{OutputWriter, Writing};
use super::witness::Witness;
use crate::client::Relay;
use crate::clock;
use crate::errors::CliError;

/// What tasks ask for that are completed or held.
pub(crate) const AGENT: &str = "bench";
/// What tasks ask for that write output.
pub(crate) const WRITING_AGENT: &str = "bench-output";
/// TaskAccepted is 1.
const STARTED_SEQ: u64 = 2;
/// Full policy: the daemon waits, and the relay's flow control reaches it that way.
const OUTGOING_FRAMES: usize = 1024;

/// What becomes of an attempt once its lease is confirmed.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Completed at once.
    Complete,
    /// Held until an order says otherwise.
    Hold,
    /// Writes output, then completes.
    Write(Writing),
}

impl Work {
    fn agent(&self) -> &'static str {
        match self {
            Work::Complete | Work::Hold => AGENT,
            Work::Write(_) => WRITING_AGENT,
        }
    }
}

/// What a bench tells the daemons that hold attempts. The newest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    None,
    /// One tool call on each attempt; the number tells one order from the next.
    UseTool(u64),
    /// Complete all that is held.
    Complete,
}

#[derive(Debug)]
pub(crate) struct SimulatedDaemon {
    hello: Hello,
    work: Work,
    orders: watch::Receiver<Order>,
    witness: Arc<Witness>,
    held: HashMap<String, Held>,
}

#[derive(Debug)]
struct Held {
    attempt: AttemptRef,
    token: Option<LeaseToken>,
    /// Number of the last control frame.
    said: u64,
    /// Its end, once it was said.
    end: Option<u64>,
    runs: bool,
    output: Option<OutputWriter>,
}

/// One stream, and the connection that it lives on.
#[derive(Debug)]
pub(crate) struct Link {
    outgoing: mpsc::Sender<DaemonFrame>,
    incoming: Streaming<RelayFrame>,
    heartbeat: Duration,
    heartbeats: u64,
    heard: u64,
    _relay: Relay,
}

/// How the relay answered Hello.
#[derive(Debug)]
pub(crate) enum Answer {
    Welcome(Box<Link>),
    /// Come back after this.
    Later(Duration),
}

impl SimulatedDaemon {
    pub(crate) fn new(
        name: &str,
        slots: u32,
        work: Work,
        orders: watch::Receiver<Order>,
        witness: Arc<Witness>,
    ) -> Self {
        Self {
            hello: hello(name, slots, work.agent()),
            work,
            orders,
            witness,
            held: HashMap::new(),
        }
    }

    pub(crate) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// Introduces itself on a new connection, with what it holds.
    pub(crate) async fn dial(&mut self, relay: Relay) -> Result<Answer, CliError> {
        let (outgoing, queue) = mpsc::channel(OUTGOING_FRAMES);
        self.hello.active = self.held.values().map(Held::active).collect();
        let hello = daemon_frame::Frame::Hello(self.hello.clone());
        drop(outgoing.send(DaemonFrame { frame: Some(hello) }).await);
        let call = relay.link().link(ReceiverStream::new(queue)).await?;
        let mut incoming = call.into_inner();
        let frame = incoming.message().await?.and_then(|frame| frame.frame);
        match frame {
            Some(relay_frame::Frame::Welcome(welcome)) => {
                let heartbeat = Duration::from_millis(welcome.heartbeat_ms.max(100));
                self.welcomed(welcome);
                Ok(Answer::Welcome(Box::new(Link {
                    outgoing,
                    incoming,
                    heartbeat,
                    heartbeats: 0,
                    heard: 0,
                    _relay: relay,
                })))
            }
            Some(relay_frame::Frame::Goodbye(goodbye)) => {
                let ms = goodbye.retry_after_ms.unwrap_or(500);
                Ok(Answer::Later(Duration::from_millis(ms)))
            }
            other => Err(CliError::local(
                "a simulated daemon was not welcomed",
                format!("{other:?}"),
            )),
        }
    }

    fn welcomed(&mut self, welcome: Welcome) {
        self.hello.daemon_id = welcome.daemon_id;
        for settled in welcome.settlements {
            match settled.decision {
                Some(settlement::Decision::Keep(_)) => {}
                Some(settlement::Decision::Adopt(_) | settlement::Decision::Kill(_)) | None => {
                    self.held.remove(&settled.attempt_id);
                    self.witness.taken_away();
                }
            }
        }
    }

    /// Until the relay closes the stream. A broken stream shows as work that does not complete.
    pub(crate) async fn serve(&mut self, link: &mut Link) {
        let mut beat = tokio::time::interval(link.heartbeat);
        let mut ordered = true;
        loop {
            tokio::select! {
                _ = beat.tick() => self.beat(link).await,
                changed = self.orders.changed(), if ordered => {
                    ordered = changed.is_ok();
                    self.obey(link).await;
                }
                frame = link.incoming.message() => match frame {
                    Ok(Some(frame)) => self.frame(link, frame).await,
                    Ok(None) | Err(_) => return,
                },
            }
        }
    }

    async fn frame(&mut self, link: &mut Link, frame: RelayFrame) {
        match frame.frame {
            Some(relay_frame::Frame::Attempt(AttemptCommand {
                r#ref: Some(attempt),
                body: Some(body),
            })) => self.command(link, attempt, body).await,
            Some(relay_frame::Frame::Ack(ack)) => {
                for entry in ack.entries {
                    self.acked(&entry.attempt_id, entry.control_seq, entry.output_offset);
                }
            }
            Some(relay_frame::Frame::HeartbeatAck(ack)) => {
                link.heard = ack.seq;
                for result in ack.results {
                    if let Some(renew_result::Result::Revoked(_)) = result.result {
                        self.revoked(&result.attempt_id);
                    }
                }
            }
            // A refused frame is not a completion, however it is acknowledged later.
            Some(relay_frame::Frame::Rejected(rejected)) => self.taken_away(&rejected.attempt_id),
            Some(_) | None => {}
        }
    }

    async fn command(&mut self, link: &Link, attempt: AttemptRef, body: attempt_command::Body) {
        match body {
            attempt_command::Body::Dispatch(dispatch) => self.take(link, attempt, dispatch).await,
            attempt_command::Body::LeaseConfirmed(_) => self.begin(link, &attempt.attempt_id).await,
            attempt_command::Body::Cancel(_) | attempt_command::Body::Abandon(_) => {
                self.taken_away(&attempt.attempt_id);
            }
            attempt_command::Body::Result(CommandResult { .. })
            | attempt_command::Body::PermissionDecision(_)
            | attempt_command::Body::Answer(_) => {}
        }
    }

    async fn take(&mut self, link: &Link, attempt: AttemptRef, dispatch: Dispatch) {
        self.witness.offered(attempt.attempt_number);
        let id = attempt.attempt_id.clone();
        let mut held = Held {
            attempt,
            token: dispatch.token,
            said: 0,
            end: None,
            runs: false,
            output: None,
        };
        let accepted = attempt_frame::Body::Accepted(TaskAccepted { position: 0 });
        link.send(held.say(accepted)).await;
        self.held.insert(id, held);
    }

    async fn begin(&mut self, link: &Link, attempt_id: &str) {
        let Some(held) = self.held.get_mut(attempt_id) else {
            return;
        };
        let started = attempt_frame::Body::Started(TaskStarted::default());
        link.send(held.say(started)).await;
        match &self.work {
            Work::Complete => link.send(held.complete(0)).await,
            Work::Hold if *self.orders.borrow() == Order::Complete => {
                link.send(held.complete(0)).await;
            }
            Work::Hold => {}
            Work::Write(writing) => {
                let end = held.complete(writing.bytes());
                let writer = OutputWriter::start(writing, &held.attempt, end, &link.outgoing);
                held.output = Some(writer);
            }
        }
    }

    async fn obey(&mut self, link: &Link) {
        let order = *self.orders.borrow_and_update();
        // Both frames of a tool call carry the moment that they were made, for whoever watches.
        for held in self.held.values_mut().filter(|held| held.end.is_none()) {
            match order {
                Order::None => {}
                Order::UseTool(_) => {
                    let id = self.witness.stamp(clock::instant());
                    link.send(held.say(tool(LifecyclePhase::ToolStarted, &id)))
                        .await;
                    link.send(held.say(tool(LifecyclePhase::ToolFinished, &id)))
                        .await;
                }
                Order::Complete => link.send(held.complete(0)).await,
            }
        }
    }

    fn acked(&mut self, attempt_id: &str, control_seq: u64, offset: u64) {
        let Some(held) = self.held.get_mut(attempt_id) else {
            return;
        };
        if let Some(output) = &held.output {
            output.acked(offset);
        }
        if control_seq >= STARTED_SEQ && !held.runs {
            held.runs = true;
            self.witness.runs();
        }
        // Said twice, it counts once: the attempt is gone after the first.
        if held.end.is_some_and(|end| end <= control_seq)
            && let Some(held) = self.held.remove(attempt_id)
        {
            self.witness.completed(&held.attempt.channel_id);
        }
    }

    /// An attempt whose end the relay has just heard is no longer renewed; its acknowledgement is on the way.
    fn revoked(&mut self, attempt_id: &str) {
        if self
            .held
            .get(attempt_id)
            .is_some_and(|held| held.end.is_none())
        {
            self.taken_away(attempt_id);
        }
    }

    fn taken_away(&mut self, attempt_id: &str) {
        if self.held.remove(attempt_id).is_some() {
            self.witness.taken_away();
        }
    }

    async fn beat(&self, link: &mut Link) {
        link.heartbeats += 1;
        let renew: Vec<RenewEntry> = self.held.values().map(Held::renewal).collect();
        let taken = u32::try_from(renew.len()).unwrap_or(u32::MAX);
        let heartbeat = Heartbeat {
            seq: link.heartbeats,
            heard_seq: Some(link.heard),
            free_slots: self.hello.slots.saturating_sub(taken),
            status: DaemonStatus::Online.into(),
            renew,
            ..Heartbeat::default()
        };
        link.send(daemon_frame::Frame::Heartbeat(heartbeat)).await;
    }
}

impl Link {
    /// A closed stream shows in `serve`, so a frame that nobody takes is no error here.
    async fn send(&self, frame: daemon_frame::Frame) {
        drop(self.outgoing.send(DaemonFrame { frame: Some(frame) }).await);
    }
}

impl Held {
    /// The next control frame.
    fn say(&mut self, body: attempt_frame::Body) -> daemon_frame::Frame {
        self.said += 1;
        daemon_frame::Frame::Attempt(AttemptFrame {
            r#ref: Some(self.attempt.clone()),
            control_seq: self.said,
            within_lease: true,
            body: Some(body),
            ..AttemptFrame::default()
        })
    }

    fn complete(&mut self, final_offset: u64) -> daemon_frame::Frame {
        let receipt = TerminationReceipt {
            exit_code: Some(0),
            group_empty: true,
            prompt_written: Some(true),
            process_started: true,
            ..TerminationReceipt::default()
        };
        let frame = self.say(attempt_frame::Body::Complete(TaskComplete {
            final_offset,
            receipt: Some(receipt),
            ..TaskComplete::default()
        }));
        self.end = Some(self.said);
        frame
    }

    fn renewal(&self) -> RenewEntry {
        RenewEntry {
            attempt_id: self.attempt.attempt_id.clone(),
            token: self.token.clone(),
            phase: LifecyclePhase::Accepted.into(),
        }
    }

    fn active(&self) -> ActiveAttempt {
        ActiveAttempt {
            r#ref: Some(self.attempt.clone()),
            token: self.token.clone(),
            state: ActiveState::Running.into(),
            last_control_seq: self.said,
            phase: LifecyclePhase::Started.into(),
            ..ActiveAttempt::default()
        }
    }
}

fn tool(phase: LifecyclePhase, id: &str) -> attempt_frame::Body {
    attempt_frame::Body::Lifecycle(TaskLifecycle {
        phase: phase.into(),
        tool_call_id: id.to_owned(),
        tool_name: AGENT.to_owned(),
        ..TaskLifecycle::default()
    })
}

fn hello(name: &str, slots: u32, agent: &str) -> Hello {
    Hello {
        instance_id: uuid::Uuid::now_v7().to_string(),
        boot_id: uuid::Uuid::now_v7().to_string(),
        name: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_version: baton_proto::PROTOCOL_VERSION,
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        slots,
        agents: vec![AgentInfo {
            name: agent.to_owned(),
            kind: AgentKind::Command.into(),
            ..AgentInfo::default()
        }],
        ..Hello::default()
    }
}
