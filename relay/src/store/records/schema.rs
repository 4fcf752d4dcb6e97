//! Schema numbers: which shape stored records have, and the way from one number to the next. Every value and every
//! journal entry carries the number that it was written with, so that what is read can always be brought up, and a
//! version that knows only older numbers refuses instead of guessing. ARCHITECTURE.md says when the number must grow.

use bytes::Bytes;

use crate::store::{RecordKey, RecordKind, UnreadableReason};

/// From one number to the next: a pure function of one record. The same body must always give the same one, for a
/// crash may make it ask again; and it must read everything that the older version could write.
#[derive(Clone, Copy, Debug)]
pub struct SchemaStep {
    /// What it does, for the log.
    pub name: &'static str,
    /// `None` when the body is not what the older version writes: such a record stays as it is, and counts as unreadable.
    pub migrate_record: fn(&RecordKey, &[u8]) -> Option<Vec<u8>>,
}

/// All steps from schema 1 on, in order; the number is one more than there are.
#[derive(Clone, Copy, Debug)]
pub struct RecordSchema {
    steps: &'static [SchemaStep],
}

impl RecordSchema {
    /// Of this version. A new step goes to the end, and none is ever removed or changed.
    pub const CURRENT: Self = Self::of(&[]);

    /// Other steps than this version's, to try them out before they are.
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

    /// A body as this schema has it. Facts about the directory itself have one shape for all time.
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

    /// The same for a key as it stands on the disk. What has no known key is nobody's to change.
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
    fn a_body_goes_through_the_steps_that_it_has_not_taken_and_facts_through_none() {
        let (schema, key) = (RecordSchema::of(STEPS), control());
        let up =
            |from, body: &'static [u8]| schema.migrate_body(from, &key, Bytes::from_static(body));
        assert_eq!(schema.number(), 3);
        assert_eq!(up(1, b"one").unwrap(), "one two three");
        assert_eq!(up(2, b"one").unwrap(), "one three");
        assert_eq!(up(3, b"one").unwrap(), "one");
        assert_eq!(up(1, b"odd").unwrap_err(), UnreadableReason::Step(2));
        let fact = RecordKey::Meta(MetaKey::Schema);
        let kept = schema.migrate_body(1, &fact, Bytes::from_static(b"fact"));
        assert_eq!(kept.unwrap(), "fact");
        assert_eq!(RecordSchema::CURRENT.number(), crate::store::SCHEMA);
    }

    fn control() -> RecordKey {
        RecordKey::Control {
            tenant: None,
            name: KeyText::new("switch").unwrap(),
        }
    }
}
