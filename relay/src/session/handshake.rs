//! From a bare stream to a session: Hello in time, an id that belongs to the credential, a place in the dispatcher.

use std::time::Duration;

use baton_core::ids::{DaemonId, SessionId};
use baton_core::io::session_input::FrameRef;
use baton_core::record::DaemonRecord;
use baton_proto::v1;
use baton_proto::v1::daemon_frame::Frame;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Streaming;
use uuid::Uuid;

use super::fault::LinkFault;
use super::hello_admission::{AdmissionDecision, HelloClass};
use super::session_attempts::SessionAttempts;
use super::{DaemonSession, QueuedFrame, SessionContext, hello, unknown_values};
use crate::auth::Principal;
use crate::dispatcher::{HolderMessage, SESSION_QUEUE};
use crate::reader::UnreadableCause;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const UNREADABLE_RETRY_MS: u64 = 2_000;

/// Why a stream became no session.
pub(super) enum HandshakeFailure {
    Refused(LinkFault),
    /// Not now: the last word, which says when to come back.
    RetryLater(Box<v1::RelayFrame>),
    /// By itself, before it was its turn.
    PeerLeft,
}

impl From<LinkFault> for HandshakeFailure {
    fn from(fault: LinkFault) -> Self {
        Self::Refused(fault)
    }
}

pub(super) async fn perform_handshake(
    principal: Principal,
    mut inbound: Streaming<v1::DaemonFrame>,
    shell: SessionContext,
    wire: mpsc::Sender<QueuedFrame>,
) -> Result<DaemonSession, HandshakeFailure> {
    // Before Hello is read: the core tells by it which of a daemon's streams was opened last.
    let id = SessionId(Uuid::now_v7());
    let sent = read_hello(&mut inbound).await?;
    unknown_values::count_in_hello(&shell.telemetry, &sent);
    let daemon = daemon_id(&sent, &principal, &shell).await?;
    let mut hello = hello::decode_hello(sent, daemon, &principal)?;
    let caller = HelloClass::from_holding(!hello.active.is_empty());
    tokio::select! {
        turn = await_turn(caller, &shell) => turn?,
        // It dialed again meanwhile, or gave up: its turn is not worth a write.
        () = wire.closed() => return Err(HandshakeFailure::PeerLeft),
    }
    let reader = shell.reader.clone();
    // Thousands of finished attempts may be listed: the disk is read here and not by the dispatcher.
    let hello = tokio::task::spawn_blocking(move || {
        for active in &mut hello.active {
            active.lookup = reader.find_task_within(&hello.scope, active.frame_ref.task);
        }
        hello
    })
    .await
    .map_err(|_| LinkFault::Stopping)?;
    let listed: Vec<FrameRef> = hello.active.iter().map(|active| active.frame_ref).collect();
    let (messages_in, messages) = mpsc::channel(SESSION_QUEUE);
    let opened = HolderMessage::Opened {
        session: id,
        hello: Box::new(hello),
        messages: messages_in,
    };
    shell
        .dispatcher
        .send_to_loop(opened)
        .await
        .map_err(|_| LinkFault::Stopping)?;
    let acks = shell.output.ack_feed();
    let window = shell.dispatcher.frame_window();
    Ok(DaemonSession {
        id,
        daemon,
        principal,
        context: shell,
        inbound,
        messages,
        wire,
        pending: std::collections::VecDeque::new(),
        stalled_since: None,
        next_disk_check: None,
        attempts: SessionAttempts::default(),
        window,
        listed_refs: listed,
        before_welcome: Some(Vec::new()),
        acks,
        waiting_terminal: JoinSet::new(),
    })
}

/// Waits until the dispatcher may be given one more Hello.
async fn await_turn(caller: HelloClass, shell: &SessionContext) -> Result<(), HandshakeFailure> {
    match shell.admission.decide(caller, shell.clock.now().monotonic) {
        AdmissionDecision::AdmitAt(turn) => tokio::select! {
            () = shell.clock.sleep_until(turn) => Ok(()),
            () = shell.stop.cancelled() => Err(LinkFault::Stopping.into()),
        },
        AdmissionDecision::RetryAfter(ms) => {
            tracing::debug!(?caller, ms, "a daemon was told to come back later");
            let words = "many daemons connect at once; come back a little later";
            Err(retry_later(shell, words, ms))
        }
    }
}

fn retry_later(shell: &SessionContext, words: &str, ms: u64) -> HandshakeFailure {
    let goodbye = shell
        .encoder
        .goodbye(v1::GoodbyeCode::Busy, words, Some(ms));
    HandshakeFailure::RetryLater(Box::new(goodbye))
}

async fn read_hello(inbound: &mut Streaming<v1::DaemonFrame>) -> Result<v1::Hello, LinkFault> {
    let frame = tokio::time::timeout(HELLO_TIMEOUT, inbound.message())
        .await
        .map_err(|_| LinkFault::HelloTimeout(HELLO_TIMEOUT.as_secs()))?;
    match frame {
        Ok(Some(v1::DaemonFrame {
            frame: Some(Frame::Hello(hello)),
        })) => Ok(hello),
        Ok(Some(_)) => Err(LinkFault::HelloNotFirst),
        Ok(None) => Err(LinkFault::EndedBeforeHello),
        // Or the connection broke, and then nobody hears this.
        Err(_) => Err(LinkFault::Undecodable),
    }
}

/// A daemon keeps the id it was given as long as it comes with the same credential, or that one can no longer be
/// used (it was replaced). An id that this relay does not know is replaced by a new one, and all that the daemon holds is killed
/// then: so not knowing is told from not being able to read.
async fn daemon_id(
    sent: &v1::Hello,
    principal: &Principal,
    shell: &SessionContext,
) -> Result<DaemonId, HandshakeFailure> {
    let fresh = || DaemonId(Uuid::now_v7());
    let Some(claimed) = hello::claimed_id(sent)? else {
        return Ok(fresh());
    };
    let (reader, scope) = (shell.reader.clone(), principal.scope.clone());
    let known = tokio::task::spawn_blocking(move || reader.daemon(&scope, claimed));
    match known.await.map_err(|_| LinkFault::Stopping)? {
        Ok(None) => Ok(fresh()),
        Ok(Some(known)) if is_bound_to(&known, principal, shell) => Ok(claimed),
        Ok(Some(_)) => Err(LinkFault::ForeignDaemon.into()),
        // Whose it was, nobody knows any more; its key says that it was of this scope, and Hello writes it anew.
        Err(UnreadableCause::Record) => Ok(claimed),
        Err(UnreadableCause::Disk) => Err(retry_later(
            shell,
            "the relay cannot read what it knows of this daemon; come back a little later",
            UNREADABLE_RETRY_MS,
        )),
    }
}

fn is_bound_to(known: &DaemonRecord, principal: &Principal, shell: &SessionContext) -> bool {
    known.token == principal.token || !is_token_usable(shell, known.token)
}

fn is_token_usable(shell: &SessionContext, token: baton_core::ids::TokenId) -> bool {
    let wall = shell.clock.now().wall;
    shell
        .token_table
        .get(token)
        .is_some_and(|record| record.is_usable(wall))
}
