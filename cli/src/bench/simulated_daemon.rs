//! A daemon without processes: it speaks the real stream, takes every offer, and completes it as soon as its lease is
//! confirmed. Counts a completion only when the relay has said that it is durable.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use baton_proto::v1::{
    AgentInfo, AgentKind, AttemptCommand, AttemptFrame, AttemptRef, CommandResult, DaemonFrame,
    DaemonStatus, Heartbeat, Hello, LeaseToken, LifecyclePhase, RelayFrame, RenewEntry,
    TaskAccepted, TaskComplete, TaskStarted, TerminationReceipt, attempt_command, attempt_frame,
    command_result, daemon_frame, relay_frame,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::completions::Completions;
use crate::client::Relay;
use crate::errors::CliError;

pub(crate) const AGENT: &str = "bench";
const COMPLETE_SEQ: u64 = 3;
/// Full policy: the daemon waits, and the relay's flow control reaches it that way.
const OUTGOING_FRAMES: usize = 1024;

#[derive(Debug)]
pub(crate) struct SimulatedDaemon {
    slots: u32,
    outgoing: mpsc::Sender<DaemonFrame>,
    incoming: Streaming<RelayFrame>,
    heartbeat: Duration,
    held: HashMap<String, Held>,
    completions: Arc<Completions>,
    heartbeats: u64,
}

#[derive(Debug)]
struct Held {
    attempt: AttemptRef,
    token: Option<LeaseToken>,
}

impl SimulatedDaemon {
    /// Connects and introduces itself.
    pub(crate) async fn start(
        relay: &Relay,
        name: String,
        slots: u32,
        completions: Arc<Completions>,
    ) -> Result<Self, CliError> {
        let (outgoing, queue) = mpsc::channel(OUTGOING_FRAMES);
        let hello = daemon_frame::Frame::Hello(hello(&name, slots));
        drop(outgoing.send(DaemonFrame { frame: Some(hello) }).await);
        let mut incoming = relay
            .link()
            .link(ReceiverStream::new(queue))
            .await?
            .into_inner();
        let heartbeat = welcome(&mut incoming).await?;
        Ok(Self {
            slots,
            outgoing,
            incoming,
            heartbeat,
            held: HashMap::new(),
            completions,
            heartbeats: 0,
        })
    }

    /// Until the relay closes the stream. A broken stream shows as work that does not complete.
    pub(crate) async fn serve(mut self) {
        let mut beat = tokio::time::interval(self.heartbeat);
        loop {
            tokio::select! {
                _ = beat.tick() => self.beat().await,
                frame = self.incoming.message() => match frame {
                    Ok(Some(frame)) => self.frame(frame).await,
                    Ok(None) | Err(_) => return,
                },
            }
        }
    }

    async fn frame(&mut self, frame: RelayFrame) {
        match frame.frame {
            Some(relay_frame::Frame::Attempt(AttemptCommand {
                r#ref: Some(attempt),
                body: Some(body),
            })) => self.command(attempt, body).await,
            Some(relay_frame::Frame::Ack(ack)) => {
                for entry in ack.entries {
                    if entry.control_seq >= COMPLETE_SEQ {
                        self.durable(&entry.attempt_id);
                    }
                }
            }
            // A refused frame is not a completion, however it is acknowledged later.
            Some(relay_frame::Frame::Rejected(rejected)) => {
                self.held.remove(&rejected.attempt_id);
            }
            Some(_) | None => {}
        }
    }

    async fn command(&mut self, attempt: AttemptRef, body: attempt_command::Body) {
        match body {
            attempt_command::Body::Dispatch(dispatch) => {
                let held = Held {
                    attempt: attempt.clone(),
                    token: dispatch.token,
                };
                self.held.insert(attempt.attempt_id.clone(), held);
                let accepted = attempt_frame::Body::Accepted(TaskAccepted { position: 0 });
                self.attempt(attempt, 1, accepted).await;
            }
            attempt_command::Body::LeaseConfirmed(_) => {
                let started = attempt_frame::Body::Started(TaskStarted::default());
                self.attempt(attempt.clone(), 2, started).await;
                self.attempt(attempt, COMPLETE_SEQ, complete()).await;
            }
            attempt_command::Body::Result(CommandResult {
                result: Some(command_result::Result::Ok(_)),
                control_seq: COMPLETE_SEQ,
            }) => self.durable(&attempt.attempt_id),
            attempt_command::Body::Result(_)
            | attempt_command::Body::Cancel(_)
            | attempt_command::Body::Abandon(_) => {
                self.held.remove(&attempt.attempt_id);
            }
            attempt_command::Body::PermissionDecision(_) | attempt_command::Body::Answer(_) => {}
        }
    }

    /// The relay has the completion on its disk. Said twice, it counts once.
    fn durable(&mut self, attempt_id: &str) {
        if let Some(held) = self.held.remove(attempt_id) {
            self.completions.record(&held.attempt.channel_id);
        }
    }

    async fn attempt(&self, attempt: AttemptRef, control_seq: u64, body: attempt_frame::Body) {
        let frame = AttemptFrame {
            r#ref: Some(attempt),
            control_seq,
            within_lease: true,
            body: Some(body),
            ..AttemptFrame::default()
        };
        self.send(daemon_frame::Frame::Attempt(frame)).await;
    }

    async fn beat(&mut self) {
        self.heartbeats += 1;
        let renew = self.held.values().map(|held| RenewEntry {
            attempt_id: held.attempt.attempt_id.clone(),
            token: held.token.clone(),
            phase: LifecyclePhase::Accepted.into(),
        });
        let renew: Vec<RenewEntry> = renew.collect();
        let taken = u32::try_from(renew.len()).unwrap_or(u32::MAX);
        let heartbeat = Heartbeat {
            seq: self.heartbeats,
            free_slots: self.slots.saturating_sub(taken),
            status: DaemonStatus::Online.into(),
            renew,
            ..Heartbeat::default()
        };
        self.send(daemon_frame::Frame::Heartbeat(heartbeat)).await;
    }

    /// A closed stream shows in `serve`, so a frame that nobody takes is no error here.
    async fn send(&self, frame: daemon_frame::Frame) {
        drop(self.outgoing.send(DaemonFrame { frame: Some(frame) }).await);
    }
}

fn hello(name: &str, slots: u32) -> Hello {
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
            name: AGENT.to_owned(),
            kind: AgentKind::Command.into(),
            ..AgentInfo::default()
        }],
        ..Hello::default()
    }
}

fn complete() -> attempt_frame::Body {
    let receipt = TerminationReceipt {
        exit_code: Some(0),
        group_empty: true,
        prompt_written: Some(true),
        process_started: true,
        ..TerminationReceipt::default()
    };
    attempt_frame::Body::Complete(TaskComplete {
        receipt: Some(receipt),
        ..TaskComplete::default()
    })
}

async fn welcome(incoming: &mut Streaming<RelayFrame>) -> Result<Duration, CliError> {
    let frame = incoming.message().await?.and_then(|frame| frame.frame);
    match frame {
        Some(relay_frame::Frame::Welcome(welcome)) => {
            Ok(Duration::from_millis(welcome.heartbeat_ms.max(100)))
        }
        other => Err(CliError::local(
            "a simulated daemon was not welcomed",
            format!("{other:?}"),
        )),
    }
}
