//! From a bare stream to a session: Hello in time, an id that belongs to the credential, a place in the dispatcher.

use std::time::Duration;

use baton_core::id::{DaemonId, SessionId};
use baton_core::input::FrameRef;
use baton_core::record::DaemonRecord;
use baton_proto::v1;
use baton_proto::v1::daemon_frame::Frame;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Streaming;
use uuid::Uuid;

use super::admission::{Caller, Entry};
use super::fault::LinkFault;
use super::held::Held;
use super::{OnWire, Session, Shell, hello, unknown};
use crate::auth::Principal;
use crate::dispatcher::{FromSession, SESSION_QUEUE};
use crate::reader::Hidden;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const UNREADABLE_RETRY_MS: u64 = 2_000;

/// Why a stream became no session.
pub(super) enum Turned {
    Away(LinkFault),
    /// Not now: the last word, which says when to come back.
    Later(Box<v1::RelayFrame>),
    /// By itself, before it was its turn.
    Left,
}

impl From<LinkFault> for Turned {
    fn from(fault: LinkFault) -> Self {
        Self::Away(fault)
    }
}

pub(super) async fn greet(
    principal: Principal,
    mut inbound: Streaming<v1::DaemonFrame>,
    shell: Shell,
    wire: mpsc::Sender<OnWire>,
) -> Result<Session, Turned> {
    // Before Hello is read: the core tells by it which of a daemon's streams was opened last.
    let id = SessionId(Uuid::now_v7());
    let sent = first(&mut inbound).await?;
    unknown::count_in_hello(&shell.telemetry, &sent);
    let daemon = daemon_id(&sent, &principal, &shell).await?;
    let mut hello = hello::decode(sent, daemon, &principal)?;
    let caller = Caller::with(!hello.active.is_empty());
    tokio::select! {
        turn = await_turn(caller, &shell) => turn?,
        // It dialed again meanwhile, or gave up: its turn is not worth a write.
        () = wire.closed() => return Err(Turned::Left),
    }
    let reader = shell.reader.clone();
    // Thousands of finished attempts may be listed: the disk is read here and not by the dispatcher.
    let hello = tokio::task::spawn_blocking(move || {
        for active in &mut hello.active {
            active.looked = reader.looked_within(&hello.scope, active.re.task);
        }
        hello
    })
    .await
    .map_err(|_| LinkFault::Stopping)?;
    let listed: Vec<FrameRef> = hello.active.iter().map(|active| active.re).collect();
    let (messages_in, messages) = mpsc::channel(SESSION_QUEUE);
    let opened = FromSession::Opened {
        session: id,
        hello: Box::new(hello),
        messages: messages_in,
    };
    shell
        .dispatcher
        .hear(opened)
        .await
        .map_err(|_| LinkFault::Stopping)?;
    let acks = shell.output.ack_feed();
    let window = shell.dispatcher.window();
    Ok(Session {
        id,
        daemon,
        principal,
        shell,
        inbound,
        messages,
        wire,
        pending: std::collections::VecDeque::new(),
        stuck_since: None,
        next_look: None,
        held: Held::default(),
        window,
        listed,
        early: Some(Vec::new()),
        acks,
        settling: JoinSet::new(),
    })
}

/// Waits until the dispatcher may be given one more Hello.
async fn await_turn(caller: Caller, shell: &Shell) -> Result<(), Turned> {
    match shell.admission.enter(caller, shell.clock.now().at) {
        Entry::At(turn) => tokio::select! {
            () = shell.clock.sleep_until(turn) => Ok(()),
            () = shell.stop.cancelled() => Err(LinkFault::Stopping.into()),
        },
        Entry::Later(ms) => {
            tracing::debug!(?caller, ms, "a daemon was told to come back later");
            let words = "many daemons connect at once; come back a little later";
            Err(later(shell, words, ms))
        }
    }
}

fn later(shell: &Shell, words: &str, ms: u64) -> Turned {
    let goodbye = shell.stamp.goodbye(v1::GoodbyeCode::Busy, words, Some(ms));
    Turned::Later(Box::new(goodbye))
}

async fn first(inbound: &mut Streaming<v1::DaemonFrame>) -> Result<v1::Hello, LinkFault> {
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
    shell: &Shell,
) -> Result<DaemonId, Turned> {
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
        Err(Hidden::Record) => Ok(claimed),
        Err(Hidden::Disk) => Err(later(
            shell,
            "the relay cannot read what it knows of this daemon; come back a little later",
            UNREADABLE_RETRY_MS,
        )),
    }
}

fn is_bound_to(known: &DaemonRecord, principal: &Principal, shell: &Shell) -> bool {
    known.token == principal.token || !usable(shell, known.token)
}

fn usable(shell: &Shell, token: baton_core::id::TokenId) -> bool {
    let wall = shell.clock.now().wall;
    shell
        .tokens
        .get(token)
        .is_some_and(|record| record.is_usable(wall))
}
