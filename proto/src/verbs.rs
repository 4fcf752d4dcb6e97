//! The verbs of the work with tasks: one table for everybody who offers one. The MCP server makes its tools and what it
//! tells agents from it, the command line its help lines, the documents their table; the daemon asks it what an agent
//! inside an attempt may do. A verb that is not here is offered nowhere.

/// One verb, on every surface that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    pub name: &'static str,
    /// RPCs of `baton.v1` that carry it out, as Service.Method.
    pub rpcs: &'static [&'static str],
    /// The command of `baton` that people use.
    pub command: Option<&'static str>,
    /// What agents call.
    pub tool: Option<Tool>,
    /// One line, for help of every kind.
    pub help: &'static str,
    /// A reason is required, and checked before anything is looked up.
    pub needs_reason: bool,
}

/// A verb as a tool of agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    pub call: Call,
    pub name: &'static str,
    /// Other names that do the same.
    pub aliases: &'static [&'static str],
    pub effect: Effect,
    /// Whether an agent that runs inside a daemon's attempt may use it. There the daemon holds the lease.
    pub inside: bool,
    /// Words for the model beyond the help line: when to use it.
    pub advice: &'static str,
}

/// What a tool does, for those who carry it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    ListBlocked,
    GetBlocked,
    PickUp,
    Start,
    Claim,
    Progress,
    Checkpoint,
    Block,
    Complete,
    Release,
    Get,
    List,
}

/// What the worst input to a tool does. Only reading may be repeated without a thought: every other tool acts on the task
/// that is held at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Takes nothing away that was there.
    Adds,
    /// Replaces or ends something.
    Replaces,
}

impl Effect {
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::Reads)
    }

    pub const fn is_destructive(self) -> bool {
        matches!(self, Self::Replaces)
    }

    pub const fn is_idempotent(self) -> bool {
        matches!(self, Self::Reads)
    }
}

const fn tool(
    call: Call,
    name: &'static str,
    effect: Effect,
    inside: bool,
    advice: &'static str,
) -> Tool {
    Tool {
        call,
        name,
        aliases: &[],
        effect,
        inside,
        advice,
    }
}

impl Tool {
    const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

const fn verb(name: &'static str, rpcs: &'static [&'static str], help: &'static str) -> Verb {
    Verb {
        name,
        rpcs,
        command: None,
        tool: None,
        help,
        needs_reason: false,
    }
}

impl Verb {
    const fn command(self, command: &'static str) -> Self {
        Self {
            command: Some(command),
            ..self
        }
    }

    const fn tool(self, tool: Tool) -> Self {
        Self {
            tool: Some(tool),
            ..self
        }
    }

    const fn with_reason(self) -> Self {
        Self {
            needs_reason: true,
            ..self
        }
    }
}

use Effect::{Adds, Reads, Replaces};

/// In the order in which they are shown.
pub const VERBS: [Verb; 23] = [
    verb(
        "list blocked",
        &["Tasks.ListBlocked"],
        "List tasks that are parked and wait for somebody, newest block first.",
    )
    .command("blocked")
    .tool(tool(Call::ListBlocked, "list_blocked_tasks",
        Reads,
        true,
        "Call it first: prefer to go on with blocked work over beginning something new.",
    )),
    verb(
        "get blocked",
        &["Tasks.GetBlocked"],
        "Show one parked task with why it stopped and its last checkpoint.",
    )
    .tool(tool(Call::GetBlocked, "get_blocked_task", Reads, true, "")),
    verb(
        "pick up",
        &["Agents.PickUp"],
        "Take over a parked task: its next attempt is leased to the caller.",
    )
    .command("pick-up")
    .tool(tool(Call::PickUp, "pick_up_task",
        Adds,
        false,
        "One of several callers wins; the others are told who did.",
    )),
    verb(
        "start",
        &["Agents.Start"],
        "Submit a task and hold it, in one step.",
    )
    .tool(tool(Call::Start, "task_start",
        Adds,
        false,
        "The lease is renewed in the background until the task is completed, blocked or released.",
    )),
    verb(
        "claim",
        &["Agents.Claim"],
        "Hold a queued task that agents may claim: a named one, or the first.",
    )
    .command("claim")
    .tool(tool(Call::Claim, "claim_task", Adds, false, "")),
    verb(
        "progress",
        &["Agents.Progress", "Tasks.UpdateProgress"],
        "Add to what is known of a task's progress: summary, items done and failed, where to go on, evidence.",
    )
    .command("progress")
    .tool(
        tool(Call::Progress, "task_progress",
            Replaces,
            true,
            "Lists grow and keep their newest entries; summary and cursor are replaced.",
        )
        .also(&["save_task_progress"]),
    ),
    verb(
        "checkpoint",
        &["Agents.Checkpoint"],
        "Write down where the work stands, so that somebody else can go on from there.",
    )
    .tool(tool(Call::Checkpoint, "task_checkpoint",
        Replaces,
        true,
        "Call it at each milestone. The newest fifty are kept.",
    )),
    verb(
        "block",
        &["Agents.Block", "Tasks.Block"],
        "Park a task with a reason: nothing runs, and a person or another agent goes on later.",
    )
    .with_reason()
    .command("block")
    .tool(
        tool(Call::Block, "task_block",
            Replaces,
            true,
            "Call it before giving up: say what is missing and what would help. The lease is given up.",
        )
        .also(&["task_needs_help"]),
    ),
    verb(
        "complete",
        &["Agents.Complete", "Agents.Fail", "Agents.Cancel"],
        "End the task that is held: completed, failed or canceled.",
    )
    .tool(tool(Call::Complete, "task_complete",
        Replaces,
        true,
        "Completing is refused while required files are missing, and names all of them; write them and call again.",
    )),
    verb(
        "release",
        &["Agents.Release"],
        "Give a task back unharmed; it is queued again.",
    )
    .command("release")
    .tool(tool(Call::Release, "release_task", Replaces, false, "")),
    verb(
        "get",
        &["Tasks.Get"],
        "Show one task with its attempts, deadlines and what to do next.",
    )
    .command("show")
    .tool(tool(Call::Get, "task_get", Reads, true, "")),
    verb("list", &["Tasks.List"], "List tasks, newest first.")
        .command("tasks")
        .tool(tool(Call::List, "task_list", Reads, true, "")),
    verb("cancel", &["Tasks.Cancel"], "Ask for the end of a task.").command("cancel"),
    verb(
        "checkpoints",
        &["Tasks.ListCheckpoints"],
        "List the milestones of a task, newest first.",
    )
    .command("checkpoints"),
    verb(
        "resume",
        &["Tasks.Resume"],
        "Send a parked task on, with an answer or further instructions.",
    )
    .with_reason()
    .command("resume"),
    verb(
        "renew",
        &["Agents.Renew"],
        "Renew a lease that was claimed or picked up.",
    )
    .command("renew"),
    verb(
        "inspect",
        &["Operator.Inspect"],
        "Say how one task stands: what is armed, what looks wrong, and what to do next.",
    )
    .command("inspect"),
    verb(
        "retry",
        &["Operator.RetryTask", "Operator.BulkForce"],
        "Try failed, timed out or lost tasks again.",
    )
    .with_reason()
    .command("retry"),
    verb(
        "force release",
        &["Operator.ForceRelease", "Operator.BulkForce"],
        "Take running attempts away from their daemons; the tasks are queued again.",
    )
    .with_reason()
    .command("force-release"),
    verb(
        "force fail",
        &["Operator.ForceFail", "Operator.BulkForce"],
        "End open tasks as failed.",
    )
    .with_reason()
    .command("force-fail"),
    verb(
        "complete by hand",
        &["Operator.CompleteTask"],
        "Complete a task by hand, because its work is done.",
    )
    .with_reason()
    .command("complete"),
    verb(
        "pause",
        &["Operator.Pause"],
        "Stop new dispatch for tasks, a tenant or all; what runs goes on.",
    )
    .with_reason()
    .command("pause"),
    verb(
        "unpause",
        &["Operator.Unpause"],
        "Let what was paused go on.",
    )
    .command("unpause"),
];

/// Verbs that agents can call, each with its tool.
pub fn tools() -> impl Iterator<Item = (&'static Verb, &'static Tool)> {
    VERBS
        .iter()
        .filter_map(|verb| Some((verb, verb.tool.as_ref()?)))
}

/// The tool of this name or alias.
pub fn tool_named(name: &str) -> Option<(&'static Verb, &'static Tool)> {
    tools().find(|(_, tool)| tool.answers_to(name))
}

/// The table as the documents show it.
pub fn table() -> String {
    let mut out = String::from(
        "| verb | MCP tool | command | RPC | reads only | may replace or end | inside an attempt | reason |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let yes = |is: bool| if is { "yes" } else { "no" };
    for verb in &VERBS {
        let tool = verb.tool.map_or("-".to_owned(), |tool| names(&tool));
        let effect = verb.tool.map(|tool| tool.effect);
        let row = [
            verb.name.to_owned(),
            tool,
            verb.command
                .map_or("-".to_owned(), |name| format!("`baton {name}`")),
            verb.rpcs.join(", "),
            effect
                .map_or("-", |effect| yes(effect.is_read_only()))
                .to_owned(),
            effect
                .map_or("-", |effect| yes(effect.is_destructive()))
                .to_owned(),
            verb.tool.map_or("-", |tool| yes(tool.inside)).to_owned(),
            (if verb.needs_reason { "required" } else { "-" }).to_owned(),
        ];
        out.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    out
}

fn names(tool: &Tool) -> String {
    let also = tool.aliases.iter().map(|alias| format!(", also `{alias}`"));
    format!("`{}`{}", tool.name, also.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_rpc_of_the_table_exists() {
        let set = FileDescriptorSet::decode(crate::FILE_DESCRIPTOR_SET).unwrap();
        let services = set.file.iter().flat_map(|file| &file.service);
        let known: BTreeSet<String> = services
            .flat_map(|service| {
                let methods = service.method.iter();
                methods.map(|method| format!("{}.{}", service.name(), method.name()))
            })
            .collect();
        for rpc in VERBS.iter().flat_map(|verb| verb.rpcs) {
            assert!(known.contains(*rpc), "{rpc}");
        }
        let of_agents: BTreeSet<&String> = known
            .iter()
            .filter(|rpc| rpc.starts_with("Agents."))
            .collect();
        let offered = |rpc: &String| VERBS.iter().any(|verb| verb.rpcs.contains(&rpc.as_str()));
        let missing: Vec<_> = of_agents.into_iter().filter(|rpc| !offered(rpc)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_name_means_one_verb() {
        let names = VERBS.iter().map(|verb| verb.name);
        let commands = VERBS.iter().filter_map(|verb| verb.command);
        let tools = tools().flat_map(|(_, tool)| tool.aliases.iter().chain([&tool.name]).copied());
        for (what, all) in [
            ("verbs", names.collect::<Vec<_>>()),
            ("commands", commands.collect()),
            ("tools", tools.collect()),
        ] {
            let once: BTreeSet<_> = all.iter().collect();
            assert_eq!(once.len(), all.len(), "{what}");
        }
        assert_eq!(tool_named("task_needs_help").unwrap().0.name, "block");
        assert!(tool_named("task_renew").is_none());
    }

    #[test]
    fn what_only_reads_destroys_nothing() {
        for (_, tool) in tools() {
            let effect = tool.effect;
            assert!(!(effect.is_read_only() && effect.is_destructive()));
            assert_eq!(effect.is_read_only(), effect.is_idempotent());
        }
    }

    #[test]
    fn the_documents_show_this_table() {
        let shown = include_str!("../../docs/mcp.md");
        assert!(
            shown.contains(&table()),
            "docs/mcp.md must hold this table:\n{}",
            table()
        );
    }
}
