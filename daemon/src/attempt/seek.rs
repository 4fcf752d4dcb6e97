//! Finding the shim of an attempt that another daemon started. One that does not answer may be stuck with a child
//! that runs: it is tried again until its lease is over, and then everything of the attempt is killed.

use std::io;
use std::path::Path;
use std::time::Duration;

use baton_daemon_core::lease::LeaseClock;
use baton_proto::worker::Presence;
use tracing::warn;

use super::{Attempt, AttemptEvent};
use crate::clock::Moment;
use crate::shim::client::{self, Connection, GreetError};

/// Between two tries.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(1);
/// For one try.
const ANSWER: Duration = Duration::from_secs(2);

/// A shim that has answered.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) connection: Connection,
    pub(crate) presence: Presence,
}

/// What came of a try.
#[derive(Debug)]
pub(crate) enum Contacted {
    Found(Box<Found>),
    /// Nobody listens: the shim is gone.
    Gone,
    /// It does not answer, or not in a way that this daemon understands.
    Silent,
}

impl Found {
    /// The lease that the shim counts.
    pub(crate) fn lease(&self) -> Option<LeaseClock> {
        let lease = self.presence.lease.as_ref()?;
        Some(LeaseClock::adopted(
            Moment::from_millis(lease.limit_ms),
            Duration::from_millis(lease.granted_ms),
        ))
    }

    pub(crate) fn news(&self) -> AttemptEvent {
        AttemptEvent::Reached {
            token: self.presence.token.clone(),
            lease: self.lease(),
        }
    }
}

/// One try to reach the shim of this directory. Whoever calls sets the limit: without an answer it is silent.
pub(crate) async fn contact(directory: &Path, attempt_id: &str, instance_id: &str) -> Contacted {
    let mut connection = match client::connect(directory).await {
        Ok(connection) => connection,
        Err(error) if is_nobody(&error) => return Contacted::Gone,
        Err(error) => {
            warn!(attempt_id, error = %error, "cannot connect to the shim");
            return Contacted::Silent;
        }
    };
    match connection.greet(instance_id).await {
        // Before its launch it knows of no attempt, and without its first connection it starts nothing.
        Ok(presence) if presence.attempt_id != attempt_id => Contacted::Silent,
        Ok(presence) => Contacted::Found(Box::new(Found {
            connection,
            presence,
        })),
        // It was at its end when the connection came.
        Err(GreetError::Closed) => Contacted::Gone,
        Err(error) => {
            warn!(attempt_id, error = %error, "the shim cannot be spoken to");
            Contacted::Silent
        }
    }
}

fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

impl Attempt {
    /// Tries until the shim answers; `None` when it is gone, its lease is over, or the time of an order to stop is.
    pub(super) async fn seek(&mut self) -> Option<Found> {
        loop {
            let now = self.workshop.clock.now();
            let until = self.seek_until();
            if now >= until {
                warn!(attempt_id = %self.id, "the shim did not answer before its lease ended");
                return None;
            }
            let (directory, id) = (self.directory.clone(), self.id.clone());
            let instance_id = self.workshop.instance_id.clone();
            let again_at = now.after(TRY_AGAIN);
            let answer = async {
                tokio::time::timeout(ANSWER, contact(&directory, &id, &instance_id)).await
            };
            tokio::select! {
                contacted = answer => match contacted.unwrap_or(Contacted::Silent) {
                    Contacted::Found(found) => return Some(*found),
                    Contacted::Gone => return None,
                    Contacted::Silent => self.wait_for_orders(again_at.min(until)).await,
                },
                () = self.workshop.clock.sleep_until(until) => {}
            }
        }
    }

    /// Without a known limit there is no time to give.
    fn seek_until(&mut self) -> Moment {
        let lease = self
            .lines
            .lease
            .borrow_and_update()
            .map(|lease| lease.kill_at());
        let ordered = self.lines.stop.borrow_and_update().map(|stop| stop.kill_at);
        let limit = lease.unwrap_or_else(|| self.workshop.clock.now());
        ordered.map_or(limit, |ordered| ordered.min(limit))
    }

    pub(super) async fn wait_for_orders(&mut self, at: Moment) {
        tokio::select! {
            () = self.workshop.clock.sleep_until(at) => {}
            Ok(()) = self.lines.stop.changed() => {}
            Ok(()) = self.lines.lease.changed() => {}
        }
    }
}
