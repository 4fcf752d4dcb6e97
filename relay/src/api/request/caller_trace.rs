//! The caller's trace from a call's metadata, where instrumented clients set it automatically. The
//! `traceparent` field of a submission takes precedence.

use baton_proto::v1::SubmitRequest;
use tonic::Request;

/// The W3C header name, used in gRPC metadata as in HTTP.
const TRACEPARENT: &str = "traceparent";

/// Copies the call's trace to each submission without one. The value is validated with the
/// submission.
pub(crate) fn inherit_traceparent<Q>(
    request: &mut Request<Q>,
    submissions: impl FnOnce(&mut Q) -> &mut [SubmitRequest],
) {
    let sent = request.metadata().get(TRACEPARENT);
    let Some(sent) = sent.and_then(|value| value.to_str().ok().map(str::to_owned)) else {
        return;
    };
    for submission in submissions(request.get_mut()) {
        if submission.traceparent.is_empty() {
            submission.traceparent.clone_from(&sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_without_a_trace_inherits_that_of_its_call() {
        let own = SubmitRequest {
            traceparent: "own".into(),
            ..SubmitRequest::default()
        };
        let mut request = Request::new(vec![own, SubmitRequest::default()]);
        inherit_traceparent(&mut request, |rows| rows);
        assert_eq!(request.get_ref()[1].traceparent, "");
        let sent = "call".parse().unwrap();
        request.metadata_mut().insert(TRACEPARENT, sent);
        inherit_traceparent(&mut request, |rows| rows);
        let traces: Vec<&str> = request
            .get_ref()
            .iter()
            .map(|row| &*row.traceparent)
            .collect();
        assert_eq!(traces, ["own", "call"]);
    }
}
