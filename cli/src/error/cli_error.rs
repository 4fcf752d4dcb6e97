//! What goes wrong on the command line, told in three parts: what happened, why, and what to try.
//! Turns gRPC statuses into that; the exit code follows from the kind of error.

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

/// Everything a command may end with besides success.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The command line, a file that it names, or the environment is wrong.
    Usage(ErrorText),
    /// The relay could not be reached, or does not speak to us.
    Unreachable(ErrorText),
    /// The relay understood and refused.
    Rejected(Box<RelayRejection>),
    /// Something on this machine went wrong.
    Local(ErrorText),
    /// A file is not what it was when it was made: a person has to decide.
    Damaged(ErrorText),
    /// Whoever read our stdout went away.
    OutputClosed,
}

/// What happened, why, and what to try next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorText {
    pub what: String,
    pub why: String,
    pub hint: String,
}

/// The relay's own words about a refused request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RelayRejection {
    pub code: Code,
    pub machine_code: String,
    pub text: ErrorText,
    /// The relay was full: the same request may succeed after this long.
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

    /// The relay does not know the token: with which relay that was, and whose token. Or it was not understood: what it speaks.
    pub(crate) fn with_relay_context(mut self, relay: &ConnectionArgs) -> Self {
        if let CliError::Unreachable(story) = &mut self
            && let Ok(url) = relay.relay_url()
            && let Some(hint) = tls_hints::http_hint(&url)
        {
            story.hint = hint;
        }
        if let CliError::Rejected(refusal) = &mut self
            && refusal.code == Code::Unauthenticated
            && let Ok(url) = relay.relay_url()
        {
            let file = relay.token_path();
            let story = &mut refusal.text;
            story.what = format!(
                "the relay at {url} does not take the token in {}",
                file.display()
            );
            story.why = "it is revoked, has expired, or is another relay's".to_owned();
            story.hint = "name this relay's with --token-file or its data directory with --data; an administrator makes one with \
                          `baton token create --role submitter`"
                .to_owned();
        }
        self
    }

    pub(crate) fn exit(&self) -> CommandExit {
        match self {
            CliError::Usage(_) | CliError::Unreachable(_) => CommandExit::Usage,
            CliError::Rejected(refusal) => refusal.exit(),
            CliError::Local(_) => CommandExit::NotCompleted,
            CliError::Damaged(_) => CommandExit::NeedsAttention,
            CliError::OutputClosed => CommandExit::Done,
        }
    }

    /// The same question may well be answered later: the connection broke, or the relay is stopping.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            CliError::Unreachable(_) => true,
            CliError::Rejected(refusal) => refusal.code == Code::Unavailable,
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
            _ => CliError::local("write to stdout", error),
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
    let story = ErrorText {
        what,
        why: String::new(),
        hint: flag_hints::hint_with_flags(&detail.code, &detail.field, detail.hint),
    };
    CliError::Rejected(Box::new(RelayRejection {
        code,
        machine_code: detail.code,
        text: story,
        retry_after_ms: detail.retry_after_ms,
    }))
}

/// A status without our details was made by a transport, not by a handler of the relay.
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
            hint: "see whether the relay is up, then repeat the command".to_owned(),
        });
    }
    let what = format!("the relay answered {:?}", status.code());
    let story = ErrorText {
        what,
        why,
        hint: String::new(),
    };
    CliError::Rejected(Box::new(RelayRejection {
        code: status.code(),
        machine_code: String::new(),
        text: story,
        retry_after_ms: None,
    }))
}

impl fmt::Display for ErrorText {
    /// The text may come from a relay or an agent, so it is cleaned before it reaches a terminal.
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
            CliError::Usage(story)
            | CliError::Unreachable(story)
            | CliError::Local(story)
            | CliError::Damaged(story) => story.fmt(f),
            CliError::Rejected(refusal) => refusal.fmt(f),
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
    fn a_refusal_says_what_why_and_what_to_try() {
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
    fn a_number_that_is_out_of_range_has_its_unit() {
        let error = CliError::from(status(
            Code::InvalidArgument,
            ErrorDetail {
                code: "out_of_range".to_owned(),
                field: "spec.lease_ttl_ms".to_owned(),
                message: "spec.lease_ttl_ms is 1000, not within 5000 to 86400000".to_owned(),
                ..ErrorDetail::default()
            },
        ));
        let words = "--lease is 1000, not within 5000 to 86400000, in milliseconds";
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn exit_codes_tell_usage_from_refusal_from_a_broken_connection() {
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
