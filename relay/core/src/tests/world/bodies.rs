//! Ordinary frames and people.

use std::sync::Arc;

use uuid::Uuid;

use crate::id::TokenId;
use crate::input::{Actor, CanceledBody, Completed, Errored, FrameBody, Termination};
use crate::record::{Exit, FailureCode};
use crate::samples;
use crate::spec::TaskSpec;

pub(super) fn digest(spec: &TaskSpec) -> [u8; 32] {
    use sha2::{Digest, Sha256};
    Sha256::digest(format!("{spec:?}")).into()
}

pub(in crate::tests) fn actor() -> Actor {
    Actor {
        name: "alice".into(),
        token: TokenId(Uuid::from_u128(77)),
        operator: false,
    }
}

pub(in crate::tests) fn spec() -> TaskSpec {
    samples::task_spec()
}

/// The processes are gone.
pub(in crate::tests) fn gone() -> Termination {
    Termination {
        exit: Some(Exit::Code(0)),
        group_empty: true,
        ..Termination::default()
    }
}

pub(in crate::tests) fn completed() -> FrameBody {
    FrameBody::Completed(Completed {
        result: Some(Arc::from(*b"done")),
        termination: gone(),
        in_lease: true,
        ..Completed::default()
    })
}

pub(in crate::tests) fn errored(code: FailureCode, exit: i32) -> FrameBody {
    FrameBody::Errored(Errored {
        code,
        retryable_hint: None,
        message: None,
        user_message: None,
        usage: crate::record::Usage::default(),
        agent_session_id: None,
        final_offset: 0,
        termination: Termination {
            exit: Some(Exit::Code(exit)),
            ..gone()
        },
        in_lease: true,
    })
}

pub(in crate::tests) fn canceled() -> FrameBody {
    FrameBody::Canceled(CanceledBody {
        termination: gone(),
        in_lease: true,
        ..CanceledBody::default()
    })
}
