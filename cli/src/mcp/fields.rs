//! What a tool takes: fields of one of a few shapes. The JSON schema that a client is shown and the check that its
//! arguments meet are made from the same description, so neither can say what the other does not.

use baton_contract::bounds::{self, Size};
use baton_contract::check_path;
use serde_json::{Map, Value, json};

/// One argument, or one member of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) required: bool,
    pub(super) help: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Also empty.
    Text(Size),
    /// Empty is left out; anything else has something to read in it.
    Maybe(Size),
    /// Something to read.
    Words(Size),
    /// Of a task or an attempt.
    Id,
    /// A word for machines; empty is left out.
    Name(Size),
    /// Of a required file.
    Path,
    /// In hex; empty is left out.
    Sha256,
    OneOf(&'static [&'static str]),
    Number {
        least: u64,
        most: u64,
    },
    Flag,
    List {
        of: &'static Shape,
        most: usize,
    },
    Object(&'static [Field]),
    Labels,
}

/// What is wrong with arguments: where, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The relay's words for the same faults.
    pub(super) code: &'static str,
    pub(super) field: String,
    pub(super) why: String,
}

pub(super) const fn field(name: &'static str, shape: Shape, help: &'static str) -> Field {
    Field {
        name,
        shape,
        required: false,
        help,
    }
}

impl Field {
    pub(super) const fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }

    /// JSON schemas count characters only.
    fn words(&self) -> String {
        match self.shape {
            Shape::Text(most @ Size::Bytes(_))
            | Shape::Maybe(most @ Size::Bytes(_))
            | Shape::Words(most @ Size::Bytes(_)) => {
                format!("{} At most {most} of UTF-8.", self.help)
            }
            _counted => self.help.to_owned(),
        }
    }
}

/// Schema of an object with these fields and no others.
pub(super) fn object_schema(fields: &[Field]) -> Map<String, Value> {
    let properties = fields.iter().map(|field| {
        let mut schema = field.shape.schema();
        if let Value::Object(schema) = &mut schema {
            schema.insert("description".to_owned(), field.words().into());
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

/// Refuses what the schema does not allow: the first thing that is wrong.
pub(super) fn check_object(
    fields: &[Field],
    given: &Map<String, Value>,
    at: &str,
) -> Result<(), Wrong> {
    let path = |name: &str| match at {
        "" => name.to_owned(),
        at => format!("{at}.{name}"),
    };
    for field in fields {
        match given.get(field.name) {
            Some(value) => field.shape.check(value, &path(field.name))?,
            None if field.required => return wrong("missing", &path(field.name), "it is required"),
            None => {}
        }
    }
    let known = |name: &String| fields.iter().any(|field| field.name == name);
    match given.keys().find(|name| !known(name)) {
        Some(unknown) => wrong(
            "unknown_argument",
            &path(unknown),
            "there is no such argument",
        ),
        None => Ok(()),
    }
}

fn wrong(code: &'static str, field: &str, why: impl Into<String>) -> Result<(), Wrong> {
    Err(Wrong {
        code,
        field: field.to_owned(),
        why: why.into(),
    })
}

impl Shape {
    fn schema(&self) -> Value {
        match self {
            Shape::Text(most) => json!({"type": "string", "maxLength": most.most()}),
            Shape::Maybe(most) => {
                json!({"type": "string", "maxLength": most.most(), "pattern": "^$|\\S"})
            }
            Shape::Words(most) => {
                json!({"type": "string", "minLength": 1, "maxLength": most.most(), "pattern": "\\S"})
            }
            Shape::Id => json!({"type": "string", "pattern": ID_PATTERN}),
            Shape::Name(most) => {
                json!({"type": "string", "maxLength": most.most(), "pattern": NAME_PATTERN})
            }
            Shape::Path => {
                let most = baton_contract::PATH_BYTES_MAX;
                json!({"type": "string", "minLength": 1, "maxLength": most})
            }
            Shape::Sha256 => json!({"type": "string", "pattern": "^([0-9a-f]{64})?$"}),
            Shape::OneOf(words) => json!({"type": "string", "enum": words}),
            Shape::Number {
                least,
                most: u64::MAX,
            } => json!({"type": "integer", "minimum": least}),
            Shape::Number { least, most } => {
                json!({"type": "integer", "minimum": least, "maximum": most})
            }
            Shape::Flag => json!({"type": "boolean"}),
            Shape::List { of, most } => {
                json!({"type": "array", "items": of.schema(), "maxItems": most})
            }
            Shape::Object(fields) => Value::Object(object_schema(fields)),
            Shape::Labels => json!({
                "type": "object",
                "maxProperties": bounds::LABELS,
                "propertyNames": {"pattern": "^[A-Za-z0-9._/-]{1,63}$"},
                "additionalProperties": {"type": "string", "maxLength": bounds::LABEL_VALUE.most()},
            }),
        }
    }

    fn check(&self, value: &Value, at: &str) -> Result<(), Wrong> {
        match (self, value) {
            (Shape::Text(most), Value::String(text)) => check_text(text, *most, at),
            (Shape::Words(most), Value::String(text)) => {
                check_text(text, *most, at)?;
                match text.trim() {
                    "" => wrong("blank", at, "it is blank"),
                    _said => Ok(()),
                }
            }
            (Shape::Maybe(_) | Shape::Name(_) | Shape::Sha256, Value::String(text))
                if text.is_empty() =>
            {
                Ok(())
            }
            (Shape::Maybe(most), Value::String(_)) => Shape::Words(*most).check(value, at),
            (Shape::Id, Value::String(text)) => match is_id(text) {
                true => Ok(()),
                false if text.trim().is_empty() => wrong("blank", at, "it is blank"),
                false => wrong("malformed_id", at, "it is not an id"),
            },
            (Shape::Name(most), Value::String(text)) => {
                check_text(text, *most, at)?;
                let rule = "use a-z, 0-9, '-', '_' and '.', beginning with a letter or digit";
                match bounds::is_name(text) {
                    true => Ok(()),
                    false => wrong("malformed_name", at, rule),
                }
            }
            (Shape::Path, Value::String(text)) => match check_path(text) {
                Ok(()) => Ok(()),
                Err(fault) => wrong("bad_path", at, fault.rule()),
            },
            (Shape::Sha256, Value::String(text)) => match bounds::is_sha256_hex(text) {
                true => Ok(()),
                false => wrong("bad_digest", at, "it is not a SHA-256 of 64 digits 0-9a-f"),
            },
            (Shape::OneOf(words), Value::String(word)) => match words.contains(&word.as_str()) {
                true => Ok(()),
                false => wrong(
                    "unknown_enum_value",
                    at,
                    format!("it is one of {}", words.join(", ")),
                ),
            },
            (Shape::Number { least, most }, Value::Number(_)) => match whole(value) {
                Some(number) if (*least..=*most).contains(&number) => Ok(()),
                Some(_) | None => wrong(
                    "out_of_range",
                    at,
                    format!("it is a whole number from {least} to {most}"),
                ),
            },
            (Shape::Flag, Value::Bool(_)) => Ok(()),
            (Shape::List { of, most }, Value::Array(items)) => {
                if items.len() > *most {
                    return wrong(
                        "too_many",
                        at,
                        format!("it has {} entries, and may have {most}", items.len()),
                    );
                }
                let mut entries = items.iter().enumerate();
                entries.try_for_each(|(index, item)| of.check(item, &format!("{at}[{index}]")))
            }
            (Shape::Object(fields), Value::Object(given)) => check_object(fields, given, at),
            (Shape::Labels, Value::Object(given)) => check_labels(given, at),
            (shape, _) => wrong("wrong_type", at, format!("it must be {}", shape.kind())),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Shape::Text(_)
            | Shape::Maybe(_)
            | Shape::Words(_)
            | Shape::Id
            | Shape::Name(_)
            | Shape::Path
            | Shape::Sha256
            | Shape::OneOf(_) => "a string",
            Shape::Number { .. } => "a whole number",
            Shape::Flag => "true or false",
            Shape::List { .. } => "a list",
            Shape::Object(_) => "an object",
            Shape::Labels => "an object of strings",
        }
    }
}

const ID_PATTERN: &str = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$";
const NAME_PATTERN: &str = "^([a-z0-9][a-z0-9._-]*)?$";

/// In the one spelling that the relay takes.
fn is_id(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|b| b == b'-' || hex(b))
}

pub(super) fn check_text(text: &str, most: Size, at: &str) -> Result<(), Wrong> {
    if !most.holds(text) {
        return wrong("too_large", at, format!("it may have {most}"));
    }
    match text.contains('\0') {
        true => wrong("zero_byte", at, "it has a zero byte"),
        false => Ok(()),
    }
}

fn check_labels(given: &Map<String, Value>, at: &str) -> Result<(), Wrong> {
    let most = bounds::LABELS;
    if given.len() > most {
        let why = format!("it has {} entries, and may have {most}", given.len());
        return wrong("too_many", at, why);
    }
    for (key, value) in given {
        let at = format!("{at}.{key}");
        let Value::String(value) = value else {
            return wrong("wrong_type", &at, "it must be a string");
        };
        if !bounds::is_label_key(key) {
            let rule = "a key has 1 to 63 of A-Z, a-z, 0-9, '-', '_', '.' and '/'";
            return wrong("bad_label", &at, rule);
        }
        if !bounds::is_label_value(value) {
            let rule = "a value has at most 256 bytes and no control characters";
            return wrong("bad_label", &at, rule);
        }
    }
    Ok(())
}

/// JSON knows one kind of number: 3.0 is as whole as 3.
fn whole(value: &Value) -> Option<u64> {
    let fraction = || {
        let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
        format!("{number:.0}").parse().ok()
    };
    value.as_u64().or_else(fraction)
}

/// Arguments that met their fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Args(pub(super) Map<String, Value>);

impl Args {
    /// Empty when it was not given.
    pub(super) fn text(&self, name: &str) -> String {
        self.given_text(name).unwrap_or_default()
    }

    pub(super) fn given_text(&self, name: &str) -> Option<String> {
        self.0.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(whole)
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name).and_then(Value::as_bool)
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        let texts = self.list(name).filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    }

    pub(super) fn objects(&self, name: &str) -> impl Iterator<Item = Args> {
        self.list(name)
            .filter_map(Value::as_object)
            .map(|object| Args(object.clone()))
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

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: Shape = Shape::Object(&[
        field("item", Shape::Words(Size::Chars(3)), "").required(),
        field("reason", Shape::Text(Size::Chars(3)), ""),
    ]);
    const FIELDS: [Field; 11] = [
        field("words", Shape::Words(Size::Chars(5)), "w").required(),
        field("word", Shape::OneOf(&["a", "b"]), "o"),
        field("number", Shape::Number { least: 1, most: 9 }, "n"),
        field("items", Shape::List { of: &ITEM, most: 2 }, "i"),
        field("flag", Shape::Flag, "f"),
        field("labels", Shape::Labels, "l"),
        field("bytes", Shape::Maybe(Size::Bytes(4)), "b"),
        field("id", Shape::Id, "i"),
        field("name", Shape::Name(Size::Bytes(4)), "n"),
        field("path", Shape::Path, "p"),
        field("digest", Shape::Sha256, "d"),
    ];

    fn judged(arguments: Value) -> Result<(), String> {
        let Value::Object(given) = arguments else {
            unreachable!()
        };
        check_object(&FIELDS, &given, "").map_err(|wrong| wrong.field)
    }

    #[test]
    fn what_a_schema_allows_passes_and_what_it_does_not_is_named() {
        let whole = json!({
            "words": "äöüßé", "word": "b", "number": 9.0, "flag": false, "labels": {"a": "bc"},
            "bytes": "éé", "id": "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10", "name": "", "path": "a/b", "digest": "",
            "items": [{"item": "x"}, {"item": "y", "reason": ""}],
        });
        assert_eq!(judged(whole), Ok(()));
        for (arguments, field) in [
            (json!({}), "words"),
            (json!({"words": " \t"}), "words"),
            (json!({"words": "sixsix"}), "words"),
            (json!({"words": null}), "words"),
            (json!({"words": ["a"]}), "words"),
            (json!({"words": "a", "word": "c"}), "word"),
            (json!({"words": "a", "number": 0}), "number"),
            (json!({"words": "a", "number": 1.5}), "number"),
            (json!({"words": "a", "number": -1}), "number"),
            (json!({"words": "a", "items": "abc"}), "items"),
            (
                json!({"words": "a", "items": [{"item": "a"}, {}]}),
                "items[1].item",
            ),
            (
                json!({"words": "a", "items": [{"item": "a", "x": 1}]}),
                "items[0].x",
            ),
            (json!({"words": "a\0"}), "words"),
            (json!({"words": "a", "labels": {"a": 1}}), "labels.a"),
            (json!({"words": "a", "labels": {"a b": ""}}), "labels.a b"),
            (json!({"words": "a", "bytes": "ééx"}), "bytes"),
            (json!({"words": "a", "bytes": " "}), "bytes"),
            (
                json!({"words": "a", "id": "0197C1DE-7A4E-7D61-9F3C-2F1F6F2C9A10"}),
                "id",
            ),
            (json!({"words": "a", "id": ""}), "id"),
            (json!({"words": "a", "name": "Ab"}), "name"),
            (json!({"words": "a", "path": "../b"}), "path"),
            (json!({"words": "a", "digest": "ab"}), "digest"),
            (json!({"words": "a", "other": 1}), "other"),
        ] {
            assert_eq!(
                judged(arguments.clone()),
                Err(field.to_owned()),
                "{arguments}"
            );
        }
    }

    #[test]
    fn the_schema_says_the_same() {
        let schema = Value::Object(object_schema(&FIELDS));
        assert_eq!(schema["required"], json!(["words"]));
        assert_eq!(schema["additionalProperties"], json!(false));
        assert_eq!(
            schema["properties"]["items"]["items"]["required"],
            json!(["item"])
        );
        assert_eq!(schema["properties"]["words"]["pattern"], "\\S");
        assert_eq!(schema["properties"]["words"]["description"], "w");
        let counted = &schema["properties"]["bytes"]["description"];
        assert_eq!(counted, "b At most 4 bytes of UTF-8.");
    }
}
