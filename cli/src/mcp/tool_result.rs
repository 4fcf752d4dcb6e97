//! The result of a tool call: an object, or a rejection with what happened, why, what to do next,
//! and a machine code.

use baton_proto::unpack_error_detail;
use baton_proto::v1::ErrorDetail;
use rmcp::model::CallToolResult;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::argument_schema::ArgumentError;
use crate::error::cli_error::CliError;

/// Why a tool call was rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolRejection {
    /// The gRPC status name in lower case.
    pub(super) status: &'static str,
    pub(super) code: String,
    pub(super) what: String,
    pub(super) why: String,
    pub(super) next: String,
    /// Boxed, so that `ToolResult` stays small.
    detail: Box<RejectionDetail>,
}

/// Fields that only some rejections have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RejectionDetail {
    field: String,
    missing: Vec<String>,
    holder: String,
    retryable: bool,
}

pub(super) type ToolResult = Result<Value, ToolRejection>;

/// The relay stopped while it handled the call. Calls have ids, so they can be repeated.
const OUTCOME_UNKNOWN: &str = "outcome_unknown";
pub(super) const INVALID_ARGUMENT: &str = "invalid_argument";
pub(super) const UNAVAILABLE: &str = "unavailable";
pub(super) const UNAUTHENTICATED: &str = "unauthenticated";
pub(super) const FAILED_PRECONDITION: &str = "failed_precondition";

impl ToolRejection {
    pub(super) fn new(status: &'static str, code: &str, what: &str, next: &str) -> Self {
        Self {
            status,
            code: code.to_owned(),
            what: what.to_owned(),
            next: next.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn with_reason(self, why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            ..self
        }
    }

    /// The same call may succeed a moment later.
    pub(super) fn is_transient(&self) -> bool {
        self.status == UNAVAILABLE || self.code == OUTCOME_UNKNOWN
    }

    pub(super) fn from_detail(status: &'static str, detail: ErrorDetail) -> Self {
        Self {
            status,
            code: detail.code,
            what: detail.message,
            why: String::new(),
            next: detail.hint,
            detail: Box::new(RejectionDetail {
                field: detail.field,
                missing: detail.missing,
                holder: detail.holder,
                retryable: detail.retryable,
            }),
        }
    }

    fn to_object(&self) -> Value {
        let mut error = json!({
            "status": self.status,
            "code": self.code,
            "what": self.what,
            "why": self.why,
            "next": self.next,
            "retryable": self.detail.retryable || self.is_transient(),
        });
        for (name, value) in [
            ("field", json!(self.detail.field)),
            ("missing", json!(self.detail.missing)),
            ("holder", json!(self.detail.holder)),
        ] {
            if value != json!("") && value != json!([]) {
                error[name] = value;
            }
        }
        json!({ "error": error })
    }
}

impl From<ArgumentError> for ToolRejection {
    fn from(wrong: ArgumentError) -> Self {
        let what = format!("the argument {} is not valid", wrong.field);
        let next = "correct it and call again; nothing was changed";
        let mut rejection =
            Self::new(INVALID_ARGUMENT, wrong.code, &what, next).with_reason(wrong.why);
        rejection.detail.field = wrong.field;
        rejection
    }
}

impl From<Status> for ToolRejection {
    fn from(status: Status) -> Self {
        let class = status_name(status.code());
        match unpack_error_detail(&status) {
            Some(detail) => Self::from_detail(class, detail),
            // Made by the transport, not by a handler of the relay.
            None if is_transport(status.code()) => relay_unreachable(status.message()),
            None => Self::new(class, class, "the relay rejected the call", "")
                .with_reason(status.message()),
        }
    }
}

impl From<CliError> for ToolRejection {
    fn from(error: CliError) -> Self {
        match error {
            CliError::Unreachable(text) => Self {
                next: text.hint.clone(),
                ..relay_unreachable(&text.why)
            },
            CliError::Usage(text) | CliError::Local(text) | CliError::Damaged(text) => Self::new(
                FAILED_PRECONDITION,
                "not_configured",
                &text.what,
                &text.hint,
            )
            .with_reason(text.why),
            CliError::Rejected(rejection) => Self::new(
                status_name(rejection.code),
                &rejection.machine_code,
                &rejection.text.what,
                &rejection.text.hint,
            ),
            CliError::OutputClosed => {
                Self::new(UNAVAILABLE, "output_closed", "stdout was closed", "")
            }
        }
    }
}

/// The rejection of calls while the server stops.
pub(super) fn server_stopping() -> ToolRejection {
    let (what, next) = ("the server is stopping", "start it again");
    ToolRejection::new(UNAVAILABLE, "server_stopping", what, next)
}

fn relay_unreachable(why: &str) -> ToolRejection {
    let next = "check that the relay is running, then call again";
    ToolRejection::new(
        UNAVAILABLE,
        "relay_unreachable",
        "the relay does not answer",
        next,
    )
    .with_reason(why)
}

fn is_transport(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::DeadlineExceeded
    )
}

fn status_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => INVALID_ARGUMENT,
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => FAILED_PRECONDITION,
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => UNAVAILABLE,
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => UNAUTHENTICATED,
    }
}

/// A rejection is a result as well, as MCP requires, so that the model can read it.
pub(super) fn to_call_result(answer: ToolResult) -> CallToolResult {
    match answer {
        Ok(object) => CallToolResult::structured(object),
        Err(rejection) => CallToolResult::structured_error(rejection.to_object()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_has_a_code_a_field_and_a_reason() {
        let wrong = ArgumentError {
            code: "blank",
            field: "reason".to_owned(),
            why: "it is blank".to_owned(),
        };
        let result = to_call_result(Err(wrong.into()));
        assert_eq!(result.is_error, Some(true));
        let error = &result.structured_content.unwrap()["error"];
        for (name, value) in [
            ("status", INVALID_ARGUMENT),
            ("code", "blank"),
            ("field", "reason"),
        ] {
            assert_eq!(error[name], value);
        }
        assert!(!error["why"].as_str().unwrap().is_empty() && error["missing"].is_null());
    }

    #[test]
    fn a_broken_connection_is_transient_and_a_rejection_is_not() {
        assert!(ToolRejection::from(Status::unavailable("reset")).is_transient());
        assert!(!ToolRejection::from(Status::not_found("x")).is_transient());
        let refused = ToolRejection::from(Status::unauthenticated("no"));
        assert_eq!(refused.status, UNAUTHENTICATED);
    }
}
