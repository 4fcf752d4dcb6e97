//! The table of task verbs, for every interface that offers them. The MCP server generates its
//! tools and their descriptions from it, the command line its help lines, and the documents
//! their table. The daemon looks up which tools an agent inside an attempt may use. A verb that
//! is not listed here is not offered anywhere.

/// One verb with its rpcs, command and tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskVerb {
    pub name: &'static str,
    /// RPCs of `baton.v1` that implement it, as Service.Method.
    pub rpcs: &'static [&'static str],
    /// The command of `baton` for people.
    pub command: Option<&'static str>,
    /// The tool for agents.
    pub tool: Option<AgentTool>,
    /// One line of help, for the command line and for tools.
    pub help: &'static str,
    /// A reason is required. It is checked before anything is looked up.
    pub needs_reason: bool,
}

/// A verb as a tool for agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentTool {
    pub operation: ToolOperation,
    pub name: &'static str,
    /// Other names for the same tool.
    pub aliases: &'static [&'static str],
    pub effect: ToolEffect,
    /// Whether an agent inside a daemon's attempt may use it. There, the daemon has the lease.
    pub allowed_in_attempt: bool,
    /// Text for the model in addition to the help line: when to use the tool.
    pub advice: &'static str,
}

/// The operation that a tool call performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToolOperation {
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

/// The strongest effect that a tool can have. Only read-only tools are safe to repeat, because
/// every other tool acts on the task whose lease the caller has at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolEffect {
    Reads,
    /// Adds something and removes nothing.
    Adds,
    /// Replaces or ends something.
    Replaces,
}

impl ToolEffect {
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

const fn define_tool(
    call: ToolOperation,
    name: &'static str,
    effect: ToolEffect,
    inside: bool,
    advice: &'static str,
) -> AgentTool {
    AgentTool {
        operation: call,
        name,
        aliases: &[],
        effect,
        allowed_in_attempt: inside,
        advice,
    }
}

impl AgentTool {
    const fn with_aliases(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    pub fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

const fn define_verb(
    name: &'static str,
    rpcs: &'static [&'static str],
    help: &'static str,
) -> TaskVerb {
    TaskVerb {
        name,
        rpcs,
        command: None,
        tool: None,
        help,
        needs_reason: false,
    }
}

impl TaskVerb {
    const fn with_command(self, command: &'static str) -> Self {
        Self {
            command: Some(command),
            ..self
        }
    }

    const fn with_tool(self, tool: AgentTool) -> Self {
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

use ToolEffect::{Adds, Reads, Replaces};

/// In the order in which they are shown.
pub const VERBS: [TaskVerb; 23] = [
    define_verb(
        "list blocked",
        &["Tasks.ListBlocked"],
        "List parked tasks that wait for a person or another agent, newest block first.",
    )
    .with_command("blocked")
    .with_tool(define_tool(ToolOperation::ListBlocked, "list_blocked_tasks",
        Reads,
        true,
        "Call it first: continue blocked work before you begin something new.",
    )),
    define_verb(
        "get blocked",
        &["Tasks.GetBlocked"],
        "Show one parked task with its block reason and last checkpoint.",
    )
    .with_tool(define_tool(ToolOperation::GetBlocked, "get_blocked_task", Reads, true, "")),
    define_verb(
        "pick up",
        &["Agents.PickUp"],
        "Take over a parked task: its next attempt is leased to the caller.",
    )
    .with_command("pick-up")
    .with_tool(define_tool(ToolOperation::PickUp, "pick_up_task",
        Adds,
        false,
        "If several callers try, one gets the task and the others get an error that names it.",
    )),
    define_verb(
        "start",
        &["Agents.Start"],
        "Submit a task and take its lease in one step.",
    )
    .with_tool(define_tool(ToolOperation::Start, "task_start",
        Adds,
        false,
        "The lease is renewed in the background until the task is completed, blocked or released.",
    )),
    define_verb(
        "claim",
        &["Agents.Claim"],
        "Take the lease of a queued task that agents may claim: by id, or the first one.",
    )
    .with_command("claim")
    .with_tool(define_tool(ToolOperation::Claim, "claim_task", Adds, false, "")),
    define_verb(
        "progress",
        &["Agents.Progress", "Tasks.UpdateProgress"],
        "Report progress of a task: summary, items done and failed, where to continue, evidence.",
    )
    .with_command("progress")
    .with_tool(
        define_tool(ToolOperation::Progress, "task_progress",
            Replaces,
            true,
            "Items are added to lists, which keep their newest entries; summary and cursor are replaced.",
        )
        .with_aliases(&["save_task_progress"]),
    ),
    define_verb(
        "checkpoint",
        &["Agents.Checkpoint"],
        "Save the state of the work, so that another agent or a person can continue from there.",
    )
    .with_tool(define_tool(ToolOperation::Checkpoint, "task_checkpoint",
        Replaces,
        true,
        "Call it at each milestone. The newest 50 are kept.",
    )),
    define_verb(
        "block",
        &["Agents.Block", "Tasks.Block"],
        "Park a task with a reason: it stops running until a person or another agent continues it.",
    )
    .with_reason()
    .with_command("block")
    .with_tool(
        define_tool(ToolOperation::Block, "task_block",
            Replaces,
            true,
            "Call it before giving up: state what is missing and what would help. The lease is released.",
        )
        .with_aliases(&["task_needs_help"]),
    ),
    define_verb(
        "complete",
        &["Agents.Complete", "Agents.Fail", "Agents.Cancel"],
        "End the task that you have the lease of: completed, failed or canceled.",
    )
    .with_tool(define_tool(ToolOperation::Complete, "task_complete",
        Replaces,
        true,
        "A completion is rejected while required files are missing. The error lists all of them; write them and call again.",
    )),
    define_verb(
        "release",
        &["Agents.Release"],
        "Return a task without a result; it is queued again.",
    )
    .with_command("release")
    .with_tool(define_tool(ToolOperation::Release, "release_task", Replaces, false, "")),
    define_verb(
        "get",
        &["Tasks.Get"],
        "Show one task with its attempts, its deadlines and the next step.",
    )
    .with_command("show")
    .with_tool(define_tool(ToolOperation::Get, "task_get", Reads, true, "")),
    define_verb("list", &["Tasks.List"], "List tasks, newest first.")
        .with_command("tasks")
        .with_tool(define_tool(ToolOperation::List, "task_list", Reads, true, "")),
    define_verb("cancel", &["Tasks.Cancel"], "Request the cancellation of a task.").with_command("cancel"),
    define_verb(
        "checkpoints",
        &["Tasks.ListCheckpoints"],
        "List the checkpoints of a task, newest first.",
    )
    .with_command("checkpoints"),
    define_verb(
        "resume",
        &["Tasks.Resume"],
        "Resume a parked task with an answer or further instructions.",
    )
    .with_reason()
    .with_command("resume"),
    define_verb(
        "renew",
        &["Agents.Renew"],
        "Renew a lease that was claimed or picked up.",
    )
    .with_command("renew"),
    define_verb(
        "inspect",
        &["Operator.Inspect"],
        "Diagnose one task: armed timers, problems, and the next step.",
    )
    .with_command("inspect"),
    define_verb(
        "retry",
        &["Operator.RetryTask", "Operator.BulkForce"],
        "Retry failed, timed out or lost tasks.",
    )
    .with_reason()
    .with_command("retry"),
    define_verb(
        "force release",
        &["Operator.ForceRelease", "Operator.BulkForce"],
        "Revoke running attempts from their daemons; the tasks are queued again.",
    )
    .with_reason()
    .with_command("force-release"),
    define_verb(
        "force fail",
        &["Operator.ForceFail", "Operator.BulkForce"],
        "End open tasks as failed.",
    )
    .with_reason()
    .with_command("force-fail"),
    define_verb(
        "complete by hand",
        &["Operator.CompleteTask"],
        "Complete a task by hand, because its work is done.",
    )
    .with_reason()
    .with_command("complete"),
    define_verb(
        "pause",
        &["Operator.Pause"],
        "Stop new dispatches for tasks, a tenant or all; running attempts continue.",
    )
    .with_reason()
    .with_command("pause"),
    define_verb(
        "unpause",
        &["Operator.Unpause"],
        "Resume dispatch after a pause.",
    )
    .with_command("unpause"),
];

/// Verbs that agents can call, each with its tool.
pub fn agent_tools() -> impl Iterator<Item = (&'static TaskVerb, &'static AgentTool)> {
    VERBS
        .iter()
        .filter_map(|verb| Some((verb, verb.tool.as_ref()?)))
}

/// The tool of this name or alias.
pub fn find_tool(name: &str) -> Option<(&'static TaskVerb, &'static AgentTool)> {
    agent_tools().find(|(_, tool)| tool.has_name(name))
}

/// The table as the documents contain it.
pub fn markdown_table() -> String {
    let mut out = String::from(
        "| verb | MCP tool | command | RPC | reads only | may replace or end | inside an attempt | reason |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let yes = |is: bool| if is { "yes" } else { "no" };
    for verb in &VERBS {
        let tool = verb
            .tool
            .map_or("-".to_owned(), |tool| tool_names_cell(&tool));
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
            verb.tool
                .map_or("-", |tool| yes(tool.allowed_in_attempt))
                .to_owned(),
            (if verb.needs_reason { "required" } else { "-" }).to_owned(),
        ];
        out.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    out
}

fn tool_names_cell(tool: &AgentTool) -> String {
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
    fn every_name_belongs_to_one_verb() {
        let names = VERBS.iter().map(|verb| verb.name);
        let commands = VERBS.iter().filter_map(|verb| verb.command);
        let tools =
            agent_tools().flat_map(|(_, tool)| tool.aliases.iter().chain([&tool.name]).copied());
        for (what, all) in [
            ("verbs", names.collect::<Vec<_>>()),
            ("commands", commands.collect()),
            ("tools", tools.collect()),
        ] {
            let once: BTreeSet<_> = all.iter().collect();
            assert_eq!(once.len(), all.len(), "{what}");
        }
        assert_eq!(find_tool("task_needs_help").unwrap().0.name, "block");
        assert!(find_tool("task_renew").is_none());
    }

    #[test]
    fn a_read_only_tool_is_never_destructive() {
        for (_, tool) in agent_tools() {
            let effect = tool.effect;
            assert!(!(effect.is_read_only() && effect.is_destructive()));
            assert_eq!(effect.is_read_only(), effect.is_idempotent());
        }
    }

    #[test]
    fn the_documents_show_this_table() {
        let shown = include_str!("../../docs/mcp.md");
        assert!(
            shown.contains(&markdown_table()),
            "docs/mcp.md must contain this table:\n{}",
            markdown_table()
        );
    }
}
