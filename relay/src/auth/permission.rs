//! The permission table: which role may call which RPC. It has one row per RPC and is the only
//! place that decides this.
//!
//! A test reads the published descriptors, so an RPC without a row, or a row without an RPC,
//! fails the build. Handlers and the core decide what a role may see *within* a call (its
//! tenant, its agent scope).

use super::Role;
use Role::{Admin, Agent, Answerer, Daemon, Operator, ReadOnly, Submitter};

/// What a call to a path requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcAccess {
    /// No credential.
    Public,
    Roles(&'static [Role]),
    /// The path is not in the table, so no handler exists.
    Unlisted,
}

/// Services for load balancers and tools. Their answers contain nothing of a tenant.
const PUBLIC: [&str; 3] = [
    "/grpc.health.v1.Health/",
    "/grpc.reflection.v1.ServerReflection/",
    "/grpc.reflection.v1alpha.ServerReflection/",
];

const READ: &[Role] = &[Admin, Operator, Submitter, Answerer, Agent, ReadOnly];
const READ_INPUTS: &[Role] = &[Admin, Operator, Submitter, Answerer, ReadOnly];
const READ_FLEET: &[Role] = &[Admin, Operator, Submitter, ReadOnly];
const INSPECT: &[Role] = &[Admin, Operator, Submitter, ReadOnly];
/// For `RelayInfo`: every credential may ask for its own identity and the state of the relay.
const ANYONE: &[Role] = &Role::ALL;
const SUBMIT: &[Role] = &[Admin, Operator, Submitter];
const ANSWER: &[Role] = &[Admin, Operator, Submitter, Answerer];
const OPERATE: &[Role] = &[Admin, Operator];
const ADMINISTER: &[Role] = &[Admin];
const AGENT_LEASE: &[Role] = &[Agent];
const DAEMON_LINK: &[Role] = &[Daemon];

const TABLE: &[(&str, &[Role])] = &[
    ("/baton.v1.Tasks/Submit", SUBMIT),
    ("/baton.v1.Tasks/SubmitMany", SUBMIT),
    ("/baton.v1.Tasks/Get", READ),
    ("/baton.v1.Tasks/List", READ),
    ("/baton.v1.Tasks/Watch", READ),
    ("/baton.v1.Tasks/WatchMany", READ),
    ("/baton.v1.Tasks/ReadOutput", READ),
    ("/baton.v1.Tasks/Cancel", SUBMIT),
    ("/baton.v1.Tasks/ListCheckpoints", READ),
    ("/baton.v1.Tasks/UpdateProgress", SUBMIT),
    ("/baton.v1.Tasks/Block", SUBMIT),
    ("/baton.v1.Tasks/Resume", SUBMIT),
    ("/baton.v1.Tasks/ListBlocked", READ),
    ("/baton.v1.Tasks/GetBlocked", READ),
    ("/baton.v1.Inputs/ListInputs", READ_INPUTS),
    ("/baton.v1.Inputs/WatchInputs", READ_INPUTS),
    ("/baton.v1.Inputs/Answer", ANSWER),
    ("/baton.v1.Fleet/ListDaemons", READ_FLEET),
    ("/baton.v1.Fleet/GetDaemon", READ_FLEET),
    ("/baton.v1.Fleet/DrainDaemon", OPERATE),
    ("/baton.v1.Fleet/UndrainDaemon", OPERATE),
    ("/baton.v1.Fleet/DisconnectDaemon", OPERATE),
    ("/baton.v1.Fleet/ForgetDaemon", OPERATE),
    ("/baton.v1.Operator/Inspect", INSPECT),
    ("/baton.v1.Operator/ListAttempts", INSPECT),
    ("/baton.v1.Operator/ForceRelease", OPERATE),
    ("/baton.v1.Operator/ForceFail", OPERATE),
    ("/baton.v1.Operator/RetryTask", OPERATE),
    ("/baton.v1.Operator/CompleteTask", OPERATE),
    ("/baton.v1.Operator/Pause", OPERATE),
    ("/baton.v1.Operator/Unpause", OPERATE),
    ("/baton.v1.Operator/SchedulerStatus", INSPECT),
    ("/baton.v1.Operator/BulkForce", OPERATE),
    ("/baton.v1.Operator/PutProfile", OPERATE),
    ("/baton.v1.Operator/ListProfiles", READ),
    ("/baton.v1.Operator/DeleteProfile", OPERATE),
    ("/baton.v1.Operator/CreateToken", ADMINISTER),
    ("/baton.v1.Operator/ListTokens", ADMINISTER),
    ("/baton.v1.Operator/RevokeToken", ADMINISTER),
    ("/baton.v1.Operator/Export", ADMINISTER),
    ("/baton.v1.Operator/Import", ADMINISTER),
    ("/baton.v1.Operator/Verify", OPERATE),
    ("/baton.v1.Operator/ReleaseInherited", ADMINISTER),
    ("/baton.v1.Operator/RelayInfo", ANYONE),
    ("/baton.v1.Agents/Start", AGENT_LEASE),
    ("/baton.v1.Agents/Claim", AGENT_LEASE),
    ("/baton.v1.Agents/PickUp", AGENT_LEASE),
    ("/baton.v1.Agents/Renew", AGENT_LEASE),
    ("/baton.v1.Agents/Checkpoint", AGENT_LEASE),
    ("/baton.v1.Agents/Progress", AGENT_LEASE),
    ("/baton.v1.Agents/Block", AGENT_LEASE),
    ("/baton.v1.Agents/Release", AGENT_LEASE),
    ("/baton.v1.Agents/Complete", AGENT_LEASE),
    ("/baton.v1.Agents/Fail", AGENT_LEASE),
    ("/baton.v1.Agents/Cancel", AGENT_LEASE),
    ("/baton.v1.DaemonLink/Link", DAEMON_LINK),
];

pub fn access(path: &str) -> RpcAccess {
    if let Some((_, roles)) = TABLE.iter().find(|(listed, _)| *listed == path) {
        return RpcAccess::Roles(roles);
    }
    if PUBLIC.iter().any(|service| path.starts_with(service)) {
        return RpcAccess::Public;
    }
    RpcAccess::Unlisted
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// Every RPC that the published descriptors name, as a path.
    fn published() -> BTreeSet<String> {
        let set = FileDescriptorSet::decode(baton_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut paths = BTreeSet::new();
        for file in set.file.iter().filter(|file| file.package() == "baton.v1") {
            for service in &file.service {
                for method in &service.method {
                    paths.insert(format!("/baton.v1.{}/{}", service.name(), method.name()));
                }
            }
        }
        paths
    }

    #[test]
    fn every_published_rpc_has_exactly_one_row() {
        let published = published();
        assert!(published.len() > 50, "{published:?}");
        let listed: BTreeSet<String> = TABLE.iter().map(|(path, _)| (*path).into()).collect();
        assert_eq!(listed.len(), TABLE.len(), "a path is listed twice");
        assert_eq!(listed, published);
    }

    /// The table in Markdown. Calls with the same roles share one row.
    fn markdown_table() -> String {
        let mut groups: Vec<(&[Role], Vec<String>)> = Vec::new();
        for (path, roles) in TABLE {
            let call = path.trim_start_matches("/baton.v1.").replace('/', ".");
            match groups.iter_mut().find(|(known, _)| known == roles) {
                Some((_, calls)) => calls.push(call),
                None => groups.push((roles, vec![call])),
            }
        }
        let names = Role::ALL.map(Role::as_str).join(" | ");
        let mut table = format!(
            "| calls | {names} |\n|---|{}\n",
            "---|".repeat(Role::ALL.len())
        );
        for (roles, calls) in groups {
            let may = Role::ALL.map(|role| if roles.contains(&role) { "yes" } else { "-" });
            table += &format!("| {} | {} |\n", calls.join(", "), may.join(" | "));
        }
        table
    }

    #[test]
    fn the_operating_manual_contains_the_permission_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
        let manual = std::fs::read_to_string(path).unwrap();
        let table = markdown_table();
        assert!(manual.contains(&table), "docs/operating.md lacks:\n{table}");
    }

    #[test]
    fn no_role_exceeds_its_permissions() {
        let may = |role: Role| -> BTreeSet<&str> {
            let rows = TABLE.iter().filter(|(_, roles)| roles.contains(&role));
            rows.map(|(path, _)| *path).collect()
        };
        let relay_info = "/baton.v1.Operator/RelayInfo";
        assert_eq!(
            may(Daemon),
            BTreeSet::from([relay_info, "/baton.v1.DaemonLink/Link"])
        );
        assert!(!may(Admin).contains("/baton.v1.DaemonLink/Link"));
        assert!(may(Operator).is_subset(&may(Admin)));
        assert!(may(Submitter).is_subset(&may(Operator)));
        assert!(may(Answerer).is_subset(&may(Submitter)));
        let writes = [
            "Submit", "Cancel", "Answer", "Drain", "Force", "Put", "Create", "Revoke",
        ];
        for path in may(ReadOnly) {
            let verb = path.rsplit('/').next().unwrap();
            assert!(
                !writes.iter().any(|write| verb.starts_with(write)),
                "{path}"
            );
        }
        assert_eq!(access("/baton.v1.Tasks/Nope"), RpcAccess::Unlisted);
        assert_eq!(access("/grpc.health.v1.Health/Check"), RpcAccess::Public);
    }
}
