//! Short lower-case names of enum values (`completed`, `needs_attention`).
//!
//! The build script generates them from the descriptor set, so there is no second list to
//! maintain.

use std::fmt;

/// An enum of the protocol whose values have short names. Implemented for every enum.
pub trait ShortName: Copy + Into<i32> + TryFrom<i32> + 'static {
    /// Number and short name of every value, in the order of the proto file.
    const NAMES: &'static [(i32, &'static str)];

    /// E.g. `needs_attention`.
    fn short_name(self) -> &'static str {
        find_short_name(Self::NAMES, self.into())
            .expect("the table contains every value of the enum")
    }

    /// Parses a short name. `unspecified` is not accepted.
    fn from_short_name(name: &str) -> Result<Self, UnknownShortName> {
        let found = Self::NAMES
            .iter()
            .find(|(number, short)| *number != 0 && *short == name);
        let number = found.map(|(number, _)| *number);
        number
            .and_then(|number| Self::try_from(number).ok())
            .ok_or_else(|| UnknownShortName::new::<Self>(name))
    }

    /// All names that `from_short_name` accepts.
    fn short_names() -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .iter()
            .filter(|(number, _)| *number != 0)
            .map(|(_, name)| *name)
    }
}

/// Short name of a number from the wire. A number that this version does not define is shown as
/// the number.
pub fn short_name_of<E: ShortName>(number: i32) -> String {
    find_short_name(E::NAMES, number).map_or_else(|| number.to_string(), str::to_owned)
}

pub(crate) fn find_short_name(names: &[(i32, &'static str)], number: i32) -> Option<&'static str> {
    names
        .iter()
        .find(|(known, _)| *known == number)
        .map(|(_, name)| *name)
}

/// A name that is no value of the enum, with all valid names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownShortName {
    pub given: String,
    pub known: Vec<&'static str>,
}

impl UnknownShortName {
    fn new<E: ShortName>(given: &str) -> Self {
        Self {
            given: given.to_owned(),
            known: E::short_names().collect(),
        }
    }
}

impl fmt::Display for UnknownShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown value '{}'; use one of {}",
            self.given,
            self.known.join(", ")
        )
    }
}

impl std::error::Error for UnknownShortName {}
