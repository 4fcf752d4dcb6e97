//! What a tool takes: fields of one of a few shapes. The JSON schema that a client is shown and the check that its
//! arguments meet are made from the same description, so neither can say what the other does not.

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
    /// At most so many characters.
    Text {
        most: usize,
    },
    /// The same, and something to read in it.
    Words {
        most: usize,
    },
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
    /// Names with texts.
    Pairs {
        most: usize,
        most_text: usize,
    },
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
}

/// Schema of an object with these fields and no others.
pub(super) fn object_schema(fields: &[Field]) -> Map<String, Value> {
    let properties = fields.iter().map(|field| {
        let mut schema = field.shape.schema();
        if let Value::Object(schema) = &mut schema {
            schema.insert("description".to_owned(), field.help.into());
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
            Shape::Text { most } => json!({"type": "string", "maxLength": most}),
            Shape::Words { most } => {
                json!({"type": "string", "minLength": 1, "maxLength": most, "pattern": "\\S"})
            }
            Shape::OneOf(words) => json!({"type": "string", "enum": words}),
            Shape::Number { least, most } => {
                json!({"type": "integer", "minimum": least, "maximum": most})
            }
            Shape::Flag => json!({"type": "boolean"}),
            Shape::List { of, most } => {
                json!({"type": "array", "items": of.schema(), "maxItems": most})
            }
            Shape::Object(fields) => Value::Object(object_schema(fields)),
            Shape::Pairs { most, most_text } => json!({
                "type": "object",
                "maxProperties": most,
                "additionalProperties": {"type": "string", "maxLength": most_text},
            }),
        }
    }

    fn check(&self, value: &Value, at: &str) -> Result<(), Wrong> {
        match (self, value) {
            (Shape::Text { most } | Shape::Words { most }, Value::String(text)) => {
                let length = text.chars().count();
                if length > *most {
                    return wrong(
                        "too_large",
                        at,
                        format!("it has {length} characters, and may have {most}"),
                    );
                }
                let blank = matches!(self, Shape::Words { .. }) && text.trim().is_empty();
                if blank {
                    wrong("blank", at, "it is blank")
                } else {
                    Ok(())
                }
            }
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
            (Shape::Pairs { most, most_text }, Value::Object(given)) => {
                if given.len() > *most {
                    return wrong(
                        "too_many",
                        at,
                        format!("it has {} entries, and may have {most}", given.len()),
                    );
                }
                let text = Shape::Text { most: *most_text };
                given
                    .iter()
                    .try_for_each(|(name, value)| text.check(value, &format!("{at}.{name}")))
            }
            (shape, _) => wrong("wrong_type", at, format!("it must be {}", shape.kind())),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Shape::Text { .. } | Shape::Words { .. } | Shape::OneOf(_) => "a string",
            Shape::Number { .. } => "a whole number",
            Shape::Flag => "true or false",
            Shape::List { .. } => "a list",
            Shape::Object(_) => "an object",
            Shape::Pairs { .. } => "an object of strings",
        }
    }
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
#[derive(Clone, Debug, Default)]
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
        field("item", Shape::Words { most: 3 }, "").required(),
        field("reason", Shape::Text { most: 3 }, ""),
    ]);
    const FIELDS: [Field; 6] = [
        field("words", Shape::Words { most: 5 }, "w").required(),
        field("word", Shape::OneOf(&["a", "b"]), "o"),
        field("number", Shape::Number { least: 1, most: 9 }, "n"),
        field("items", Shape::List { of: &ITEM, most: 2 }, "i"),
        field("flag", Shape::Flag, "f"),
        field(
            "pairs",
            Shape::Pairs {
                most: 1,
                most_text: 2,
            },
            "p",
        ),
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
            "words": "äöüßé", "word": "b", "number": 9.0, "flag": false, "pairs": {"a": "bc"},
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
            (json!({"words": "a", "pairs": {"a": 1}}), "pairs.a"),
            (json!({"words": "a", "pairs": {"a": "", "b": ""}}), "pairs"),
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
    }
}
