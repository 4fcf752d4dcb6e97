//! Sample frames, specs and actors.

use std::sync::Arc;

use uuid::Uuid;

use crate::ids::TokenId;
use crate::io::command::RequestActor;
use crate::io::session_input::{
    CanceledBody, CompletedBody, ErroredBody, FrameBody, ProcessTermination,
};
use crate::record::{FailureCode, ProcessExitStatus};
use crate::samples;
use crate::task::spec::TaskSpec;

pub(super) fn digest(spec: &TaskSpec) -> [u8; 32] {
    use sha2::{Digest, Sha256};
    Sha256::digest(format!("{spec:?}")).into()
}

pub(in crate::tests) fn actor() -> RequestActor {
    RequestActor {
        name: "alice".into(),
        token: TokenId(Uuid::from_u128(77)),
        operator: false,
    }
}

pub(in crate::tests) fn spec() -> TaskSpec {
    samples::task_spec()
}

/// A receipt which proves that all processes have ended.
pub(in crate::tests) fn termination_receipt() -> ProcessTermination {
    ProcessTermination {
        exit: Some(ProcessExitStatus::Code(0)),
        group_empty: true,
        ..ProcessTermination::default()
    }
}

pub(in crate::tests) fn completed() -> FrameBody {
    FrameBody::Completed(CompletedBody {
        result: Some(Arc::from(*b"done")),
        termination: termination_receipt(),
        ended_in_lease: true,
        ..CompletedBody::default()
    })
}

pub(in crate::tests) fn errored(code: FailureCode, exit: i32) -> FrameBody {
    FrameBody::Errored(ErroredBody {
        code,
        retryable_hint: None,
        message: None,
        user_message: None,
        usage: crate::record::TokenUsage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: ProcessTermination {
            exit: Some(ProcessExitStatus::Code(exit)),
            ..termination_receipt()
        },
        ended_in_lease: true,
    })
}

pub(in crate::tests) fn canceled() -> FrameBody {
    FrameBody::Canceled(CanceledBody {
        termination: termination_receipt(),
        ended_in_lease: true,
        ..CanceledBody::default()
    })
}
