//! The relay's advice in the words of this program: it speaks of fields, people here have flags.

/// What to try next, for a refusal with this machine code; the relay's own words where they fit.
pub(crate) fn in_flags(code: &str, hint: String) -> String {
    let own = match code {
        "unsafe_retry" => {
            "read what it did with `baton output TASK`, then repeat this with --allow-unsafe"
        }
        "contract_unmet" => {
            "let the agent make the missing files, or complete it without them with --override"
        }
        "reason_missing" => "say why with --reason TEXT",
        _as_it_is => return hint,
    };
    own.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_flags_and_the_rest_stays() {
        let hint = "retry with allow_unsafe".to_owned();
        assert!(in_flags("unsafe_retry", hint.clone()).contains("--allow-unsafe"));
        assert_eq!(in_flags("unknown_task", hint.clone()), hint);
    }
}
