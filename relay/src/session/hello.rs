//! Decodes Hello, the first frame of a stream: the daemon's identity, its resources and the
//! attempts that it still has.

use std::collections::BTreeMap;

use baton_core::TaskLookup;
use baton_core::ids::{DaemonId, InstanceId};
use baton_core::io::session_input::{ActiveAttempt, ActiveAttemptState, DaemonHello};
use baton_core::record::{AgentRecord, DaemonPlatform};
use baton_proto::{ShortName, v1};

use super::fault::LinkFault;
use super::frame_decode;
use crate::auth::Principal;

const NAME_MAX: usize = 128;
const SLOTS_MAX: u32 = 4096;
const LABELS_MAX: usize = 64;
const ITEMS_MAX: usize = 64;
/// A daemon may offer whatever a task may require, so both have the same limit.
const ITEM_BYTES_MAX: usize = baton_validation::limits::LABEL_VALUE.limit();
/// More than the number of slots, because an ended attempt is listed until its end is
/// acknowledged.
const ACTIVE_MAX: usize = 2 * SLOTS_MAX as usize;
const PROTOCOL: u32 = 1;

/// The id that the daemon received from an earlier Welcome; `None` at its first connection.
pub(super) fn claimed_id(hello: &v1::Hello) -> Result<Option<DaemonId>, LinkFault> {
    if hello.daemon_id.is_empty() {
        return Ok(None);
    }
    hello.daemon_id.parse().map(Some).map_err(|_| {
        bad_hello(
            "daemon_id",
            "is not an id; send the daemon_id of Welcome, or leave it empty",
        )
    })
}

/// Checks shape and limits. `daemon` is the decided id; the scope comes from the credential.
pub(super) fn decode_hello(
    sent: v1::Hello,
    daemon: DaemonId,
    principal: &Principal,
) -> Result<DaemonHello, LinkFault> {
    check_limits(&sent)?;
    let instance = sent
        .instance_id
        .parse::<InstanceId>()
        .map_err(|_| bad_hello("instance_id", "is not an id"))?;
    let active: Result<Vec<_>, _> = sent.active.iter().map(active_attempt).collect();
    Ok(DaemonHello {
        daemon,
        scope: principal.scope.clone(),
        token: principal.token,
        instance,
        boot_id: sent.boot_id.as_str().into(),
        name: sent.name.as_str().into(),
        version: sent.version.as_str().into(),
        platform: DaemonPlatform {
            os: clip_item(&sent.os).into(),
            arch: clip_item(&sent.arch).into(),
            protocol: sent.protocol_version,
        },
        slots: sent.slots,
        labels: sent.labels,
        capabilities: sent.capabilities,
        agents: sent.agents.iter().map(agent).collect(),
        workspaces: sent.workspaces,
        draining: sent.draining,
        active: active?,
    })
}

fn check_limits(sent: &v1::Hello) -> Result<(), LinkFault> {
    if sent.protocol_version != PROTOCOL {
        return Err(LinkFault::Version(sent.protocol_version));
    }
    if sent.boot_id.is_empty() || sent.boot_id.len() > ITEM_BYTES_MAX {
        return Err(bad_hello(
            "boot_id",
            "must be the boot id of the kernel, at most 256 bytes",
        ));
    }
    if sent.name.trim().is_empty() || sent.name.chars().count() > NAME_MAX {
        return Err(bad_hello("name", "must have 1 to 128 characters"));
    }
    if sent.version.len() > ITEM_BYTES_MAX {
        return Err(bad_hello("version", "has more than 256 bytes"));
    }
    if sent.slots == 0 || sent.slots > SLOTS_MAX {
        return Err(bad_hello("slots", "must be 1 to 4096"));
    }
    if sent.active.len() > ACTIVE_MAX {
        return Err(bad_hello("active", "lists more than 8192 attempts"));
    }
    if sent.workspaces.len() > ITEMS_MAX || !sent.workspaces.iter().all(|name| fits_item(name)) {
        return Err(bad_hello(
            "workspaces",
            "has more than 64 entries, or one of more than 256 bytes",
        ));
    }
    check_items(&sent.labels, &sent.capabilities, &sent.agents)
}

fn fits_item(item: &str) -> bool {
    item.len() <= ITEM_BYTES_MAX
}

fn check_items(
    labels: &BTreeMap<String, String>,
    capabilities: &[String],
    agents: &[v1::AgentInfo],
) -> Result<(), LinkFault> {
    if labels.len() > LABELS_MAX
        || !labels
            .iter()
            .all(|(key, value)| fits_item(key) && fits_item(value))
    {
        return Err(bad_hello(
            "labels",
            "has more than 64 entries, or a key or value of more than 256 bytes",
        ));
    }
    if capabilities.len() > ITEMS_MAX || !capabilities.iter().all(|name| fits_item(name)) {
        return Err(bad_hello(
            "capabilities",
            "has more than 64 entries, or one of more than 256 bytes",
        ));
    }
    if agents.len() > ITEMS_MAX || !agents.iter().all(|agent| fits_item(&agent.name)) {
        return Err(bad_hello(
            "agents",
            "has more than 64 entries, or a name of more than 256 bytes",
        ));
    }
    Ok(())
}

/// Decodes an agent. Fields that are only displayed are cut; the name, which placement uses,
/// was checked before.
fn agent(sent: &v1::AgentInfo) -> AgentRecord {
    AgentRecord {
        name: sent.name.clone(),
        kind: sent.kind().short_name().to_owned(),
        version: clip_item(&sent.version).to_owned(),
        problem: (!sent.problem.is_empty()).then(|| clip_item(&sent.problem).to_owned()),
    }
}

fn clip_item(text: &str) -> &str {
    &text[..text.floor_char_boundary(ITEM_BYTES_MAX)]
}

fn active_attempt(sent: &v1::ActiveAttempt) -> Result<ActiveAttempt, LinkFault> {
    let re = frame_decode::frame_ref(sent.r#ref.as_ref())
        .map_err(|_| bad_hello("active.ref", "is missing or malformed"))?;
    let state = match sent.state() {
        v1::ActiveState::Running => ActiveAttemptState::Running,
        v1::ActiveState::Finished => ActiveAttemptState::Finished,
        v1::ActiveState::Unreachable | v1::ActiveState::Unspecified => {
            ActiveAttemptState::Unreachable
        }
    };
    Ok(ActiveAttempt {
        frame_ref: re,
        proof: frame_decode::lease_token(sent.token.as_ref()),
        state,
        control_seq: sent.last_control_seq,
        output_end: sent.output_end,
        lookup: TaskLookup::default(),
    })
}

fn bad_hello(field: &'static str, what: &'static str) -> LinkFault {
    LinkFault::BadHello { field, what }
}
