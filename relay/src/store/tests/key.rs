//! Keys: round trip, order, and separation of tenants.

use proptest::prelude::*;
use uuid::Uuid;

use super::super::{KeyRange, KeyText, MAX_TEXT, MetaKey, RecordKey, RecordKind};

fn texts() -> impl Strategy<Value = KeyText> {
    // Short alphabets make adjacent keys and prefixes of each other likely.
    let text = prop_oneof!["[ab]{1,3}", "[a-z0-9_*-]{1,20}", "\\PC{1,30}"];
    text.prop_filter_map("fits a key", |text| KeyText::new(&text).ok())
}

fn ids() -> impl Strategy<Value = Uuid> {
    prop_oneof![any::<u128>(), 0..4_u128, Just(u128::MAX)].prop_map(Uuid::from_u128)
}

fn keys() -> impl Strategy<Value = RecordKey> {
    let metas = [
        MetaKey::Schema,
        MetaKey::Incarnation,
        MetaKey::RelayEpoch,
        MetaKey::Applied,
        MetaKey::Inherited,
        MetaKey::Migration,
    ];
    let named = (texts(), texts());
    let numbered = || (texts(), ids());
    prop_oneof![
        proptest::sample::select(metas.to_vec()).prop_map(RecordKey::Meta),
        (proptest::option::of(texts()), texts())
            .prop_map(|(tenant, name)| RecordKey::Control { tenant, name }),
        numbered().prop_map(|(tenant, task)| RecordKey::Spec { tenant, task }),
        numbered().prop_map(|(tenant, task)| RecordKey::Live { tenant, task }),
        numbered().prop_map(|(tenant, task)| RecordKey::Done { tenant, task }),
        (texts(), any::<[u8; 32]>())
            .prop_map(|(tenant, digest)| RecordKey::Idempotency { tenant, digest }),
        named.prop_map(|(tenant, name)| RecordKey::Profile { tenant, name }),
        numbered().prop_map(|(tenant, token)| RecordKey::Token { tenant, token }),
        numbered().prop_map(|(tenant, daemon)| RecordKey::Daemon { tenant, daemon }),
        (any::<[u8; 32]>(), ids()).prop_map(|(hash, task)| RecordKey::Body { hash, task }),
        numbered().prop_map(|(tenant, task)| RecordKey::Progress { tenant, task }),
        (texts(), ids(), any::<u64>()).prop_map(|(tenant, task, number)| RecordKey::Checkpoint {
            tenant,
            task,
            number
        }),
    ]
}

proptest! {
    #[test]
    fn a_key_is_decoded_from_its_bytes(key in keys()) {
        prop_assert_eq!(RecordKey::decode(&key.encode()), Some(key));
    }

    #[test]
    fn encoded_keys_sort_like_keys_and_none_is_a_prefix_of_another(a in keys(), b in keys()) {
        let (bytes_a, bytes_b) = (a.encode(), b.encode());
        prop_assert_eq!(bytes_a.cmp(&bytes_b), a.cmp(&b));
        prop_assert!(a == b || !bytes_a.starts_with(&bytes_b));
    }

    #[test]
    fn a_key_range_contains_only_its_tenant_and_kind(key in keys(), tenant in texts(), other in keys()) {
        let inside = |range: &KeyRange, key: &RecordKey| {
            let bytes = key.encode();
            range.start <= bytes && bytes < range.end
        };
        for key in [key, other] {
            let same = key.tenant() == tenant.as_str();
            prop_assert_eq!(inside(&KeyRange::tenant(&tenant), &key), same);
            let live = same && key.kind() == RecordKind::Live;
            prop_assert_eq!(inside(&KeyRange::of_kind(&tenant, RecordKind::Live), &key), live);
            prop_assert!(inside(&KeyRange::everything(), &key));
            if let RecordKey::Checkpoint { tenant: own, task, .. } = &key {
                prop_assert!(inside(&KeyRange::checkpoints(own, task), &key));
                let another = Uuid::from_u128(task.as_u128() ^ 1);
                prop_assert!(!inside(&KeyRange::checkpoints(own, &another), &key));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_rejected_or_encode_unchanged(bytes in any::<Vec<u8>>()) {
        if let Some(key) = RecordKey::decode(&bytes) {
            prop_assert_eq!(key.encode(), bytes);
        }
    }
}

#[test]
fn texts_that_would_break_the_order_are_refused() {
    assert!(KeyText::new("").is_err());
    assert!(KeyText::new("a\0b").is_err());
    assert!(KeyText::new(&"x".repeat(MAX_TEXT + 1)).is_err());
    assert!(KeyText::new(&"x".repeat(MAX_TEXT)).is_ok());
}
