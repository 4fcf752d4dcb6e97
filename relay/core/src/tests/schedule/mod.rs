//! Tests of dispatch: placement, pauses, suspended dispatch, refused offers, inherited tasks.

pub(crate) mod inherited_task;
pub(crate) mod offer_refusal;
pub(crate) mod placement;
pub(crate) mod suspended_dispatch;
pub(crate) mod tenant_pause;
