//! Schema numbers: the format of stored records, and the steps from one number to the next.
//! Every value and journal entry carries the number it was written with. So everything older
//! can be migrated when it is read, and a version that supports only older numbers refuses the
//! data instead of guessing. docs/design/storage.md explains when the number must grow.

use bytes::Bytes;

use crate::store::{RecordKey, RecordKind, UnreadableReason};

/// A migration from one number to the next: a pure function of one record. The same body must
/// always give the same result, because a crash may repeat the step. It must accept everything
/// that the older version could write.
#[derive(Clone, Copy, Debug)]
pub struct SchemaStep {
    /// What the step does, for the log.
    pub name: &'static str,
    /// `None` if the body is not valid in the older schema. The record then stays unchanged and
    /// counts as unreadable.
    pub migrate_record: fn(&RecordKey, &[u8]) -> Option<Vec<u8>>,
}

/// All steps from schema 1 on, in order. The schema number is one more than their count.
#[derive(Clone, Copy, Debug)]
pub struct RecordSchema {
    steps: &'static [SchemaStep],
}

impl RecordSchema {
    /// The schema of this version. A new step goes to the end; none is ever removed or changed.
    pub const CURRENT: Self = Self::of(&[]);

    /// A schema with other steps than this version's, for tests.
    pub const fn of(steps: &'static [SchemaStep]) -> Self {
        Self { steps }
    }

    pub const fn number(self) -> u16 {
        1 + self.steps.len() as u16
    }

    /// The steps from this number on.
    pub(crate) fn steps_from(self, number: u16) -> &'static [SchemaStep] {
        let taken = usize::from(number.saturating_sub(1));
        self.steps.get(taken..).unwrap_or_default()
    }

    /// Migrates a body to this schema. The format of facts about the directory itself never
    /// changes.
    pub(crate) fn migrate_body(
        self,
        from: u16,
        key: &RecordKey,
        body: Bytes,
    ) -> Result<Bytes, UnreadableReason> {
        if key.kind() == RecordKind::Meta {
            return Ok(body);
        }
        let steps = self.steps_from(from).iter();
        steps.zip(from..).try_fold(body, |body, (step, number)| {
            let next = (step.migrate_record)(key, &body).ok_or(UnreadableReason::Step(number));
            next.map(Bytes::from)
        })
    }

    /// Like `migrate_body`, for an encoded key. A record with an unknown key is not changed.
    pub(crate) fn migrate_raw(
        self,
        from: u16,
        key: &[u8],
        body: Bytes,
    ) -> Result<Bytes, UnreadableReason> {
        if from >= self.number() {
            return Ok(body);
        }
        match RecordKey::decode(key) {
            Some(key) => self.migrate_body(from, &key, body),
            None => Ok(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{KeyText, MetaKey};

    fn append_word(word: &'static str) -> impl Fn(&[u8]) -> Vec<u8> {
        move |body| [body, word.as_bytes()].concat()
    }

    const STEPS: &[SchemaStep] = &[
        SchemaStep {
            name: "two",
            migrate_record: |_, body| Some(append_word(" two")(body)),
        },
        SchemaStep {
            name: "three",
            migrate_record: |_, body| (body != b"odd two").then(|| append_word(" three")(body)),
        },
    ];

    #[test]
    fn a_body_is_migrated_by_the_missing_steps_and_meta_records_by_none() {
        let (schema, key) = (RecordSchema::of(STEPS), control());
        let up =
            |from, body: &'static [u8]| schema.migrate_body(from, &key, Bytes::from_static(body));
        assert_eq!(schema.number(), 3);
        assert_eq!(up(1, b"one").unwrap(), "one two three");
        assert_eq!(up(2, b"one").unwrap(), "one three");
        assert_eq!(up(3, b"one").unwrap(), "one");
        assert_eq!(up(1, b"odd").unwrap_err(), UnreadableReason::Step(2));
        let fact = RecordKey::Meta(MetaKey::Schema);
        let unchanged = schema.migrate_body(1, &fact, Bytes::from_static(b"fact"));
        assert_eq!(unchanged.unwrap(), "fact");
        assert_eq!(RecordSchema::CURRENT.number(), crate::store::SCHEMA);
    }

    fn control() -> RecordKey {
        RecordKey::Control {
            tenant: None,
            name: KeyText::new("switch").unwrap(),
        }
    }
}
