//! A daemon without processes. It uses the real stream, accepts every offer and handles it as its
//! `SimulatedWork` describes. A completion counts only after the relay has acknowledged it as
//! durable. Like a real daemon, it keeps its attempts when its connection breaks.

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

use crate::client::BenchClient;
use crate::clock;
use crate::error::BenchError;
use crate::fleet::completion_recorder::CompletionRecorder;
use crate::fleet::output_writer::{AttemptOutputWriter, OutputWorkload};

/// Agent name of tasks that are completed at once or kept running.
pub(crate) const COMMAND_AGENT_NAME: &str = "bench";
/// Agent name of tasks that write output.
pub(crate) const OUTPUT_AGENT_NAME: &str = "bench-output";
/// control_seq of TaskStarted; TaskAccepted is 1.
const STARTED_CONTROL_SEQ: u64 = 2;
/// When the queue is full the daemon waits, so the relay's flow control slows it down.
const MAX_OUTGOING_FRAMES: usize = 1024;

/// What a daemon does with an attempt once its lease is confirmed.
#[derive(Clone, Debug)]
pub(crate) enum SimulatedWork {
    /// Completes it at once.
    Complete,
    /// Keeps it running until an order arrives.
    Hold,
    /// Writes output, then completes it.
    Write(OutputWorkload),
}

impl SimulatedWork {
    fn agent(&self) -> &'static str {
        match self {
            SimulatedWork::Complete | SimulatedWork::Hold => COMMAND_AGENT_NAME,
            SimulatedWork::Write(_) => OUTPUT_AGENT_NAME,
        }
    }
}

/// An order of the bench to all daemons. Only the newest one is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DaemonOrder {
    #[default]
    None,
    /// One tool call on each attempt; the number distinguishes one order from the next.
    UseTool(u64),
    /// Complete all running attempts.
    Complete,
}

#[derive(Debug)]
pub(crate) struct SimulatedDaemon {
    hello: Hello,
    work: SimulatedWork,
    orders: watch::Receiver<DaemonOrder>,
    completions: Arc<CompletionRecorder>,
    attempts: HashMap<String, BenchAttempt>,
}

#[derive(Debug)]
struct BenchAttempt {
    attempt: AttemptRef,
    token: Option<LeaseToken>,
    /// control_seq of the last control frame.
    last_control_seq: u64,
    /// control_seq of the completion, once it was sent.
    end_control_seq: Option<u64>,
    is_running: bool,
    output: Option<AttemptOutputWriter>,
}

/// One stream and its connection.
#[derive(Debug)]
pub(crate) struct SimulatedLink {
    outgoing: mpsc::Sender<DaemonFrame>,
    incoming: Streaming<RelayFrame>,
    heartbeat: Duration,
    heartbeats: u64,
    last_acked_heartbeat: u64,
    _relay: BenchClient,
}

/// The relay's reply to Hello.
#[derive(Debug)]
pub(crate) enum HelloReply {
    Welcome(Box<SimulatedLink>),
    /// Goodbye: connect again after this time.
    RetryAfter(Duration),
}

impl SimulatedDaemon {
    pub(crate) fn new(
        name: &str,
        slots: u32,
        work: SimulatedWork,
        orders: watch::Receiver<DaemonOrder>,
        completions: Arc<CompletionRecorder>,
    ) -> Self {
        Self {
            hello: hello_message(name, slots, work.agent()),
            work,
            orders,
            completions,
            attempts: HashMap::new(),
        }
    }

    pub(crate) fn has_attempts(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// Opens a stream on a new connection; Hello lists the attempts that this daemon holds.
    pub(crate) async fn dial(&mut self, relay: BenchClient) -> Result<HelloReply, BenchError> {
        let (outgoing, queue) = mpsc::channel(MAX_OUTGOING_FRAMES);
        self.hello.active = self
            .attempts
            .values()
            .map(BenchAttempt::active_attempt)
            .collect();
        let hello = daemon_frame::Frame::Hello(self.hello.clone());
        drop(outgoing.send(DaemonFrame { frame: Some(hello) }).await);
        let call = relay.link().link(ReceiverStream::new(queue)).await?;
        let mut incoming = call.into_inner();
        let frame = incoming.message().await?.and_then(|frame| frame.frame);
        match frame {
            Some(relay_frame::Frame::Welcome(welcome)) => {
                let heartbeat = Duration::from_millis(welcome.heartbeat_ms.max(100));
                self.apply_welcome(welcome);
                Ok(HelloReply::Welcome(Box::new(SimulatedLink {
                    outgoing,
                    incoming,
                    heartbeat,
                    heartbeats: 0,
                    last_acked_heartbeat: 0,
                    _relay: relay,
                })))
            }
            Some(relay_frame::Frame::Goodbye(goodbye)) => {
                let ms = goodbye.retry_after_ms.unwrap_or(500);
                Ok(HelloReply::RetryAfter(Duration::from_millis(ms)))
            }
            other => Err(BenchError::local(
                "a simulated daemon got no Welcome",
                format!("{other:?}"),
            )),
        }
    }

    fn apply_welcome(&mut self, welcome: Welcome) {
        self.hello.daemon_id = welcome.daemon_id;
        for settled in welcome.settlements {
            match settled.decision {
                Some(settlement::Decision::Keep(_)) => {}
                Some(settlement::Decision::Adopt(_) | settlement::Decision::Kill(_)) | None => {
                    self.attempts.remove(&settled.attempt_id);
                    self.completions.record_revoked();
                }
            }
        }
    }

    /// Handles frames until the stream ends. A broken stream shows up as tasks that do not
    /// complete.
    pub(crate) async fn serve(&mut self, link: &mut SimulatedLink) {
        let mut beat = tokio::time::interval(link.heartbeat);
        let mut orders_open = true;
        loop {
            tokio::select! {
                _ = beat.tick() => self.send_heartbeat(link).await,
                changed = self.orders.changed(), if orders_open => {
                    orders_open = changed.is_ok();
                    self.apply_order(link).await;
                }
                frame = link.incoming.message() => match frame {
                    Ok(Some(frame)) => self.handle_frame(link, frame).await,
                    Ok(None) | Err(_) => return,
                },
            }
        }
    }

    async fn handle_frame(&mut self, link: &mut SimulatedLink, frame: RelayFrame) {
        match frame.frame {
            Some(relay_frame::Frame::Attempt(AttemptCommand {
                r#ref: Some(attempt),
                body: Some(body),
            })) => self.handle_command(link, attempt, body).await,
            Some(relay_frame::Frame::Ack(ack)) => {
                for entry in ack.entries {
                    self.handle_ack(&entry.attempt_id, entry.control_seq, entry.output_offset);
                }
            }
            Some(relay_frame::Frame::HeartbeatAck(ack)) => {
                link.last_acked_heartbeat = ack.seq;
                for result in ack.results {
                    if let Some(renew_result::Result::Revoked(_)) = result.result {
                        self.handle_revocation(&result.attempt_id);
                    }
                }
            }
            // A rejected frame is not a completion, even if a later Ack covers it.
            Some(relay_frame::Frame::Rejected(rejected)) => self.drop_attempt(&rejected.attempt_id),
            Some(_) | None => {}
        }
    }

    async fn handle_command(
        &mut self,
        link: &SimulatedLink,
        attempt: AttemptRef,
        body: attempt_command::Body,
    ) {
        match body {
            attempt_command::Body::Dispatch(dispatch) => {
                self.accept_dispatch(link, attempt, dispatch).await
            }
            attempt_command::Body::LeaseConfirmed(_) => {
                self.start_attempt(link, &attempt.attempt_id).await
            }
            attempt_command::Body::Cancel(_) | attempt_command::Body::Abandon(_) => {
                self.drop_attempt(&attempt.attempt_id);
            }
            attempt_command::Body::Result(CommandResult { .. })
            | attempt_command::Body::PermissionDecision(_)
            | attempt_command::Body::Answer(_) => {}
        }
    }

    async fn accept_dispatch(
        &mut self,
        link: &SimulatedLink,
        attempt: AttemptRef,
        dispatch: Dispatch,
    ) {
        self.completions.record_offered(attempt.attempt_number);
        let id = attempt.attempt_id.clone();
        let mut held = BenchAttempt {
            attempt,
            token: dispatch.token,
            last_control_seq: 0,
            end_control_seq: None,
            is_running: false,
            output: None,
        };
        let accepted = attempt_frame::Body::Accepted(TaskAccepted { position: 0 });
        link.send(held.control_frame(accepted)).await;
        self.attempts.insert(id, held);
    }

    async fn start_attempt(&mut self, link: &SimulatedLink, attempt_id: &str) {
        let Some(held) = self.attempts.get_mut(attempt_id) else {
            return;
        };
        let started = attempt_frame::Body::Started(TaskStarted::default());
        link.send(held.control_frame(started)).await;
        match &self.work {
            SimulatedWork::Complete => link.send(held.completion_frame(0)).await,
            SimulatedWork::Hold if *self.orders.borrow() == DaemonOrder::Complete => {
                link.send(held.completion_frame(0)).await;
            }
            SimulatedWork::Hold => {}
            SimulatedWork::Write(writing) => {
                let end = held.completion_frame(writing.bytes());
                let writer =
                    AttemptOutputWriter::start(writing, &held.attempt, end, &link.outgoing);
                held.output = Some(writer);
            }
        }
    }

    async fn apply_order(&mut self, link: &SimulatedLink) {
        let order = *self.orders.borrow_and_update();
        // Both frames of a tool call carry their time, so that a watcher can measure the delivery.
        for held in self
            .attempts
            .values_mut()
            .filter(|held| held.end_control_seq.is_none())
        {
            match order {
                DaemonOrder::None => {}
                DaemonOrder::UseTool(_) => {
                    let id = self.completions.encode_time(clock::instant());
                    link.send(held.control_frame(tool_event(LifecyclePhase::ToolStarted, &id)))
                        .await;
                    link.send(held.control_frame(tool_event(LifecyclePhase::ToolFinished, &id)))
                        .await;
                }
                DaemonOrder::Complete => link.send(held.completion_frame(0)).await,
            }
        }
    }

    fn handle_ack(&mut self, attempt_id: &str, control_seq: u64, offset: u64) {
        let Some(held) = self.attempts.get_mut(attempt_id) else {
            return;
        };
        if let Some(output) = &held.output {
            output.record_ack(offset);
        }
        if control_seq >= STARTED_CONTROL_SEQ && !held.is_running {
            held.is_running = true;
            self.completions.record_running();
        }
        // A repeated ack counts once, because the first one removes the attempt.
        if held.end_control_seq.is_some_and(|end| end <= control_seq)
            && let Some(held) = self.attempts.remove(attempt_id)
        {
            self.completions.record_completed(&held.attempt.channel_id);
        }
    }

    /// The relay does not renew an attempt whose completion it has received. Its ack is on the way,
    /// so such an attempt does not count as revoked.
    fn handle_revocation(&mut self, attempt_id: &str) {
        if self
            .attempts
            .get(attempt_id)
            .is_some_and(|held| held.end_control_seq.is_none())
        {
            self.drop_attempt(attempt_id);
        }
    }

    fn drop_attempt(&mut self, attempt_id: &str) {
        if self.attempts.remove(attempt_id).is_some() {
            self.completions.record_revoked();
        }
    }

    async fn send_heartbeat(&self, link: &mut SimulatedLink) {
        link.heartbeats += 1;
        let renew: Vec<RenewEntry> = self
            .attempts
            .values()
            .map(BenchAttempt::renew_entry)
            .collect();
        let taken = u32::try_from(renew.len()).unwrap_or(u32::MAX);
        let heartbeat = Heartbeat {
            seq: link.heartbeats,
            heard_seq: Some(link.last_acked_heartbeat),
            free_slots: self.hello.slots.saturating_sub(taken),
            status: DaemonStatus::Online.into(),
            renew,
            ..Heartbeat::default()
        };
        link.send(daemon_frame::Frame::Heartbeat(heartbeat)).await;
    }
}

impl SimulatedLink {
    /// Ignores a closed stream: `serve` notices it.
    async fn send(&self, frame: daemon_frame::Frame) {
        drop(self.outgoing.send(DaemonFrame { frame: Some(frame) }).await);
    }
}

impl BenchAttempt {
    /// Makes the next control frame.
    fn control_frame(&mut self, body: attempt_frame::Body) -> daemon_frame::Frame {
        self.last_control_seq += 1;
        daemon_frame::Frame::Attempt(AttemptFrame {
            r#ref: Some(self.attempt.clone()),
            control_seq: self.last_control_seq,
            within_lease: true,
            body: Some(body),
            ..AttemptFrame::default()
        })
    }

    fn completion_frame(&mut self, final_offset: u64) -> daemon_frame::Frame {
        let receipt = TerminationReceipt {
            exit_code: Some(0),
            group_empty: true,
            prompt_written: Some(true),
            process_started: true,
            ..TerminationReceipt::default()
        };
        let frame = self.control_frame(attempt_frame::Body::Complete(TaskComplete {
            final_offset,
            receipt: Some(receipt),
            ..TaskComplete::default()
        }));
        self.end_control_seq = Some(self.last_control_seq);
        frame
    }

    fn renew_entry(&self) -> RenewEntry {
        RenewEntry {
            attempt_id: self.attempt.attempt_id.clone(),
            token: self.token.clone(),
            phase: LifecyclePhase::Accepted.into(),
        }
    }

    fn active_attempt(&self) -> ActiveAttempt {
        ActiveAttempt {
            r#ref: Some(self.attempt.clone()),
            token: self.token.clone(),
            state: ActiveState::Running.into(),
            last_control_seq: self.last_control_seq,
            phase: LifecyclePhase::Started.into(),
            ..ActiveAttempt::default()
        }
    }
}

fn tool_event(phase: LifecyclePhase, id: &str) -> attempt_frame::Body {
    attempt_frame::Body::Lifecycle(TaskLifecycle {
        phase: phase.into(),
        tool_call_id: id.to_owned(),
        tool_name: COMMAND_AGENT_NAME.to_owned(),
        ..TaskLifecycle::default()
    })
}

fn hello_message(name: &str, slots: u32, agent: &str) -> Hello {
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
