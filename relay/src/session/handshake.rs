//! The handshake of a daemon stream: a Hello in time, an id that belongs to the credential, and
//! registration with the dispatcher.

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
/// When a daemon may reconnect after its record could not be read from the disk.
const UNREADABLE_RETRY_MS: u64 = 2_000;

/// Why a stream did not become a session.
pub(super) enum HandshakeFailure {
    Refused(LinkFault),
    /// Refused for now. The frame is a Goodbye with the time to reconnect.
    RetryLater(Box<v1::RelayFrame>),
    /// The daemon disconnected before its Hello was admitted.
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
    context: SessionContext,
    wire: mpsc::Sender<QueuedFrame>,
) -> Result<DaemonSession, HandshakeFailure> {
    // Created before Hello is read: the core compares these ids to find the newest stream of a
    // daemon.
    let id = SessionId(Uuid::now_v7());
    let sent = read_hello(&mut inbound).await?;
    unknown_values::count_in_hello(&context.telemetry, &sent);
    let daemon = daemon_id(&sent, &principal, &context).await?;
    let mut hello = hello::decode_hello(sent, daemon, &principal)?;
    let caller = HelloClass::from_holding(!hello.active.is_empty());
    tokio::select! {
        turn = await_turn(caller, &context) => turn?,
        // The daemon reconnected or gave up while it waited. Admitting it would waste a write.
        () = wire.closed() => return Err(HandshakeFailure::PeerLeft),
    }
    let reader = context.reader.clone();
    // Hello may list thousands of finished attempts, so the disk is read here and not by the
    // dispatcher.
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
    context
        .dispatcher
        .send_to_loop(opened)
        .await
        .map_err(|_| LinkFault::Stopping)?;
    let acks = context.output.ack_feed();
    let window = context.dispatcher.frame_window();
    Ok(DaemonSession {
        id,
        daemon,
        principal,
        context,
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

/// Waits until the dispatcher may receive one more Hello.
async fn await_turn(caller: HelloClass, context: &SessionContext) -> Result<(), HandshakeFailure> {
    match context
        .admission
        .decide(caller, context.clock.now().monotonic)
    {
        AdmissionDecision::AdmitAt(turn) => tokio::select! {
            () = context.clock.sleep_until(turn) => Ok(()),
            () = context.stop.cancelled() => Err(LinkFault::Stopping.into()),
        },
        AdmissionDecision::RetryAfter(ms) => {
            tracing::debug!(
                ?caller,
                ms,
                "hello postponed; the daemon must reconnect later"
            );
            let message = "many daemons are connecting at once; reconnect after retry_after_ms";
            Err(retry_later(context, message, ms))
        }
    }
}

fn retry_later(context: &SessionContext, message: &str, ms: u64) -> HandshakeFailure {
    let goodbye = context
        .encoder
        .goodbye(v1::GoodbyeCode::Busy, message, Some(ms));
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
        // A broken connection gives the same error; the status is lost then, which is harmless.
        Err(_) => Err(LinkFault::Undecodable),
    }
}

/// Decides the id of the daemon. A daemon keeps its id if it connects with the same credential,
/// or if that credential is no longer usable (it was replaced). An unknown id is replaced by a
/// new one, and all attempts of the daemon are killed then. Therefore an unknown id is
/// distinguished from one whose record cannot be read.
async fn daemon_id(
    sent: &v1::Hello,
    principal: &Principal,
    context: &SessionContext,
) -> Result<DaemonId, HandshakeFailure> {
    let fresh = || DaemonId(Uuid::now_v7());
    let Some(claimed) = hello::claimed_id(sent)? else {
        return Ok(fresh());
    };
    let (reader, scope) = (context.reader.clone(), principal.scope.clone());
    let known = tokio::task::spawn_blocking(move || reader.daemon(&scope, claimed));
    match known.await.map_err(|_| LinkFault::Stopping)? {
        Ok(None) => Ok(fresh()),
        Ok(Some(known)) if is_bound_to(&known, principal, context) => Ok(claimed),
        Ok(Some(_)) => Err(LinkFault::ForeignDaemon.into()),
        // The stored credential is lost. The key shows that the id belongs to this scope, and
        // Hello rewrites the record.
        Err(UnreadableCause::Record) => Ok(claimed),
        Err(UnreadableCause::Disk) => Err(retry_later(
            context,
            "the relay cannot read its record of this daemon; reconnect after retry_after_ms",
            UNREADABLE_RETRY_MS,
        )),
    }
}

fn is_bound_to(known: &DaemonRecord, principal: &Principal, context: &SessionContext) -> bool {
    known.token == principal.token || !is_token_usable(context, known.token)
}

fn is_token_usable(context: &SessionContext, token: baton_core::ids::TokenId) -> bool {
    let wall = context.clock.now().wall;
    context
        .token_table
        .get(token)
        .is_some_and(|record| record.is_usable(wall))
}
