//! Named deadline profiles of a tenant. Tasks keep what a name stood for when they were submitted.

use baton_core::id::TenantId;
use baton_core::spec::Profile;
use baton_core::time::Wall;
use baton_proto::v1;
use serde::{Deserialize, Serialize};

use super::fault::{Fault, Thing};
use super::{Api, limits, submission, validate};
use crate::auth::Principal;
use crate::records;
use crate::store::{Change, Key, KeyRange, KeyText, Kind};
use crate::wire::{asked_deadlines, deadlines, timestamp};

/// A profile as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProfileRecord {
    pub(crate) profile: Profile,
    pub(crate) updated_at: Wall,
    pub(crate) updated_by: String,
}

impl Api {
    pub(super) async fn stored_profile(
        &self,
        tenant: &TenantId,
        name: &str,
    ) -> Result<Option<ProfileRecord>, Fault> {
        let Some(key) = profile_key(tenant, name) else {
            return Ok(None);
        };
        let decode = |bytes: &[u8]| records::decode("profile", bytes);
        let stored = self.read(move |reader| reader.stored(&key, decode)).await?;
        stored.map_err(|_counted| Fault::Unreadable)
    }

    pub(super) async fn keep_profile(
        &self,
        who: Principal,
        request: v1::PutProfileRequest,
    ) -> Result<v1::PutProfileResponse, Fault> {
        validate::name("name", &request.name, limits::PROFILE_NAME)?;
        let profile = asked_deadlines(validate::present("profile", request.profile)?);
        submission::check_profile("profile", &profile)?;
        self.admit()?;
        let known = self.stored_profile(&who.tenant, &request.name).await;
        // One that cannot be read is there all the same, and a new one is the way to mend it.
        let replaced = match known {
            Ok(known) => known.is_some(),
            Err(Fault::Unreadable) => true,
            Err(fault) => return Err(fault),
        };
        let limit = limits::PROFILES;
        if !replaced && self.profiles_of(&who.tenant).await?.len() >= limit {
            return Err(Fault::TooManyProfiles { limit });
        }
        let record = ProfileRecord {
            profile,
            updated_at: self.clock.now().wall,
            updated_by: who.name.to_string(),
        };
        let key = profile_key(&who.tenant, &request.name).ok_or(Fault::Internal)?;
        self.dispatcher
            .write(vec![Change::Put(key, records::encode(&record))])
            .await?;
        Ok(v1::PutProfileResponse {
            profile: Some(named(request.name, &record)),
            replaced,
        })
    }

    pub(super) async fn list_profiles_of(
        &self,
        who: Principal,
    ) -> Result<v1::ListProfilesResponse, Fault> {
        let found = self.profiles_of(&who.tenant).await?;
        let profiles = found.into_iter().map(|(name, record)| named(name, &record));
        Ok(v1::ListProfilesResponse {
            profiles: profiles.collect(),
        })
    }

    pub(super) async fn drop_profile(
        &self,
        who: Principal,
        request: v1::DeleteProfileRequest,
    ) -> Result<v1::DeleteProfileResponse, Fault> {
        validate::name("name", &request.name, limits::PROFILE_NAME)?;
        let key = profile_key(&who.tenant, &request.name);
        let known = self.stored_profile(&who.tenant, &request.name).await;
        let key = key.filter(|_| matches!(known, Ok(Some(_)) | Err(Fault::Unreadable)));
        let key = key.ok_or(Fault::NotFound(Thing::Profile))?;
        self.dispatcher.write(vec![Change::Delete(key)]).await?;
        Ok(v1::DeleteProfileResponse {})
    }

    async fn profiles_of(&self, tenant: &TenantId) -> Result<Vec<(String, ProfileRecord)>, Fault> {
        let range = KeyRange::of(&records::tenant_text(tenant), Kind::Profile);
        let listed = self.read(move |reader| {
            let mut profiles = Vec::new();
            let walked = reader.each(&range, |key, bytes| {
                let Key::Profile { name, .. } = key else {
                    return true;
                };
                let record = records::decode("profile", bytes);
                let named = record.map(|record| (name.as_str().to_owned(), record));
                named.map(|named| profiles.push(named)).is_ok()
            });
            walked.map(|_counted| profiles)
        });
        listed.await?.map_err(|error| {
            tracing::error!(%error, "the profiles cannot be listed");
            Fault::Unreadable
        })
    }
}

fn profile_key(tenant: &TenantId, name: &str) -> Option<Key> {
    Some(Key::Profile {
        tenant: records::tenant_text(tenant),
        name: KeyText::new(name).ok()?,
    })
}

fn named(name: String, record: &ProfileRecord) -> v1::NamedProfile {
    v1::NamedProfile {
        name,
        profile: Some(deadlines(&record.profile)),
        updated_at: Some(timestamp(record.updated_at)),
        updated_by: record.updated_by.clone(),
    }
}
