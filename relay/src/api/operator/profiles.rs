//! Named deadline profiles of a tenant. A task keeps the deadlines that its profile had at
//! submission.

use baton_core::ids::TenantId;
use baton_core::task::spec::DeadlineProfile;
use baton_core::time::WallTime;
use baton_proto::v1;
use serde::{Deserialize, Serialize};

use crate::api::Api;
use crate::api::error::fault::{ApiFault, EntityKind};
use crate::api::request::{limits, validate};
use crate::api::wire::submission;
use crate::api::wire::{deadlines, deadlines_from_wire, timestamp};
use crate::auth::Principal;
use crate::records;
use crate::store::{KeyRange, KeyText, RecordKey, RecordKind, StoreChange};

/// A profile as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProfileRecord {
    pub(crate) profile: DeadlineProfile,
    pub(crate) updated_at: WallTime,
    pub(crate) updated_by: String,
}

impl Api {
    pub(crate) async fn stored_profile(
        &self,
        tenant: &TenantId,
        name: &str,
    ) -> Result<Option<ProfileRecord>, ApiFault> {
        let Some(key) = profile_key(tenant, name) else {
            return Ok(None);
        };
        let decode = |bytes: &[u8]| records::decode("profile", bytes);
        let stored = self
            .read_store(move |reader| reader.read_decoded(&key, decode))
            .await?;
        stored.map_err(|_counted| ApiFault::Unreadable)
    }

    pub(crate) async fn handle_put_profile(
        &self,
        who: Principal,
        request: v1::PutProfileRequest,
    ) -> Result<v1::PutProfileResponse, ApiFault> {
        validate::name("name", &request.name, limits::PROFILE_NAME)?;
        let profile = deadlines_from_wire(validate::present("profile", request.profile)?);
        submission::check_profile("profile", &profile)?;
        self.check_disk_space()?;
        let stored = self.stored_profile(&who.tenant, &request.name).await;
        // An unreadable profile exists too; overwriting it is the way to repair it.
        let replaced = match stored {
            Ok(stored) => stored.is_some(),
            Err(ApiFault::Unreadable) => true,
            Err(fault) => return Err(fault),
        };
        let limit = limits::PROFILES;
        if !replaced && self.tenant_profiles(&who.tenant).await?.len() >= limit {
            return Err(ApiFault::TooManyProfiles { limit });
        }
        let record = ProfileRecord {
            profile,
            updated_at: self.clock.now().wall,
            updated_by: who.name.to_string(),
        };
        let key = profile_key(&who.tenant, &request.name).ok_or(ApiFault::Internal)?;
        self.dispatcher
            .write_records(vec![StoreChange::Put(key, records::encode(&record))])
            .await?;
        Ok(v1::PutProfileResponse {
            profile: Some(named_profile(request.name, &record)),
            replaced,
        })
    }

    pub(crate) async fn handle_list_profiles(
        &self,
        who: Principal,
    ) -> Result<v1::ListProfilesResponse, ApiFault> {
        let found = self.tenant_profiles(&who.tenant).await?;
        let profiles = found
            .into_iter()
            .map(|(name, record)| named_profile(name, &record));
        Ok(v1::ListProfilesResponse {
            profiles: profiles.collect(),
        })
    }

    pub(crate) async fn handle_delete_profile(
        &self,
        who: Principal,
        request: v1::DeleteProfileRequest,
    ) -> Result<v1::DeleteProfileResponse, ApiFault> {
        validate::name("name", &request.name, limits::PROFILE_NAME)?;
        let key = profile_key(&who.tenant, &request.name);
        let stored = self.stored_profile(&who.tenant, &request.name).await;
        let key = key.filter(|_| matches!(stored, Ok(Some(_)) | Err(ApiFault::Unreadable)));
        let key = key.ok_or(ApiFault::NotFound(EntityKind::Profile))?;
        self.dispatcher
            .write_records(vec![StoreChange::Delete(key)])
            .await?;
        Ok(v1::DeleteProfileResponse {})
    }

    async fn tenant_profiles(
        &self,
        tenant: &TenantId,
    ) -> Result<Vec<(String, ProfileRecord)>, ApiFault> {
        let range = KeyRange::of_kind(&records::tenant_text(tenant), RecordKind::Profile);
        let listed = self.read_store(move |reader| {
            let mut profiles = Vec::new();
            let walked = reader.for_each_record(&range, |key, bytes| {
                let RecordKey::Profile { name, .. } = key else {
                    return true;
                };
                let record = records::decode("profile", bytes);
                let named = record.map(|record| (name.as_str().to_owned(), record));
                named.map(|named| profiles.push(named)).is_ok()
            });
            walked.map(|_counted| profiles)
        });
        listed.await?.map_err(|error| {
            tracing::error!(%error, "listing the profiles failed");
            ApiFault::Unreadable
        })
    }
}

fn profile_key(tenant: &TenantId, name: &str) -> Option<RecordKey> {
    Some(RecordKey::Profile {
        tenant: records::tenant_text(tenant),
        name: KeyText::new(name).ok()?,
    })
}

fn named_profile(name: String, record: &ProfileRecord) -> v1::NamedProfile {
    v1::NamedProfile {
        name,
        profile: Some(deadlines(&record.profile)),
        updated_at: Some(timestamp(record.updated_at)),
        updated_by: record.updated_by.clone(),
    }
}
