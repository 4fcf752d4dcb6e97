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
use crate::store::{Change, Key, KeyRange, KeyText, Kind, Page};
use crate::wire::{asked_deadlines, deadlines, timestamp};

/// A profile as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProfileRecord {
    pub(crate) profile: Profile,
    pub(crate) updated_at: Wall,
    pub(crate) updated_by: String,
}

impl Api {
    pub(super) fn stored_profile(&self, tenant: &TenantId, name: &str) -> Option<Profile> {
        self.profile_record(tenant, name)
            .map(|record| record.profile)
    }

    fn profile_record(&self, tenant: &TenantId, name: &str) -> Option<ProfileRecord> {
        let bytes = self
            .reader
            .store()
            .get(&profile_key(tenant, name)?)
            .ok()??;
        records::decode("profile", &bytes).ok()
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
        let replaced = self.profile_record(&who.tenant, &request.name).is_some();
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
        let key = key.filter(|_| self.profile_record(&who.tenant, &request.name).is_some());
        let key = key.ok_or(Fault::NotFound(Thing::Profile))?;
        self.dispatcher.write(vec![Change::Delete(key)]).await?;
        Ok(v1::DeleteProfileResponse {})
    }

    async fn profiles_of(&self, tenant: &TenantId) -> Result<Vec<(String, ProfileRecord)>, Fault> {
        let range = KeyRange::of(&records::tenant_text(tenant), Kind::Profile);
        let page = Page::first(limits::PROFILES);
        let scan = self
            .read(move |reader| reader.store().scan(&range, &page))
            .await?;
        let scan = scan.map_err(|error| {
            tracing::error!(%error, "the profiles cannot be listed");
            Fault::Unreadable
        })?;
        let known = scan
            .entries
            .into_iter()
            .filter_map(|(key, bytes)| match key {
                Key::Profile { name, .. } => {
                    let record = records::decode("profile", &bytes).ok()?;
                    Some((name.as_str().to_owned(), record))
                }
                _other_kind => None,
            });
        Ok(known.collect())
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
