//! Checks of a submission before it is sent to the core: its fields, the names of its daemon and
//! profile, and free disk space.

use std::sync::Arc;

use baton_core::StoredTasks;
use baton_core::ids::TaskId;
use baton_core::io::rejection::Rejection;
use baton_core::task::spec::{RequestedProfile, TaskSpec};
use baton_proto::v1;
use prost::Message;

use crate::api::Api;
use crate::api::error::fault::ApiFault;
use crate::api::request::limits;
use crate::api::request::validate::{InvalidReason, invalid_field};
use crate::api::wire::submission;
use crate::auth::Principal;
use crate::records;

/// The result of a successful check.
pub(crate) enum CheckedSubmission {
    New(Arc<TaskSpec>),
    /// A repeat: the task that was created with this idempotency key.
    Existing(TaskId),
}

impl Api {
    /// A repeated submission succeeds even if a new one would fail, because its daemon or
    /// profile was removed or the disk is full: it was accepted before, and nothing is written
    /// for it. So the key is looked up here only after a failed check. The core checks it in any
    /// case.
    pub(crate) async fn check_submission(
        &self,
        who: &Principal,
        request: v1::SubmitRequest,
        digest: [u8; 32],
    ) -> Result<CheckedSubmission, ApiFault> {
        let draft = self.parse_draft(who, request)?;
        let key = draft.spec.idempotency_key.clone();
        let fault = match self.resolve_names(who, draft).await {
            Ok(spec) => match self.check_disk_space() {
                Ok(()) => return Ok(CheckedSubmission::New(Arc::new(spec))),
                Err(full) => full,
            },
            Err(fault) => fault,
        };
        let existing = self.task_by_key(who, key, digest).await?;
        existing.map(CheckedSubmission::Existing).ok_or(fault)
    }

    async fn task_by_key(
        &self,
        who: &Principal,
        key: Option<String>,
        digest: [u8; 32],
    ) -> Result<Option<TaskId>, ApiFault> {
        let Some(key) = key else {
            return Ok(None);
        };
        let tenant = who.tenant.clone();
        let stored = self
            .read_store(move |reader| reader.idempotency(&tenant, &key))
            .await?;
        match stored {
            Ok(Some(known)) if known.digest == digest => Ok(Some(known.task)),
            Ok(Some(_)) => Err(ApiFault::Refused(Rejection::IdempotencyConflict)),
            Ok(None) => Ok(None),
            Err(_damage) => Err(ApiFault::Unreadable),
        }
    }

    /// Parses the submission and makes all checks that need the request only.
    fn parse_draft(
        &self,
        who: &Principal,
        request: v1::SubmitRequest,
    ) -> Result<submission::SubmissionDraft, ApiFault> {
        let large = request.encoded_len() > records::SPEC_BYTES_MAX;
        let draft = submission::parse_submission(who, request, &self.config)?;
        if large && records::spec_bytes(&draft.spec) > records::SPEC_BYTES_MAX {
            let limit = limits::TextLimit::Bytes(records::SPEC_BYTES_MAX);
            return Err(invalid_field("spec", InvalidReason::TooLong { limit }).into());
        }
        Ok(draft)
    }

    /// Resolves the names of the daemon and the profile within the caller's tenant.
    async fn resolve_names(
        &self,
        who: &Principal,
        draft: submission::SubmissionDraft,
    ) -> Result<TaskSpec, ApiFault> {
        let submission::SubmissionDraft {
            mut spec,
            daemon_name,
        } = draft;
        if let Some(name) = daemon_name {
            spec.target.daemon = Some(self.daemon_id_by_name(who, &name).await?);
        }
        let stored = match &spec.requested_profile {
            RequestedProfile::Named(name) => self.stored_profile(&who.tenant, name).await?,
            RequestedProfile::Absent | RequestedProfile::Inline(_) => None,
        };
        submission::resolve_profile(&mut spec, stored.map(|record| record.profile))?;
        Ok(spec)
    }
}
