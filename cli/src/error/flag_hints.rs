//! Translates the relay's error texts for the command line: request fields become flags.

/// Request fields and the flags or arguments that set them.
const FIELD_FLAGS: [(&str, &str); 47] = [
    ("agent_scope", "--agent-scope"),
    ("attempt_id", "ATTEMPT"),
    ("block.reason", "--reason"),
    ("daemon", "DAEMON"),
    ("idempotency_key", "--idempotency-key"),
    ("input_id", "INPUT"),
    ("lease.attempt_id", "ATTEMPT"),
    ("lease.task_id", "TASK"),
    ("lease.token", "BATON_LEASE_TOKEN"),
    ("name", "--name"),
    ("permission.message", "--message"),
    ("permission.scope", "--for-attempt"),
    ("question.labels", "--option"),
    ("question.text", "--text"),
    ("reason", "--reason"),
    ("spec.agent", "--agent"),
    ("spec.agent_held", "--agent-held"),
    ("spec.agent_scope", "--agent-scope"),
    ("spec.command.argv", "the command after --"),
    ("spec.contract.required_artifacts", "--require"),
    ("spec.contract.required_artifacts.path", "--require"),
    ("spec.conversation_id", "--conversation"),
    ("spec.cwd", "--cwd"),
    ("spec.dispatch_policy", "--fail-fast"),
    ("spec.env", "--env"),
    ("spec.goal", "--goal"),
    ("spec.labels", "--note"),
    ("spec.lease_ttl_ms", "--lease"),
    ("spec.options.context_refs", "--context"),
    ("spec.options.context_refs.path", "--context"),
    ("spec.options.effort", "--effort"),
    ("spec.options.instructions", "--instructions-file"),
    ("spec.options.model", "--model"),
    ("spec.options.permission_mode", "--permission-mode"),
    ("spec.placement.capabilities", "--capability"),
    ("spec.placement.daemon", "--daemon"),
    ("spec.placement.labels", "--label"),
    ("spec.priority", "--priority"),
    ("spec.profile", "--deadline"),
    ("spec.profile_name", "--profile"),
    ("spec.prompt", "--prompt"),
    ("spec.workspace.root", "--workspace"),
    ("task_id", "TASK"),
    ("tenant", "--tenant"),
    ("update.completed_items", "--done"),
    ("update.failed_items.item", "--failed"),
    ("update.failed_items.reason", "--failed"),
];

fn flag_for_field(field: &str) -> Option<&'static str> {
    let known = FIELD_FLAGS.iter().find(|(known, _)| *known == field);
    known.map(|(_, flag)| *flag)
}

/// Replaces fields by flags: the field at fault, and every dotted name, since that cannot be an
/// ordinary word.
pub(crate) fn replace_fields_with_flags(field: &str, message: &str) -> String {
    let replace = |word: &str| match flag_for_field(word) {
        Some(flag) if word == field || word.contains('.') => flag.to_owned(),
        Some(_) | None => word.to_owned(),
    };
    let words: Vec<String> = message.split(' ').map(replace).collect();
    words.join(" ")
}

/// The hint for a rejection with this machine code. Most codes keep the relay's own hint.
pub(crate) fn hint_with_flags(code: &str, field: &str, hint: String) -> String {
    let own = match (code, field) {
        ("unsafe_retry", _) => {
            "check its effects with `baton output TASK`, then repeat the command with --allow-unsafe"
        }
        ("contract_unmet", _) => {
            "let the agent make the missing files, or complete the task without them with --override"
        }
        ("reason_missing", _) => "give a reason with --reason TEXT",
        ("missing", "spec.prompt") => "pass the prompt with --prompt TEXT or --prompt-file FILE",
        ("missing" | "blank", "agent_scope") => {
            "choose the tasks that the token may claim with --agent-scope NAME"
        }
        ("once_only", _) => "omit --for-attempt",
        ("no_daemon", _) => {
            "start a daemon that can take the task, or omit --fail-fast to queue it"
        }
        _other => return hint,
    };
    own.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_flags_and_other_words_stay() {
        let hint = "retry with allow_unsafe".to_owned();
        assert!(hint_with_flags("unsafe_retry", "", hint.clone()).contains("--allow-unsafe"));
        assert_eq!(hint_with_flags("unknown_task", "", hint.clone()), hint);
        let text = replace_fields_with_flags("spec.prompt", "spec.prompt is missing");
        assert_eq!(text, "--prompt is missing");
        let two = "spec.profile_name cannot be combined with spec.profile";
        let text = replace_fields_with_flags("spec.profile_name", two);
        assert_eq!(text, "--profile cannot be combined with --deadline");
        let plain = "no daemon with this id or name";
        assert_eq!(replace_fields_with_flags("", plain), plain);
    }
}
