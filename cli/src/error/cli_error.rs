//! The error type of the command line. A message has three parts: what happened, why, and what to
//! try. gRPC statuses are converted to it, and the exit code depends on the kind of error.

use std::fmt;
use std::io;

use baton_proto::unpack_error_detail;
use baton_proto::v1::ErrorDetail;
use tonic::{Code, Status};

use crate::client::discovery::ConnectionArgs;
use crate::error::exit_code::CommandExit;
use crate::error::flag_hints;
use crate::error::tls_hints;
use crate::render::sanitizer::one_line;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The command line, a file that it names, or the environment is wrong.
    Usage(ErrorText),
    /// The connection to the relay failed or broke.
    Unreachable(ErrorText),
    /// The relay rejected the request.
    Rejected(Box<RelayRejection>),
    /// Something on this machine went wrong.
    Local(ErrorText),
    /// A file is truncated or altered, so a person has to decide.
    Damaged(ErrorText),
    /// The reader of stdout has closed it.
    OutputClosed,
}

/// What happened, why, and what to try next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorText {
    pub what: String,
    pub why: String,
    pub hint: String,
}

/// The relay's error detail of a rejected request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RelayRejection {
    pub code: Code,
    pub machine_code: String,
    pub text: ErrorText,
    /// The relay was at a limit: the same request may succeed after this time.
    pub retry_after_ms: Option<u64>,
}

impl CliError {
    pub(crate) fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        CliError::Usage(ErrorText {
            what: what.into(),
            why: String::new(),
            hint: hint.into(),
        })
    }

    pub(crate) fn local(what: impl Into<String>, why: impl fmt::Display) -> Self {
        CliError::Local(ErrorText {
            what: what.into(),
            why: why.to_string(),
            hint: String::new(),
        })
    }

    /// Adds the connection to the text: for an unknown token, the relay's address and the token file; for
    /// a failed connection, whether the port uses TLS.
    pub(crate) fn with_relay_context(mut self, relay: &ConnectionArgs) -> Self {
        if let CliError::Unreachable(text) = &mut self
            && let Ok(url) = relay.relay_url()
            && let Some(hint) = tls_hints::http_hint(&url)
        {
            text.hint = hint;
        }
        if let CliError::Rejected(rejection) = &mut self
            && rejection.code == Code::Unauthenticated
            && let Ok(url) = relay.relay_url()
        {
            let file = relay.token_path();
            let text = &mut rejection.text;
            text.what = format!(
                "the relay at {url} does not accept the token in {}",
                file.display()
            );
            text.why = "it was revoked, has expired, or belongs to another relay".to_owned();
            text.hint = "pass this relay's token with --token-file or its data directory with --data; an administrator creates \
                          tokens with `baton token create --role submitter`"
                .to_owned();
        }
        self
    }

    pub(crate) fn exit(&self) -> CommandExit {
        match self {
            CliError::Usage(_) | CliError::Unreachable(_) => CommandExit::Usage,
            CliError::Rejected(rejection) => rejection.exit(),
            CliError::Local(_) => CommandExit::NotCompleted,
            CliError::Damaged(_) => CommandExit::NeedsAttention,
            CliError::OutputClosed => CommandExit::Done,
        }
    }

    /// Whether the same call may succeed later: the connection broke, or the relay is stopping.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            CliError::Unreachable(_) => true,
            CliError::Rejected(rejection) => rejection.code == Code::Unavailable,
            CliError::Usage(_)
            | CliError::Local(_)
            | CliError::Damaged(_)
            | CliError::OutputClosed => false,
        }
    }
}

impl RelayRejection {
    fn exit(&self) -> CommandExit {
        match self.code {
            Code::InvalidArgument | Code::Unauthenticated | Code::Unimplemented => {
                CommandExit::Usage
            }
            _ => CommandExit::NotCompleted,
        }
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CliError::OutputClosed,
            _ => CliError::local("cannot write to stdout", error),
        }
    }
}

impl From<Status> for CliError {
    fn from(status: Status) -> Self {
        match unpack_error_detail(&status) {
            Some(detail) => error_from_detail(status.code(), detail),
            None => error_without_detail(&status),
        }
    }
}

fn error_from_detail(code: Code, detail: ErrorDetail) -> CliError {
    let mut what = detail.message;
    if !detail.field.is_empty() && !what.contains(&detail.field) {
        what = format!("{} : {what}", detail.field);
    }
    what = flag_hints::replace_fields_with_flags(&detail.field, &what).replace(" : ", ": ");
    if detail.code == "out_of_range" && detail.field.ends_with("_ms") {
        what.push_str(", in milliseconds");
    }
    for path in &detail.missing {
        what.push_str("\n  missing: ");
        what.push_str(path);
    }
    let text = ErrorText {
        what,
        why: String::new(),
        hint: flag_hints::hint_with_flags(&detail.code, &detail.field, detail.hint),
    };
    CliError::Rejected(Box::new(RelayRejection {
        code,
        machine_code: detail.code,
        text,
        retry_after_ms: detail.retry_after_ms,
    }))
}

/// A status without an ErrorDetail was made by the transport, not by a handler of the relay.
fn error_without_detail(status: &Status) -> CliError {
    let why = status.message().to_owned();
    let transport = matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded
    );
    if transport {
        return CliError::Unreachable(ErrorText {
            what: "the connection to the relay broke".to_owned(),
            why,
            hint: "check that the relay is running, then repeat the command".to_owned(),
        });
    }
    let what = format!("the relay returned {:?}", status.code());
    let text = ErrorText {
        what,
        why,
        hint: String::new(),
    };
    CliError::Rejected(Box::new(RelayRejection {
        code: status.code(),
        machine_code: String::new(),
        text,
        retry_after_ms: None,
    }))
}

impl fmt::Display for ErrorText {
    /// The text may come from a relay or an agent, so it is sanitized for the terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.what.lines();
        write!(f, "{}", one_line(lines.next().unwrap_or_default()))?;
        if !self.why.is_empty() {
            write!(f, ": {}", one_line(&self.why))?;
        }
        for line in lines {
            write!(f, "\n{}", one_line(line))?;
        }
        if !self.hint.is_empty() {
            write!(f, "\n  try: {}", one_line(&self.hint))?;
        }
        Ok(())
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CliError::Usage(text)
            | CliError::Unreachable(text)
            | CliError::Local(text)
            | CliError::Damaged(text) => text.fmt(f),
            CliError::Rejected(rejection) => rejection.fmt(f),
            CliError::OutputClosed => f.write_str("stdout was closed"),
        }
    }
}

impl fmt::Display for RelayRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.machine_code.is_empty() {
            return self.text.fmt(f);
        }
        write!(f, "[{}] {}", one_line(&self.machine_code), self.text)
    }
}

impl std::error::Error for CliError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, detail: ErrorDetail) -> Status {
        let packed = baton_proto::pack_error_detail(code, "short", &detail);
        Status::with_details(code, "short", packed)
    }

    #[test]
    fn a_rejection_has_its_code_message_and_hint() {
        let error = CliError::from(status(
            Code::NotFound,
            ErrorDetail {
                code: "NOT_FOUND".to_owned(),
                message: "there is no such task\u{1b}[31m".to_owned(),
                hint: "list them with baton tasks".to_owned(),
                ..ErrorDetail::default()
            },
        ));
        let expected = "[NOT_FOUND] there is no such task\n  try: list them with baton tasks";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.exit(), CommandExit::NotCompleted);
    }

    #[test]
    fn a_number_out_of_range_is_shown_with_its_unit() {
        let error = CliError::from(status(
            Code::InvalidArgument,
            ErrorDetail {
                code: "out_of_range".to_owned(),
                field: "spec.lease_ttl_ms".to_owned(),
                message: "spec.lease_ttl_ms is 1000, not within 5000 to 86400000".to_owned(),
                ..ErrorDetail::default()
            },
        ));
        let expected = "--lease is 1000, not within 5000 to 86400000, in milliseconds";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn usage_rejection_and_broken_connection_have_their_exit_codes() {
        let exit = |code| CliError::from(status(code, ErrorDetail::default())).exit();
        assert_eq!(exit(Code::InvalidArgument), CommandExit::Usage);
        assert_eq!(exit(Code::Unauthenticated), CommandExit::Usage);
        for code in [
            Code::Unavailable,
            Code::AlreadyExists,
            Code::ResourceExhausted,
        ] {
            assert_eq!(exit(code), CommandExit::NotCompleted, "{code:?}");
        }
        let broken = CliError::from(Status::unavailable("connection reset"));
        assert!(broken.is_transient());
        assert_eq!(broken.exit(), CommandExit::Usage);
        let closed = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(closed.exit(), CommandExit::Done);
    }
}
