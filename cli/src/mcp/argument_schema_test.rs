//! Tests of the argument schema: the published JSON schema and the check accept the same arguments.

use baton_validation::limits::TextLimit;
use serde_json::{Value, json};

use super::argument_schema::{ArgumentField, ArgumentShape, check_object, field, object_schema};

const ITEM: ArgumentShape = ArgumentShape::Object(&[
    field("item", ArgumentShape::NonBlankText(TextLimit::Chars(3)), "").required(),
    field("reason", ArgumentShape::Text(TextLimit::Chars(3)), ""),
]);
const FIELDS: [ArgumentField; 11] = [
    field(
        "words",
        ArgumentShape::NonBlankText(TextLimit::Chars(5)),
        "w",
    )
    .required(),
    field("word", ArgumentShape::OneOf(&["a", "b"]), "o"),
    field("number", ArgumentShape::Number { least: 1, most: 9 }, "n"),
    field("items", ArgumentShape::List { of: &ITEM, most: 2 }, "i"),
    field("flag", ArgumentShape::Flag, "f"),
    field("labels", ArgumentShape::Labels, "l"),
    field(
        "bytes",
        ArgumentShape::OptionalText(TextLimit::Bytes(4)),
        "b",
    ),
    field("id", ArgumentShape::Id, "i"),
    field("name", ArgumentShape::Name(TextLimit::Bytes(4)), "n"),
    field("path", ArgumentShape::Path, "p"),
    field("digest", ArgumentShape::Sha256, "d"),
];

fn check_sample(arguments: Value) -> Result<(), String> {
    let Value::Object(given) = arguments else {
        unreachable!()
    };
    check_object(&FIELDS, &given, "").map_err(|error| error.field)
}

#[test]
fn arguments_are_checked_and_the_wrong_one_is_named() {
    let whole = json!({
        "words": "äöüßé", "word": "b", "number": 9.0, "flag": false, "labels": {"a": "bc"},
        "bytes": "éé", "id": "0197c1de-7a4e-7d61-9f3c-2f1f6f2c9a10", "name": "", "path": "a/b", "digest": "",
        "items": [{"item": "x"}, {"item": "y", "reason": ""}],
    });
    assert_eq!(check_sample(whole), Ok(()));
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
            check_sample(arguments.clone()),
            Err(field.to_owned()),
            "{arguments}"
        );
    }
}

#[test]
fn the_schema_has_the_same_rules_as_the_check() {
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
