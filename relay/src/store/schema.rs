//! Schema numbers: which shape stored records have, and the way from one number to the next. Every value and every
//! journal entry carries the number that it was written with, so that what is read can always be brought up, and a
//! version that knows only older numbers refuses instead of guessing. ARCHITECTURE.md says when the number must grow.

use bytes::Bytes;

use super::{Key, Kind, Unreadable};

/// From one number to the next: a pure function of one record. The same body must always give the same one, for a
/// crash may make it ask again; and it must read everything that the older version could write.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What it does, for the log.
    pub name: &'static str,
    /// `None` when the body is not what the older version writes: such a record stays as it is, and counts as unreadable.
    pub record: fn(&Key, &[u8]) -> Option<Vec<u8>>,
}

/// All steps from schema 1 on, in order; the number is one more than there are.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    steps: &'static [Step],
}

impl Schema {
    /// Of this version. A new step goes to the end, and none is ever removed or changed.
    pub const CURRENT: Self = Self::of(&[]);

    /// Other steps than this version's, to try them out before they are.
    pub const fn of(steps: &'static [Step]) -> Self {
        Self { steps }
    }

    pub const fn number(self) -> u16 {
        1 + self.steps.len() as u16
    }

    /// The steps from this number on.
    pub(super) fn since(self, number: u16) -> &'static [Step] {
        let taken = usize::from(number.saturating_sub(1));
        self.steps.get(taken..).unwrap_or_default()
    }

    /// A body as this schema has it. Facts about the directory itself have one shape for all time.
    pub(crate) fn bring_up(self, from: u16, key: &Key, body: Bytes) -> Result<Bytes, Unreadable> {
        if key.kind() == Kind::Meta {
            return Ok(body);
        }
        let steps = self.since(from).iter();
        steps.zip(from..).try_fold(body, |body, (step, number)| {
            let next = (step.record)(key, &body).ok_or(Unreadable::Step(number));
            next.map(Bytes::from)
        })
    }

    /// The same for a key as it stands on the disk. What has no known key is nobody's to change.
    pub(super) fn bring_up_raw(
        self,
        from: u16,
        key: &[u8],
        body: Bytes,
    ) -> Result<Bytes, Unreadable> {
        if from >= self.number() {
            return Ok(body);
        }
        match Key::decode(key) {
            Some(key) => self.bring_up(from, &key, body),
            None => Ok(body),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KeyText, MetaKey};
    use super::*;

    fn says(word: &'static str) -> impl Fn(&[u8]) -> Vec<u8> {
        move |body| [body, word.as_bytes()].concat()
    }

    const STEPS: &[Step] = &[
        Step {
            name: "two",
            record: |_, body| Some(says(" two")(body)),
        },
        Step {
            name: "three",
            record: |_, body| (body != b"odd two").then(|| says(" three")(body)),
        },
    ];

    #[test]
    fn a_body_goes_through_the_steps_that_it_has_not_taken_and_facts_through_none() {
        let (schema, key) = (Schema::of(STEPS), control());
        let up = |from, body: &'static [u8]| schema.bring_up(from, &key, Bytes::from_static(body));
        assert_eq!(schema.number(), 3);
        assert_eq!(up(1, b"one").unwrap(), "one two three");
        assert_eq!(up(2, b"one").unwrap(), "one three");
        assert_eq!(up(3, b"one").unwrap(), "one");
        assert_eq!(up(1, b"odd").unwrap_err(), Unreadable::Step(2));
        let fact = Key::Meta(MetaKey::Schema);
        let kept = schema.bring_up(1, &fact, Bytes::from_static(b"fact"));
        assert_eq!(kept.unwrap(), "fact");
        assert_eq!(Schema::CURRENT.number(), super::super::SCHEMA);
    }

    fn control() -> Key {
        Key::Control {
            tenant: None,
            name: KeyText::new("switch").unwrap(),
        }
    }
}
