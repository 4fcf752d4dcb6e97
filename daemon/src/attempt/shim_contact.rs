//! Finds the shim of an attempt that an earlier daemon started. A shim that does not answer may
//! be stuck with a running child: it is tried again until its lease ends, and then all
//! processes of the attempt are killed.

use std::io;
use std::path::Path;
use std::time::Duration;

use baton_daemon_core::lease_clock::LeaseClock;
use baton_proto::worker::Presence;
use tracing::warn;

use super::{AttemptEvent, AttemptTask};
use crate::clock::BootTime;
use crate::shim::client::{self, HandshakeError, ShimConnection};

/// Between two tries.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The time limit of one try.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A shim that has answered.
#[derive(Debug)]
pub(crate) struct ReachedShim {
    pub(crate) connection: ShimConnection,
    pub(crate) presence: Presence,
}

/// The result of one try.
#[derive(Debug)]
pub(crate) enum ContactOutcome {
    Reached(Box<ReachedShim>),
    /// Nothing listens on the socket: the shim is gone.
    Gone,
    /// It does not answer, or not in a way that this daemon understands.
    Silent,
}

impl ReachedShim {
    /// The lease that the shim has.
    pub(crate) fn lease(&self) -> Option<LeaseClock> {
        let lease = self.presence.lease.as_ref()?;
        Some(LeaseClock::from_stored(
            BootTime::from_millis(lease.limit_ms),
            Duration::from_millis(lease.granted_ms),
        ))
    }

    pub(crate) fn reached_event(&self) -> AttemptEvent {
        AttemptEvent::ShimReached {
            token: self.presence.token.clone(),
            lease: self.lease(),
        }
    }
}

/// Tries once to reach the shim of this directory. The caller sets the time limit and treats a
/// missing answer as `Silent`.
pub(crate) async fn contact_shim(
    directory: &Path,
    attempt_id: &str,
    instance_id: &str,
) -> ContactOutcome {
    let mut connection = match client::connect_to_shim(directory).await {
        Ok(connection) => connection,
        Err(error) if is_not_listening(&error) => return ContactOutcome::Gone,
        Err(error) => {
            warn!(attempt_id, error = %error, "cannot connect to the shim");
            return ContactOutcome::Silent;
        }
    };
    match connection.handshake(instance_id).await {
        // Before its launch a shim has no attempt id, and without its first connection it
        // starts nothing.
        Ok(presence) if presence.attempt_id != attempt_id => ContactOutcome::Silent,
        Ok(presence) => ContactOutcome::Reached(Box::new(ReachedShim {
            connection,
            presence,
        })),
        // It was exiting when the connection was made.
        Err(HandshakeError::Closed) => ContactOutcome::Gone,
        Err(error) => {
            warn!(attempt_id, error = %error, "the handshake with the shim failed");
            ContactOutcome::Silent
        }
    }
}

fn is_not_listening(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

impl AttemptTask {
    /// Tries until the shim answers; `None` when it is gone, its lease has ended, or the time
    /// of a stop order is over.
    pub(super) async fn find_shim(&mut self) -> Option<ReachedShim> {
        loop {
            let now = self.environment.clock.now();
            let until = self.search_deadline();
            if now >= until {
                warn!(attempt_id = %self.id, "the shim did not answer before its lease ended");
                return None;
            }
            let (directory, id) = (self.directory.clone(), self.id.clone());
            let instance_id = self.environment.instance_id.clone();
            let again_at = now.after(RETRY_INTERVAL);
            let answer = async {
                tokio::time::timeout(ANSWER_TIMEOUT, contact_shim(&directory, &id, &instance_id))
                    .await
            };
            tokio::select! {
                contacted = answer => match contacted.unwrap_or(ContactOutcome::Silent) {
                    ContactOutcome::Reached(found) => return Some(*found),
                    ContactOutcome::Gone => return None,
                    ContactOutcome::Silent => self.wait_for_orders(again_at.min(until)).await,
                },
                () = self.environment.clock.sleep_until(until) => {}
            }
        }
    }

    /// Without a known lease there is no time to search.
    fn search_deadline(&mut self) -> BootTime {
        let orders = self.control.apply_orders();
        let lease = orders.lease.map(|lease| lease.kill_at());
        let ordered = orders.stop.map(|stop| stop.kill_at);
        let limit = lease.unwrap_or_else(|| self.environment.clock.now());
        ordered.map_or(limit, |ordered| ordered.min(limit))
    }

    pub(super) async fn wait_for_orders(&mut self, at: BootTime) {
        tokio::select! {
            () = self.environment.clock.sleep_until(at) => {}
            () = self.control.stop_or_lease_changed() => {}
        }
    }
}
