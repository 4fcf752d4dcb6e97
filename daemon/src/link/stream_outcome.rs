//! How a stream to the relay ended, and what that means for the next try.

use std::time::Duration;

use baton_proto::codes::refusals;
use baton_proto::v1::{Goodbye, GoodbyeCode};
use tonic::{Code, Status};
use tracing::info;

/// How one stream, or one try to open it, ended.
#[derive(Debug)]
pub(super) enum StreamOutcome {
    /// The relay had sent Welcome.
    Lost(ReconnectPause),
    NotReached(ReconnectPause),
    /// Another instance uses this daemon's id now.
    Superseded(ReconnectPause),
    /// The relay does not accept the token, or no longer.
    Refused {
        message: String,
        welcomed: bool,
    },
    UnsupportedVersion {
        message: String,
    },
    /// The supervisor is gone.
    SupervisorGone,
}

/// Why there is no stream for a while, and how long the relay asks to wait at least.
#[derive(Debug)]
pub(super) struct ReconnectPause {
    pub(super) why: String,
    pub(super) retry_after: Option<Duration>,
}

impl ReconnectPause {
    fn with_reason(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            retry_after: None,
        }
    }
}

pub(super) fn lost(why: &str) -> StreamOutcome {
    StreamOutcome::Lost(ReconnectPause::with_reason(why))
}

pub(super) fn not_reached(why: impl Into<String>) -> StreamOutcome {
    StreamOutcome::NotReached(ReconnectPause::with_reason(why))
}

fn stream_ended(welcomed: bool, pause: ReconnectPause) -> StreamOutcome {
    if welcomed {
        StreamOutcome::Lost(pause)
    } else {
        StreamOutcome::NotReached(pause)
    }
}

pub(super) fn on_status(status: &Status, welcomed: bool) -> StreamOutcome {
    info!(code = ?status.code(), message = status.message(), "the stream ended");
    let message = status.message().to_owned();
    let detail = baton_proto::unpack_error_detail(status).unwrap_or_default();
    if detail.code == refusals::VERSION_UNSUPPORTED {
        return StreamOutcome::UnsupportedVersion { message };
    }
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            StreamOutcome::Refused { message, welcomed }
        }
        _ => {
            let pause = ReconnectPause {
                why: format!("the stream ended: {message}"),
                retry_after: detail.retry_after_ms.map(Duration::from_millis),
            };
            stream_ended(welcomed, pause)
        }
    }
}

pub(super) fn on_goodbye(goodbye: &Goodbye, welcomed: bool) -> StreamOutcome {
    info!(code = ?goodbye.code(), message = %goodbye.message, "the relay sent goodbye");
    let pause = ReconnectPause {
        why: format!("the relay sent goodbye: {}", goodbye.message),
        retry_after: goodbye.retry_after_ms.map(Duration::from_millis),
    };
    match goodbye.code() {
        GoodbyeCode::AuthExpired => StreamOutcome::Refused {
            message: goodbye.message.clone(),
            welcomed,
        },
        GoodbyeCode::VersionUnsupported => StreamOutcome::UnsupportedVersion {
            message: goodbye.message.clone(),
        },
        GoodbyeCode::Superseded => StreamOutcome::Superseded(pause),
        GoodbyeCode::Unspecified
        | GoodbyeCode::Shutdown
        | GoodbyeCode::Draining
        | GoodbyeCode::ProtocolError
        | GoodbyeCode::IdleTimeout
        | GoodbyeCode::Busy
        | GoodbyeCode::Disconnected
        | GoodbyeCode::TooManyDaemons
        | GoodbyeCode::Restarting => stream_ended(welcomed, pause),
    }
}

/// A hint for known causes.
pub(super) fn error_hint(error: &str) -> &'static str {
    if error.contains("certificate") {
        "; check that --ca is the authority of the relay's certificate and --relay the host in it"
    } else {
        ""
    }
}

/// The useful part of tonic's transport errors is in their sources.
pub(super) fn full_error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use baton_proto::v1::ErrorDetail;

    use super::*;

    #[test]
    fn a_superseded_daemon_differs_from_one_that_lost_its_stream() {
        let goodbye = |code: GoodbyeCode| Goodbye {
            code: code.into(),
            retry_after_ms: Some(7),
            ..Goodbye::default()
        };
        let wish = Some(Duration::from_millis(7));
        let superseded = on_goodbye(&goodbye(GoodbyeCode::Superseded), true);
        assert!(
            matches!(&superseded, StreamOutcome::Superseded(pause) if pause.retry_after == wish),
            "{superseded:?}"
        );
        let busy = on_goodbye(&goodbye(GoodbyeCode::Busy), false);
        assert!(
            matches!(&busy, StreamOutcome::NotReached(pause) if pause.retry_after == wish),
            "{busy:?}"
        );
    }

    #[test]
    fn a_relay_without_a_common_version_is_not_contacted_again() {
        let detail = ErrorDetail {
            code: refusals::VERSION_UNSUPPORTED.to_owned(),
            ..ErrorDetail::default()
        };
        let packed = baton_proto::pack_error_detail(Code::FailedPrecondition, "version", &detail);
        let refused = Status::with_details(Code::FailedPrecondition, "version", packed);
        assert!(matches!(
            on_status(&refused, false),
            StreamOutcome::UnsupportedVersion { .. }
        ));
        let other = Status::with_details(Code::FailedPrecondition, "other", Default::default());
        assert!(!matches!(
            on_status(&other, false),
            StreamOutcome::UnsupportedVersion { .. }
        ));
    }
}
