//! The server as a client sees it: who it is, what it tells the model, which tools it has. Every call is checked here,
//! before anybody is asked, and then handed to the one who answers.

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

/// Calls that wait for their turn. Full: the next waits.
pub(super) const MAX_QUEUED_CALLS: usize = 16;

/// What is offered, beside the greeting.
const OFFERED_METHODS: [&str; 2] = ["tools/list", "tools/call"];

/// A call that met its schema, and who waits for the answer.
#[derive(Debug)]
pub(super) struct PendingToolCall {
    pub(super) call: ToolOperation,
    pub(super) args: McpArguments,
    pub(super) reply: oneshot::Sender<ToolResult>,
}

/// Where this server stands.
#[derive(Clone, Debug)]
pub(super) enum ServerMode {
    /// With a token, and leases of its own.
    Standalone,
    /// In a daemon's attempt.
    InsideAttempt,
    /// Nowhere: it offers nothing, and says why.
    Unconfigured(String),
}

#[derive(Debug)]
pub(super) struct McpServer {
    mode: ServerMode,
    calls: mpsc::Sender<PendingToolCall>,
}

impl McpServer {
    pub(super) fn new(standing: ServerMode) -> (Self, mpsc::Receiver<PendingToolCall>) {
        let (asked, asking) = mpsc::channel(MAX_QUEUED_CALLS);
        (
            Self {
                mode: standing,
                calls: asked,
            },
            asking,
        )
    }

    async fn call(&self, call: ToolOperation, args: McpArguments) -> ToolResult {
        tool_arguments::check_arguments(call, &args)?;
        let (reply, answer) = oneshot::channel();
        let asked = PendingToolCall { call, args, reply };
        self.calls
            .send(asked)
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

    /// Also whatever the library cannot read as the method that it names: that one is there, and its parameters are wrong.
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
            "the parameters of {method} cannot be read, and nothing was done; \"arguments\" of a tool are an object"
        );
        Err(ErrorData::invalid_params(problem, None))
    }
}

/// Every tool under each of its names. What may not be done inside an attempt is offered there too, and refused with the
/// reason: a model that looks for it learns why.
fn offered_tools(standing: &ServerMode) -> Vec<Tool> {
    match standing {
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
    let mut words = verb.help.to_owned();
    for more in [
        tool.advice,
        if tool.allowed_in_attempt {
            ""
        } else {
            NOT_INSIDE
        },
    ] {
        if !more.is_empty() {
            words.push(' ');
            words.push_str(more);
        }
    }
    let effect = tool.effect;
    let annotations = ToolAnnotations::new()
        .read_only(effect.is_read_only())
        .destructive(effect.is_destructive())
        .idempotent(effect.is_idempotent())
        .open_world(false);
    Tool::new(name, words, object_schema(argument_fields(tool.operation)))
        .with_annotations(annotations)
}

const NOT_INSIDE: &str = "Not inside an attempt that a daemon runs.";

/// What the model is told before it sees a tool.
pub(super) fn instructions(standing: &ServerMode) -> String {
    let place = match standing {
        ServerMode::Unconfigured(why) => {
            return format!("Baton's tools are not available: {why}");
        }
        ServerMode::Standalone => {
            "Baton keeps tasks that outlive you. Whoever claims, starts or picks up a task holds it; the lease is renewed \
             in the background while this server runs. One task is held at a time."
        }
        ServerMode::InsideAttempt => {
            "You work on one task of Baton, and a daemon holds it for you. What you write down outlives you."
        }
    };
    let advised = verbs::agent_tools().filter(|(_, tool)| !tool.advice.is_empty());
    let inside = matches!(standing, ServerMode::InsideAttempt);
    let advised = advised.filter(|(_, tool)| tool.allowed_in_attempt || !inside);
    let lines =
        advised.map(|(verb, tool)| format!("- {}: {} {}", tool.name, verb.help, tool.advice));
    format!("{place}\n{}", lines.collect::<Vec<_>>().join("\n"))
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
    fn the_model_is_told_to_look_for_blocked_work_first_and_to_block_before_it_gives_up() {
        let told = instructions(&ServerMode::Standalone);
        let place = |words: &str| {
            told.find(words)
                .unwrap_or_else(|| panic!("{words}: {told}"))
        };
        let order = [
            place("list_blocked_tasks"),
            place("at each milestone"),
            place("before giving up"),
        ];
        assert!(order.is_sorted());
    }

    #[test]
    fn without_a_configuration_nothing_is_offered_and_it_is_said_why() {
        let standing = ServerMode::Unconfigured("there is no token".to_owned());
        assert!(offered_tools(&standing).is_empty());
        assert!(instructions(&standing).contains("there is no token"));
    }

    #[test]
    fn annotations_hold_for_the_worst_input() {
        for tool in offered_tools(&ServerMode::Standalone) {
            let hints = tool.annotations.clone().unwrap();
            let reads = hints.read_only_hint == Some(true);
            assert_eq!(reads, hints.is_idempotent(), "{}", tool.name);
            assert!(!(reads && hints.is_destructive()), "{}", tool.name);
        }
    }
}
