//! How much is open: the tasks of each tenant, and the bytes that all of them keep in memory until they end.

use std::collections::BTreeMap;

use crate::id::TenantId;
use crate::spec::{PermissionRule, RequiredArtifact, TaskSpec};

/// What a task takes besides the words that were submitted.
const RECORD_BYTES: u64 = 4 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Open {
    tasks: BTreeMap<TenantId, usize>,
    bytes: u64,
}

impl Open {
    pub(crate) fn add(&mut self, spec: &TaskSpec) {
        *self.tasks.entry(spec.tenant.clone()).or_default() += 1;
        self.bytes += weight(spec);
    }

    pub(crate) fn remove(&mut self, spec: &TaskSpec) {
        self.bytes = self.bytes.saturating_sub(weight(spec));
        let Some(tasks) = self.tasks.get_mut(&spec.tenant) else {
            return;
        };
        *tasks -= 1;
        if *tasks == 0 {
            self.tasks.remove(&spec.tenant);
        }
    }

    pub(crate) fn tasks_of(&self, tenant: &TenantId) -> usize {
        self.tasks.get(tenant).copied().unwrap_or(0)
    }

    /// Whether one more fits.
    pub(crate) fn has_room_for(&self, spec: &TaskSpec, most_bytes: u64) -> bool {
        self.bytes + weight(spec) <= most_bytes
    }
}

/// Bytes of what can be long. Fixed at submit, so what was added is what is taken away.
fn weight(spec: &TaskSpec) -> u64 {
    let words = |list: &[String]| list.iter().map(String::len).sum::<usize>();
    let pairs = |map: &BTreeMap<String, String>| {
        let sizes = map.iter().map(|(key, value)| key.len() + value.len());
        sizes.sum::<usize>()
    };
    let rule =
        |rule: &PermissionRule| size_of::<PermissionRule>() + rule.tool.len() + rule.pattern.len();
    let file = |file: &RequiredArtifact| {
        size_of::<RequiredArtifact>()
            + file.path.len()
            + file.sha256.as_ref().map_or(0, String::len)
    };
    let files = spec.contract.iter().flat_map(|asks| &asks.artifacts);
    let target = &spec.target;
    let options = &spec.options;
    let bytes = spec.prompt.len()
        + spec.goal.len()
        + words(&spec.argv)
        + words(&spec.success_criteria)
        + words(&options.context_refs)
        + options.instructions.as_ref().map_or(0, String::len)
        + pairs(&spec.env)
        + pairs(&spec.labels)
        + pairs(&target.labels)
        + words(&target.capabilities)
        + spec.permission_rules.iter().map(rule).sum::<usize>()
        + files.map(file).sum::<usize>();
    RECORD_BYTES + bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::task_spec;
    use crate::spec::{CompletionContract, MissingPolicy, PermissionEffect};

    /// Whatever a client can make long counts.
    #[test]
    fn rules_files_and_places_weigh_as_much_as_words() {
        let light = weight(&task_spec());
        let mut spec = task_spec();
        spec.permission_rules = vec![
            PermissionRule {
                effect: PermissionEffect::Allow,
                tool: "Bash".into(),
                pattern: "x".repeat(1_000),
            };
            256
        ];
        assert!(weight(&spec) - light > 256 * 1_000);
        let mut spec = task_spec();
        spec.contract = Some(CompletionContract {
            artifacts: vec![
                RequiredArtifact {
                    path: "x".repeat(1_000),
                    min_size: None,
                    sha256: None,
                };
                64
            ],
            missing_policy: MissingPolicy::Reject,
        });
        assert!(weight(&spec) - light > 64 * 1_000);
    }

    #[test]
    fn what_was_added_is_taken_away_and_long_prompts_fill_the_room() {
        let mut open = Open::default();
        let mut spec = task_spec();
        spec.prompt = "x".repeat(1 << 20);
        let most = 4 << 20;
        let mut admitted = 0;
        while open.has_room_for(&spec, most) {
            open.add(&spec);
            admitted += 1;
        }
        assert_eq!((admitted, open.tasks_of(&spec.tenant)), (3, 3));
        open.remove(&spec);
        assert!(open.has_room_for(&spec, most));
        open.remove(&spec);
        open.remove(&spec);
        assert_eq!((open.bytes, open.tasks_of(&spec.tenant)), (0, 0));
    }
}
