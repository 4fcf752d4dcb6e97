//! Opaque page tokens: where a list goes on, bound to the tenant, the list and its conditions.
//!
//! The seal catches a token of another list, tenant, filter or relay. It is no secret and needs to be none: every read is
//! confined to the caller's tenant whatever the token says.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use baton_core::ids::TenantId;
use prost::Message;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::limits;
use super::validate::{InvalidReason, ValidationResult, invalid_field};

const TOKEN_DIGEST_BYTES: usize = 16;

/// One list as one caller asked for it.
#[derive(Debug)]
pub(crate) struct PageTokenCodec {
    context: Sha256,
}

impl PageTokenCodec {
    /// `conditions` is everything that selects or orders the rows; a token is good for the same ones only.
    pub(crate) fn new(incarnation: Uuid, tenant: &TenantId, list: &str, conditions: &[u8]) -> Self {
        let mut context = Sha256::new();
        context.update(incarnation.as_bytes());
        for part in [tenant.as_str().as_bytes(), list.as_bytes(), conditions] {
            context.update((part.len() as u64).to_be_bytes());
            context.update(part);
        }
        Self { context }
    }

    pub(crate) fn token(&self, position: &[u8]) -> String {
        let mut bytes = self.digest(position).to_vec();
        bytes.extend_from_slice(position);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Where the page begins; none for the first one.
    pub(crate) fn position(&self, token: &str) -> ValidationResult<Option<Vec<u8>>> {
        if token.is_empty() {
            return Ok(None);
        }
        let good = limits::PAGE_TOKEN.allows(token);
        let bytes = good.then(|| URL_SAFE_NO_PAD.decode(token).ok()).flatten();
        let opened = bytes.and_then(|bytes| {
            let (seal, position) = bytes.split_at_checked(TOKEN_DIGEST_BYTES)?;
            (seal == self.digest(position)).then(|| position.to_vec())
        });
        opened.map(Some).ok_or_else(bad_token)
    }

    /// The same for positions that are ids.
    pub(crate) fn position_id(&self, token: &str) -> ValidationResult<Option<Uuid>> {
        let position = self.position(token)?;
        let id = position.map(|bytes| Uuid::from_slice(&bytes).map_err(|_| bad_token()));
        id.transpose()
    }

    fn digest(&self, position: &[u8]) -> [u8; TOKEN_DIGEST_BYTES] {
        let mut seal = self.context.clone();
        seal.update(position);
        let digest: [u8; 32] = seal.finalize().into();
        std::array::from_fn(|at| digest[at])
    }
}

pub(crate) fn bad_token() -> super::validate::InvalidField {
    invalid_field("page_token", InvalidReason::BadPageToken)
}

/// Rows of one page: zero asks for the default.
pub(crate) fn page_size(asked: u32) -> ValidationResult<usize> {
    page_size_within(asked, limits::PAGE_DEFAULT, limits::PAGE_MAX)
}

/// The same for a list with its own default and limit.
pub(crate) fn page_size_within(asked: u32, default: u32, most: u32) -> ValidationResult<usize> {
    let size = if asked == 0 { default } else { asked };
    if size > most {
        let (low, high) = (1, most.into());
        return Err(invalid_field(
            "page_size",
            InvalidReason::OutOfRange {
                value: size.into(),
                low,
                high,
            },
        ));
    }
    Ok(size as usize)
}

/// As many rows as are asked for and fit into a message, and behind which the next page begins. A row may be an empty place.
pub(crate) fn cut_page<P, M: Message>(
    rows: impl IntoIterator<Item = (P, Option<M>)>,
    size: usize,
) -> (Vec<M>, Option<P>) {
    let (mut shown, mut bytes, mut last) = (Vec::new(), 0, None);
    for (count, (place, row)) in rows.into_iter().enumerate() {
        let length = row.as_ref().map_or(0, Message::encoded_len);
        if count >= size || (count > 0 && bytes + length > limits::PAGE_BYTES) {
            return (shown, last);
        }
        bytes += length;
        shown.extend(row);
        last = Some(place);
    }
    (shown, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_good_for_its_own_list_tenant_filter_and_relay_only() {
        let tenant = |name: &str| TenantId::new(name).unwrap();
        let (relay, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let own = PageTokenCodec::new(relay, &tenant("a"), "tasks", b"state=1");
        let at = Uuid::from_u128(77);
        let token = own.token(at.as_bytes());
        assert_eq!(own.position_id(&token), Ok(Some(at)));
        assert_eq!(own.position_id(""), Ok(None));
        let foreign = [
            PageTokenCodec::new(other, &tenant("a"), "tasks", b"state=1"),
            PageTokenCodec::new(relay, &tenant("b"), "tasks", b"state=1"),
            PageTokenCodec::new(relay, &tenant("a"), "daemons", b"state=1"),
            PageTokenCodec::new(relay, &tenant("a"), "tasks", b"state=2"),
        ];
        for paging in foreign {
            assert_eq!(
                paging.position_id(&token).unwrap_err().why,
                InvalidReason::BadPageToken
            );
        }
        let mut torn = token.clone();
        torn.pop();
        for bad in [torn, format!("{token}AAAA"), "?".into(), "A".repeat(4096)] {
            assert_eq!(
                own.position_id(&bad).unwrap_err().why,
                InvalidReason::BadPageToken,
                "{bad}"
            );
        }
    }
}
