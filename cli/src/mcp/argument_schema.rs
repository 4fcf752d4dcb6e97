//! The arguments of a tool: named fields, each of one of a few shapes. The published JSON schema
//! and the check of a call's arguments are made from the same description, so they cannot
//! disagree.

use baton_validation::check_path;
use baton_validation::limits::{self, TextLimit};
use serde_json::{Map, Value, json};

/// One argument, or one member of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArgumentField {
    pub(super) name: &'static str,
    pub(super) shape: ArgumentShape,
    pub(super) required: bool,
    pub(super) help: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ArgumentShape {
    /// May be empty.
    Text(TextLimit),
    /// Empty counts as absent; otherwise it must not be blank.
    OptionalText(TextLimit),
    /// Must not be blank.
    NonBlankText(TextLimit),
    /// The id of a task or an attempt.
    Id,
    /// A machine-readable name; empty counts as absent.
    Name(TextLimit),
    /// The path of a required file.
    Path,
    /// A digest in hex; empty counts as absent.
    Sha256,
    OneOf(&'static [&'static str]),
    Number {
        least: u64,
        most: u64,
    },
    Flag,
    List {
        of: &'static ArgumentShape,
        most: usize,
    },
    Object(&'static [ArgumentField]),
    Labels,
}

/// Which argument is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArgumentError {
    /// The code that the relay uses for the same fault.
    pub(super) code: &'static str,
    pub(super) field: String,
    pub(super) why: String,
}

pub(super) const fn field(
    name: &'static str,
    shape: ArgumentShape,
    help: &'static str,
) -> ArgumentField {
    ArgumentField {
        name,
        shape,
        required: false,
        help,
    }
}

impl ArgumentField {
    pub(super) const fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }

    /// Adds a limit in bytes to the help text, because a JSON schema can only count characters.
    fn description(&self) -> String {
        match self.shape {
            ArgumentShape::Text(most @ TextLimit::Bytes(_))
            | ArgumentShape::OptionalText(most @ TextLimit::Bytes(_))
            | ArgumentShape::NonBlankText(most @ TextLimit::Bytes(_)) => {
                format!("{} At most {most} of UTF-8.", self.help)
            }
            _counted => self.help.to_owned(),
        }
    }
}

/// Schema of an object with these fields and no others.
pub(super) fn object_schema(fields: &[ArgumentField]) -> Map<String, Value> {
    let properties = fields.iter().map(|field| {
        let mut schema = field.shape.schema();
        if let Value::Object(schema) = &mut schema {
            schema.insert("description".to_owned(), field.description().into());
        }
        (field.name.to_owned(), schema)
    });
    let required = fields.iter().filter(|field| field.required);
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), Value::Object(properties.collect()));
    schema.insert(
        "required".to_owned(),
        required.map(|field| field.name).collect(),
    );
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

/// Returns the first argument that the schema does not allow.
pub(super) fn check_object(
    fields: &[ArgumentField],
    given: &Map<String, Value>,
    at: &str,
) -> Result<(), ArgumentError> {
    let path = |name: &str| match at {
        "" => name.to_owned(),
        at => format!("{at}.{name}"),
    };
    for field in fields {
        match given.get(field.name) {
            Some(value) => field.shape.check(value, &path(field.name))?,
            None if field.required => {
                return argument_error("missing", &path(field.name), "it is required");
            }
            None => {}
        }
    }
    let known = |name: &String| fields.iter().any(|field| field.name == name);
    match given.keys().find(|name| !known(name)) {
        Some(unknown) => argument_error(
            "unknown_argument",
            &path(unknown),
            "there is no such argument",
        ),
        None => Ok(()),
    }
}

fn argument_error(
    code: &'static str,
    field: &str,
    why: impl Into<String>,
) -> Result<(), ArgumentError> {
    Err(ArgumentError {
        code,
        field: field.to_owned(),
        why: why.into(),
    })
}

impl ArgumentShape {
    fn schema(&self) -> Value {
        match self {
            ArgumentShape::Text(most) => json!({"type": "string", "maxLength": most.limit()}),
            ArgumentShape::OptionalText(most) => {
                json!({"type": "string", "maxLength": most.limit(), "pattern": "^$|\\S"})
            }
            ArgumentShape::NonBlankText(most) => {
                json!({"type": "string", "minLength": 1, "maxLength": most.limit(), "pattern": "\\S"})
            }
            ArgumentShape::Id => json!({"type": "string", "pattern": ID_PATTERN}),
            ArgumentShape::Name(most) => {
                json!({"type": "string", "maxLength": most.limit(), "pattern": NAME_PATTERN})
            }
            ArgumentShape::Path => {
                let most = baton_validation::PATH_BYTES_MAX;
                json!({"type": "string", "minLength": 1, "maxLength": most})
            }
            ArgumentShape::Sha256 => json!({"type": "string", "pattern": "^([0-9a-f]{64})?$"}),
            ArgumentShape::OneOf(values) => json!({"type": "string", "enum": values}),
            ArgumentShape::Number {
                least,
                most: u64::MAX,
            } => json!({"type": "integer", "minimum": least}),
            ArgumentShape::Number { least, most } => {
                json!({"type": "integer", "minimum": least, "maximum": most})
            }
            ArgumentShape::Flag => json!({"type": "boolean"}),
            ArgumentShape::List { of, most } => {
                json!({"type": "array", "items": of.schema(), "maxItems": most})
            }
            ArgumentShape::Object(fields) => Value::Object(object_schema(fields)),
            ArgumentShape::Labels => json!({
                "type": "object",
                "maxProperties": limits::MAX_LABELS,
                "propertyNames": {"pattern": "^[A-Za-z0-9._/-]{1,63}$"},
                "additionalProperties": {"type": "string", "maxLength": limits::LABEL_VALUE.limit()},
            }),
        }
    }

    fn check(&self, value: &Value, at: &str) -> Result<(), ArgumentError> {
        match (self, value) {
            (shape, Value::String(text)) => shape.check_string(text, at),
            (ArgumentShape::Number { least, most }, Value::Number(_)) => {
                match whole_number(value) {
                    Some(number) if (*least..=*most).contains(&number) => Ok(()),
                    Some(_) | None => argument_error(
                        "out_of_range",
                        at,
                        format!("it must be a whole number from {least} to {most}"),
                    ),
                }
            }
            (ArgumentShape::Flag, Value::Bool(_)) => Ok(()),
            (ArgumentShape::List { of, most }, Value::Array(items)) => {
                check_count(items.len(), *most, at)?;
                let mut entries = items.iter().enumerate();
                entries.try_for_each(|(index, item)| of.check(item, &format!("{at}[{index}]")))
            }
            (ArgumentShape::Object(fields), Value::Object(given)) => {
                check_object(fields, given, at)
            }
            (ArgumentShape::Labels, Value::Object(given)) => check_labels(given, at),
            (shape, _) => shape.wrong_type(at),
        }
    }

    fn check_string(&self, text: &str, at: &str) -> Result<(), ArgumentError> {
        match self {
            ArgumentShape::Text(most) => check_text(text, *most, at),
            ArgumentShape::NonBlankText(most) => {
                check_text(text, *most, at)?;
                match text.trim() {
                    "" => argument_error("blank", at, "it is blank"),
                    _not_blank => Ok(()),
                }
            }
            ArgumentShape::OptionalText(_) | ArgumentShape::Name(_) | ArgumentShape::Sha256
                if text.is_empty() =>
            {
                Ok(())
            }
            ArgumentShape::OptionalText(most) => {
                ArgumentShape::NonBlankText(*most).check_string(text, at)
            }
            ArgumentShape::Id => match is_id(text) {
                true => Ok(()),
                false if text.trim().is_empty() => argument_error("blank", at, "it is blank"),
                false => argument_error("malformed_id", at, "it is not an id"),
            },
            ArgumentShape::Name(most) => {
                check_text(text, *most, at)?;
                let rule = "use a-z, 0-9, '-', '_' and '.', beginning with a letter or digit";
                match limits::is_name(text) {
                    true => Ok(()),
                    false => argument_error("malformed_name", at, rule),
                }
            }
            ArgumentShape::Path => match check_path(text) {
                Ok(()) => Ok(()),
                Err(fault) => argument_error("bad_path", at, fault.fix_hint()),
            },
            ArgumentShape::Sha256 => match limits::is_sha256_hex(text) {
                true => Ok(()),
                false => {
                    argument_error("bad_digest", at, "it is not a SHA-256 of 64 digits 0-9a-f")
                }
            },
            ArgumentShape::OneOf(values) => match values.contains(&text) {
                true => Ok(()),
                false => argument_error(
                    "unknown_enum_value",
                    at,
                    format!("it must be one of {}", values.join(", ")),
                ),
            },
            ArgumentShape::Number { .. }
            | ArgumentShape::Flag
            | ArgumentShape::List { .. }
            | ArgumentShape::Object(_)
            | ArgumentShape::Labels => self.wrong_type(at),
        }
    }

    fn wrong_type(&self, at: &str) -> Result<(), ArgumentError> {
        argument_error("wrong_type", at, format!("it must be {}", self.type_name()))
    }

    fn type_name(&self) -> &'static str {
        match self {
            ArgumentShape::Text(_)
            | ArgumentShape::OptionalText(_)
            | ArgumentShape::NonBlankText(_)
            | ArgumentShape::Id
            | ArgumentShape::Name(_)
            | ArgumentShape::Path
            | ArgumentShape::Sha256
            | ArgumentShape::OneOf(_) => "a string",
            ArgumentShape::Number { .. } => "a whole number",
            ArgumentShape::Flag => "true or false",
            ArgumentShape::List { .. } => "a list",
            ArgumentShape::Object(_) => "an object",
            ArgumentShape::Labels => "an object of strings",
        }
    }
}

const ID_PATTERN: &str = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$";
const NAME_PATTERN: &str = "^([a-z0-9][a-z0-9._-]*)?$";

/// Whether the text is a UUID in the only spelling that the relay accepts.
fn is_id(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|b| b == b'-' || hex(b))
}

pub(super) fn check_text(text: &str, most: TextLimit, at: &str) -> Result<(), ArgumentError> {
    if !most.allows(text) {
        return argument_error("too_large", at, format!("it may have at most {most}"));
    }
    match text.contains('\0') {
        true => argument_error("zero_byte", at, "it has a zero byte"),
        false => Ok(()),
    }
}

fn check_count(entries: usize, most: usize, at: &str) -> Result<(), ArgumentError> {
    match entries > most {
        true => argument_error(
            "too_many",
            at,
            format!("it has {entries} entries; the maximum is {most}"),
        ),
        false => Ok(()),
    }
}

fn check_labels(given: &Map<String, Value>, at: &str) -> Result<(), ArgumentError> {
    check_count(given.len(), limits::MAX_LABELS, at)?;
    for (key, value) in given {
        let at = format!("{at}.{key}");
        let Value::String(value) = value else {
            return argument_error("wrong_type", &at, "it must be a string");
        };
        if !limits::is_label_key(key) {
            let rule = "a key has 1 to 63 of A-Z, a-z, 0-9, '-', '_', '.' and '/'";
            return argument_error("bad_label", &at, rule);
        }
        if !limits::is_label_value(value) {
            let rule = "a value has at most 256 bytes and no control characters";
            return argument_error("bad_label", &at, rule);
        }
    }
    Ok(())
}

/// JSON has one kind of number, so 3.0 is accepted as 3.
fn whole_number(value: &Value) -> Option<u64> {
    let fraction = || {
        let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
        format!("{number:.0}").parse().ok()
    };
    value.as_u64().or_else(fraction)
}

/// Arguments that have passed [`check_object`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct McpArguments(pub(super) Map<String, Value>);

impl McpArguments {
    /// Empty if the argument is absent.
    pub(super) fn text(&self, name: &str) -> String {
        self.given_text(name).unwrap_or_default()
    }

    pub(super) fn given_text(&self, name: &str) -> Option<String> {
        self.0.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(whole_number)
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name).and_then(Value::as_bool)
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let texts = self.list(name).filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    }

    pub(super) fn objects(&self, name: &str) -> impl Iterator<Item = McpArguments> {
        self.list(name)
            .filter_map(Value::as_object)
            .map(|object| McpArguments(object.clone()))
    }

    pub(super) fn pairs(&self, name: &str) -> impl Iterator<Item = (String, String)> {
        let pairs = self.0.get(name).and_then(Value::as_object);
        pairs.into_iter().flatten().filter_map(|(name, value)| {
            let value = value.as_str()?;
            Some((name.clone(), value.to_owned()))
        })
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.0
            .get(name)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    }
}
