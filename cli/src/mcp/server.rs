//! The MCP server: its name, the instructions for the model, and the tools. Every call is checked
//! here and then queued for the handler.

use baton_proto::verbs::{self, AgentTool as VerbTool, TaskVerb, ToolOperation};
use rmcp::ErrorData;
use rmcp::RoleServer;
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode,
    Implementation, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use tokio::sync::{mpsc, oneshot};

use super::argument_schema::{McpArguments, object_schema};
use super::tool_arguments;
use super::tool_arguments::argument_fields;
use super::tool_result::{ToolResult, server_stopping, to_call_result};

/// Limit on queued calls. When the queue is full, the next call waits.
pub(super) const MAX_QUEUED_CALLS: usize = 16;

/// Methods besides the initialization.
const OFFERED_METHODS: [&str; 2] = ["tools/list", "tools/call"];

/// A checked call, and where its answer goes.
#[derive(Debug)]
pub(super) struct PendingToolCall {
    pub(super) call: ToolOperation,
    pub(super) args: McpArguments,
    pub(super) reply: oneshot::Sender<ToolResult>,
}

/// How this server runs.
#[derive(Clone, Debug)]
pub(super) enum ServerMode {
    /// With a token and its own leases.
    Standalone,
    /// Inside an attempt that a daemon runs.
    InsideAttempt,
    /// Without a token: it offers no tools, and the instructions contain the reason.
    Unconfigured(String),
}

#[derive(Debug)]
pub(super) struct McpServer {
    mode: ServerMode,
    calls: mpsc::Sender<PendingToolCall>,
}

impl McpServer {
    pub(super) fn new(mode: ServerMode) -> (Self, mpsc::Receiver<PendingToolCall>) {
        let (calls, received_calls) = mpsc::channel(MAX_QUEUED_CALLS);
        (Self { mode, calls }, received_calls)
    }

    async fn call(&self, call: ToolOperation, args: McpArguments) -> ToolResult {
        tool_arguments::check_arguments(call, &args)?;
        let (reply, answer) = oneshot::channel();
        let pending = PendingToolCall { call, args, reply };
        self.calls
            .send(pending)
            .await
            .map_err(|_| server_stopping())?;
        answer.await.map_err(|_| server_stopping())?
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("baton", env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions(&self.mode))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(offered_tools(&self.mode)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        offered_tools(&self.mode)
            .into_iter()
            .find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let known = match self.mode {
            ServerMode::Standalone | ServerMode::InsideAttempt => verbs::find_tool(&request.name),
            ServerMode::Unconfigured(_) => None,
        };
        let Some((_, tool)) = known else {
            let problem = format!("there is no tool {:?}", request.name);
            return Err(ErrorData::invalid_params(problem, None));
        };
        let args = McpArguments(request.arguments.unwrap_or_default());
        Ok(to_call_result(self.call(tool.operation, args).await).into())
    }

    /// The library also calls this for a known method whose parameters it cannot parse.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        if !OFFERED_METHODS.contains(&method.as_str()) {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method, None));
        }
        let problem = format!(
            "the parameters of {method} are not valid, and nothing was done; \"arguments\" of a tool must be an object"
        );
        Err(ErrorData::invalid_params(problem, None))
    }
}

/// Every tool under each of its names. Tools that are not allowed inside an attempt are listed
/// there as well: the call is rejected with the reason, which a model would otherwise not get.
fn offered_tools(mode: &ServerMode) -> Vec<Tool> {
    match mode {
        ServerMode::Unconfigured(_) => Vec::new(),
        ServerMode::Standalone | ServerMode::InsideAttempt => verbs::agent_tools()
            .flat_map(|(verb, tool)| {
                let names = std::iter::once(&tool.name).chain(tool.aliases);
                names.map(|name| describe_tool(name, verb, tool))
            })
            .collect(),
    }
}

fn describe_tool(name: &'static str, verb: &TaskVerb, tool: &VerbTool) -> Tool {
    let mut description = verb.help.to_owned();
    for sentence in [
        tool.advice,
        if tool.allowed_in_attempt {
            ""
        } else {
            NOT_INSIDE
        },
    ] {
        if !sentence.is_empty() {
            description.push(' ');
            description.push_str(sentence);
        }
    }
    let effect = tool.effect;
    let annotations = ToolAnnotations::new()
        .read_only(effect.is_read_only())
        .destructive(effect.is_destructive())
        .idempotent(effect.is_idempotent())
        .open_world(false);
    let schema = object_schema(argument_fields(tool.operation));
    Tool::new(name, description, schema).with_annotations(annotations)
}

const NOT_INSIDE: &str = "Not allowed inside an attempt that a daemon runs.";

/// The instructions for the model.
pub(super) fn instructions(mode: &ServerMode) -> String {
    let introduction = match mode {
        ServerMode::Unconfigured(why) => {
            return format!("Baton's tools are not available: {why}");
        }
        ServerMode::Standalone => {
            "Baton stores tasks that outlive your session. If you claim, start or pick up a task, you hold its lease, which \
             is renewed in the background while this server runs. You can hold one task at a time."
        }
        ServerMode::InsideAttempt => {
            "You work on one task of Baton, and a daemon holds its lease for you. Progress and checkpoints that you report \
             outlive your session."
        }
    };
    let advised = verbs::agent_tools().filter(|(_, tool)| !tool.advice.is_empty());
    let inside = matches!(mode, ServerMode::InsideAttempt);
    let advised = advised.filter(|(_, tool)| tool.allowed_in_attempt || !inside);
    let lines =
        advised.map(|(verb, tool)| format!("- {}: {} {}", tool.name, verb.help, tool.advice));
    format!("{introduction}\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_of_the_table_is_offered_under_all_its_names() {
        let names: Vec<String> = offered_tools(&ServerMode::Standalone)
            .into_iter()
            .map(|tool| tool.name.into_owned())
            .collect();
        assert_eq!(names.len(), 14, "{names:?}");
        for name in [
            "task_start",
            "save_task_progress",
            "task_needs_help",
            "release_task",
        ] {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
        assert_eq!(offered_tools(&ServerMode::InsideAttempt).len(), names.len());
    }

    #[test]
    fn the_instructions_advise_blocked_work_first_and_block_last() {
        let text = instructions(&ServerMode::Standalone);
        let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        let order = [
            position("list_blocked_tasks"),
            position("at each milestone"),
            position("before giving up"),
        ];
        assert!(order.is_sorted());
    }

    #[test]
    fn without_a_token_no_tool_is_offered_and_the_reason_is_given() {
        let mode = ServerMode::Unconfigured("there is no token".to_owned());
        assert!(offered_tools(&mode).is_empty());
        assert!(instructions(&mode).contains("there is no token"));
    }

    #[test]
    fn annotations_describe_the_strongest_effect() {
        for tool in offered_tools(&ServerMode::Standalone) {
            let hints = tool.annotations.clone().unwrap();
            let reads = hints.read_only_hint == Some(true);
            assert_eq!(reads, hints.is_idempotent(), "{}", tool.name);
            assert!(!(reads && hints.is_destructive()), "{}", tool.name);
        }
    }
}
