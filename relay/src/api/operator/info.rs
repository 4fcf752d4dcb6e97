//! `RelayInfo`: identity, version, admission state, disk space and counters of the relay.

use baton_proto::codes::features;
use baton_proto::v1;

use super::require_all_tenants;
use super::tokens;
use crate::api::Api;
use crate::api::error::fault::ApiFault;
use crate::api::wire::timestamp;
use crate::auth::Principal;

impl Api {
    pub(crate) fn info(&self, who: &Principal) -> v1::RelayInfoResponse {
        let draining = self.stop.is_cancelled();
        let space = self.space.latest();
        let problem = if draining {
            Some(ApiFault::Stopping)
        } else {
            self.check_disk_space().err()
        };
        v1::RelayInfoResponse {
            relay_id: self.config.incarnation.to_string(),
            incarnation: self.config.incarnation.to_string(),
            relay_epoch: self.config.epoch.0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_version: baton_proto::PROTOCOL_VERSION,
            started_at: Some(timestamp(self.started_at)),
            commit_seq: self.reader.store().durable().get(),
            unreadable_records: self.reader.unreadable_records().count(),
            admitting: problem.is_none(),
            admission_problem: problem.map_or_else(String::new, |fault| fault.to_string()),
            draining,
            principal: who.name.to_string(),
            tenant: tokens::scope_text(&who.scope),
            role: tokens::role_message(who.role).into(),
            features: features::ALL.map(str::to_owned).to_vec(),
            counters: self.counters(who),
            disk: Some(v1::DiskSpace {
                free_bytes: space.free(),
                total_bytes: space.total(),
                needed_bytes: space.needed(),
                ballast_bytes: space.ballast(),
            }),
        }
    }

    /// Counters cover all tenants. Callers of one tenant get none: a counter could reveal that
    /// an id exists in another tenant.
    fn counters(&self, who: &Principal) -> Vec<v1::CounterValue> {
        if require_all_tenants(who).is_err() {
            return Vec::new();
        }
        let counters = self.session_context.telemetry.snapshot().into_iter();
        let values = counters.map(|(counter, value)| v1::CounterValue {
            name: counter.name.to_owned(),
            reason: counter.reason.to_owned(),
            value,
        });
        values.collect()
    }
}
