//! Opaque page tokens: the position where the next page begins, bound to the tenant, the list
//! and its filter.
//!
//! The digest detects a token of another list, tenant, filter or relay. It needs no secret, because
//! every read is confined to the caller's tenant, whatever the token contains.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use baton_core::ids::TenantId;
use prost::Message;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::limits;
use super::validate::{InvalidReason, ValidationResult, invalid_field};

const TOKEN_DIGEST_BYTES: usize = 16;

/// Creates and checks the page tokens of one list request.
#[derive(Debug)]
pub(crate) struct PageTokenCodec {
    context: Sha256,
}

impl PageTokenCodec {
    /// `conditions` is everything that selects or orders the rows. A token is valid only with
    /// the same conditions.
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

    /// The position where the page begins; none for the first page.
    pub(crate) fn position(&self, token: &str) -> ValidationResult<Option<Vec<u8>>> {
        if token.is_empty() {
            return Ok(None);
        }
        let within_limit = limits::PAGE_TOKEN.allows(token);
        let bytes = within_limit
            .then(|| URL_SAFE_NO_PAD.decode(token).ok())
            .flatten();
        let position = bytes.and_then(|bytes| {
            let (digest, position) = bytes.split_at_checked(TOKEN_DIGEST_BYTES)?;
            (digest == self.digest(position)).then(|| position.to_vec())
        });
        position.map(Some).ok_or_else(bad_token)
    }

    /// The same for positions that are ids.
    pub(crate) fn position_id(&self, token: &str) -> ValidationResult<Option<Uuid>> {
        let position = self.position(token)?;
        let id = position.map(|bytes| Uuid::from_slice(&bytes).map_err(|_| bad_token()));
        id.transpose()
    }

    fn digest(&self, position: &[u8]) -> [u8; TOKEN_DIGEST_BYTES] {
        let mut hash = self.context.clone();
        hash.update(position);
        let digest: [u8; 32] = hash.finalize().into();
        std::array::from_fn(|at| digest[at])
    }
}

pub(crate) fn bad_token() -> super::validate::InvalidField {
    invalid_field("page_token", InvalidReason::BadPageToken)
}

/// Rows of one page; zero means the default.
pub(crate) fn page_size(requested: u32) -> ValidationResult<usize> {
    page_size_within(requested, limits::PAGE_DEFAULT, limits::PAGE_MAX)
}

/// The same for a list with its own default and limit.
pub(crate) fn page_size_within(requested: u32, default: u32, max: u32) -> ValidationResult<usize> {
    let size = if requested == 0 { default } else { requested };
    if size > max {
        let (low, high) = (1, max.into());
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

/// As many rows as requested and as fit into a message, and the position of the last one if
/// there are more. A position without a row counts, but adds no message.
pub(crate) fn cut_page<P, M: Message>(
    rows: impl IntoIterator<Item = (P, Option<M>)>,
    size: usize,
) -> (Vec<M>, Option<P>) {
    let (mut messages, mut bytes, mut last) = (Vec::new(), 0, None);
    for (count, (position, row)) in rows.into_iter().enumerate() {
        let length = row.as_ref().map_or(0, Message::encoded_len);
        if count >= size || (count > 0 && bytes + length > limits::PAGE_BYTES) {
            return (messages, last);
        }
        bytes += length;
        messages.extend(row);
        last = Some(position);
    }
    (messages, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_valid_only_for_its_list_tenant_filter_and_relay() {
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
