//! Tests every limit of every tool argument, at the limit and one beyond it, against the schema's
//! check and against a real relay, which is called even if the check rejects. The values are
//! generated from the argument fields, so that none is forgotten.

use baton_daemon::Clock;
use baton_proto::v1::{CreateTokenRequest, Role};
use baton_proto::verbs::{ToolOperation, agent_tools};
use baton_relay::auth::bootstrap::ADMIN_TOKEN_FILE;
use baton_relay::config::RelayConfig;
use baton_relay::server;
use baton_validation::limits::{MESSAGE, NAME, REASON, TextLimit};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::argument_schema::{ArgumentField, ArgumentShape, McpArguments};
use super::server_shutdown::ServerShutdown;
use super::standalone_handler::StandaloneHandler;
use super::tool_arguments::{argument_fields, check_arguments};
use super::tool_result::INVALID_ARGUMENT;
use crate::client::discovery::ConnectionArgs;
use crate::client::relay_client::RelayClient;

/// Only the relay makes valid page tokens, so no text within the limit is accepted.
const PAGE_TOKEN: &str = "page_token";

/// The longest possible scope, so that the longest argument that a tool accepts is this agent's
/// own scope.
fn agent_scope() -> String {
    text_of_size(NAME, 0)
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Values of one field just within its limit and just beyond it.
struct BoundaryValues {
    within: Vec<Value>,
    beyond: Vec<Value>,
}

impl BoundaryValues {
    fn new(within: impl Into<Vec<Value>>, beyond: impl Into<Vec<Value>>) -> Self {
        Self {
            within: within.into(),
            beyond: beyond.into(),
        }
    }

    /// Puts every value inside a larger one.
    fn wrapped(self, wrap: impl Fn(Value) -> Value) -> Self {
        Self {
            within: self.within.into_iter().map(&wrap).collect(),
            beyond: self.beyond.into_iter().map(&wrap).collect(),
        }
    }
}

/// Text of the size of a limit in characters of two bytes. A check that counts characters instead
/// of bytes, or the reverse, is then wrong by a factor of two.
fn text_of_size(size: TextLimit, more: usize) -> Value {
    let most = size.limit();
    let text = match size {
        TextLimit::Bytes(_) => format!("{}{}", "é".repeat(most / 2), "x".repeat(most % 2 + more)),
        TextLimit::Chars(_) => "é".repeat(most + more),
    };
    text.into()
}

fn boundary_values(shape: &ArgumentShape) -> Vec<BoundaryValues> {
    match shape {
        ArgumentShape::Text(size)
        | ArgumentShape::OptionalText(size)
        | ArgumentShape::NonBlankText(size) => {
            vec![BoundaryValues::new(
                [text_of_size(*size, 0)],
                [text_of_size(*size, 1)],
            )]
        }
        ArgumentShape::Name(size) => {
            let name = |length: usize| Value::from("x".repeat(length));
            vec![BoundaryValues::new(
                [name(size.limit())],
                [name(size.limit() + 1), "A b".into()],
            )]
        }
        ArgumentShape::Id => {
            let id = uuid::Uuid::now_v7().to_string();
            let upper_case = id.to_uppercase().replace('0', "A");
            vec![BoundaryValues::new(
                [id.clone()].map(Value::from),
                [upper_case, format!("{id}0")].map(Value::from),
            )]
        }
        ArgumentShape::Path => {
            let path = |length: usize| Value::from("p".repeat(length));
            let most = baton_validation::PATH_BYTES_MAX;
            vec![BoundaryValues::new(
                [path(most)],
                [path(most + 1), "../x".into()],
            )]
        }
        ArgumentShape::Sha256 => {
            let digest = |length: usize| Value::from("a".repeat(length));
            vec![BoundaryValues::new([digest(64)], [digest(63), digest(65)])]
        }
        ArgumentShape::Number { least, most } => {
            let below = least.checked_sub(1).filter(|below| *below > 0);
            let beyond = below
                .into_iter()
                .chain(most.checked_add(1))
                .map(Value::from);
            vec![BoundaryValues::new(
                [(*least).into(), (*most).into()],
                beyond.collect::<Vec<_>>(),
            )]
        }
        ArgumentShape::List { of, most } => {
            let some = |count: usize| (0..count).map(|n| valid_value(of, n)).collect::<Value>();
            let long = BoundaryValues::new([some(*most)], [some(most + 1)]);
            let entries = boundary_values(of)
                .into_iter()
                .map(|edge| edge.wrapped(|one| json!([one])));
            entries.chain([long]).collect()
        }
        ArgumentShape::Object(fields) => member_boundary_values(fields),
        ArgumentShape::Labels => label_boundary_values(),
        ArgumentShape::OneOf(_) | ArgumentShape::Flag => Vec::new(),
    }
}

/// Limits of one member at a time; required members have valid values.
fn member_boundary_values(fields: &[ArgumentField]) -> Vec<BoundaryValues> {
    let of_field = |field: &ArgumentField| {
        let name = field.name;
        let rest = required_arguments(fields);
        let edges = boundary_values(&field.shape).into_iter();
        edges
            .map(|edge| {
                edge.wrapped(|value| {
                    let mut whole = rest.clone();
                    whole.insert(name.to_owned(), value);
                    Value::Object(whole)
                })
            })
            .collect::<Vec<_>>()
    };
    fields.iter().flat_map(of_field).collect()
}

fn label_boundary_values() -> Vec<BoundaryValues> {
    let many = |count: usize| -> Value {
        let pairs = (0..count).map(|n| (format!("k{n}"), Value::from("v")));
        Value::Object(pairs.collect())
    };
    let one = |key: usize, value: usize| json!({"k".repeat(key): "v".repeat(value)});
    vec![
        BoundaryValues::new([many(64)], [many(65)]),
        BoundaryValues::new([one(63, 1)], [one(64, 1), json!({"a b": ""})]),
        BoundaryValues::new([one(1, 256)], [one(1, 257), json!({"a": "\n"})]),
    ]
}

/// A valid value, different for each number.
fn valid_value(shape: &ArgumentShape, number: usize) -> Value {
    match shape {
        ArgumentShape::Text(_)
        | ArgumentShape::OptionalText(_)
        | ArgumentShape::NonBlankText(_)
        | ArgumentShape::Name(_)
        | ArgumentShape::Path => format!("p{number}").into(),
        ArgumentShape::Id => uuid::Uuid::now_v7().to_string().into(),
        ArgumentShape::Sha256 => "a".repeat(64).into(),
        ArgumentShape::OneOf(values) => values[number % values.len()].into(),
        ArgumentShape::Number { least, .. } => (*least).into(),
        ArgumentShape::Flag => true.into(),
        ArgumentShape::List { of, .. } => json!([valid_value(of, number)]),
        ArgumentShape::Object(fields) => {
            let mut whole = required_arguments(fields);
            for value in whole.values_mut().filter(|value| value.is_string()) {
                *value = format!("p{number}").into();
            }
            Value::Object(whole)
        }
        ArgumentShape::Labels => json!({}),
    }
}

fn required_arguments(fields: &[ArgumentField]) -> Map<String, Value> {
    let required = fields.iter().filter(|field| field.required);
    required
        .map(|field| (field.name.to_owned(), valid_value(&field.shape, 0)))
        .collect()
}

/// A relay in this process and an agent that calls it without the schema's check.
struct BoundsFixture {
    agent: StandaloneHandler,
    _relay: server::RelayHandle,
    _dir: TempDir,
}

impl BoundsFixture {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let config = RelayConfig::new(data.clone(), "127.0.0.1:0".parse().unwrap());
        let relay = server::start(config).await.unwrap();
        let url = format!("http://{}", relay.address());
        let admin = std::fs::read_to_string(data.join(ADMIN_TOKEN_FILE)).unwrap();
        let admin = RelayClient::connect(&url, admin.trim()).await.unwrap();
        let request = CreateTokenRequest {
            name: "ada".to_owned(),
            role: Role::Agent.into(),
            agent_scope: agent_scope(),
            ..CreateTokenRequest::default()
        };
        let made = admin.operator().create_token(request).await.unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, made.into_inner().secret.unwrap().value).unwrap();
        let args = ConnectionArgs {
            relay: Some(url),
            token_file: Some(token),
            ..ConnectionArgs::default()
        };
        let session = ServerShutdown::without_signals();
        Self {
            agent: StandaloneHandler::new(args, None, Clock::boot(), session),
            _relay: relay,
            _dir: dir,
        }
    }

    /// Whether the relay accepts the arguments. Rejections other than invalid_argument depend on
    /// the state and do not count.
    async fn relay_accepts(
        &mut self,
        call: ToolOperation,
        args: &McpArguments,
    ) -> Result<(), String> {
        self.prepare_lease(call).await;
        match self.agent.answer_call(call, args).await {
            Err(rejection) if rejection.status == INVALID_ARGUMENT => {
                Err(format!("{}: {}", rejection.code, rejection.what))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Holds a lease for calls that need one, and none for calls that get one.
    async fn prepare_lease(&mut self, call: ToolOperation) {
        let gets_lease = matches!(
            call,
            ToolOperation::Start | ToolOperation::Claim | ToolOperation::PickUp
        );
        let held = self.agent.current_lease.borrow().is_some();
        if gets_lease {
            self.agent.current_lease.send_replace(None);
        } else if !held {
            let Value::Object(goal) = json!({"goal": "x", "agent_scope": agent_scope()}) else {
                unreachable!()
            };
            let started = self
                .agent
                .answer_call(ToolOperation::Start, &McpArguments(goal))
                .await;
            started.expect("a task can be started");
        }
    }
}

/// Valid arguments with one of them replaced.
fn arguments_with(
    call: ToolOperation,
    outcome: Option<&str>,
    name: &str,
    value: Value,
) -> McpArguments {
    let mut whole = required_arguments(argument_fields(call));
    if call == ToolOperation::Start {
        whole.insert("agent_scope".to_owned(), agent_scope().into());
    }
    if let Some(outcome) = outcome {
        whole.insert("outcome".to_owned(), outcome.into());
    }
    whole.insert(name.to_owned(), value);
    McpArguments(whole)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_and_the_relay_accept_the_same_arguments() {
    let mut fixture = BoundsFixture::start().await;
    let mut tried = 0;
    for (_, tool) in agent_tools() {
        for field in argument_fields(tool.operation) {
            let outcome = (field.name == "failure_code").then_some("failed");
            for edge in boundary_values(&field.shape) {
                let at = format!("{} of {}", field.name, tool.name);
                for value in edge.within.into_iter().filter(|_| field.name != PAGE_TOKEN) {
                    let args = arguments_with(tool.operation, outcome, field.name, value);
                    assert_eq!(
                        check_arguments(tool.operation, &args),
                        Ok(()),
                        "{at} within"
                    );
                    assert_eq!(
                        fixture.relay_accepts(tool.operation, &args).await,
                        Ok(()),
                        "{at} within"
                    );
                }
                for value in edge.beyond {
                    let args = arguments_with(tool.operation, outcome, field.name, value);
                    assert!(
                        check_arguments(tool.operation, &args).is_err(),
                        "{at} beyond"
                    );
                    let local = is_checked_locally(tool.operation, field.name);
                    let accepted = fixture.relay_accepts(tool.operation, &args).await;
                    assert!(
                        local || accepted.is_err(),
                        "{at} beyond: the relay accepts it"
                    );
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 80, "only {tried} limits were tried");
}

/// The server checks the id of the task that it holds; it is not sent to the relay.
fn is_checked_locally(call: ToolOperation, field: &str) -> bool {
    let held = matches!(
        call,
        ToolOperation::Progress
            | ToolOperation::Checkpoint
            | ToolOperation::Block
            | ToolOperation::Complete
            | ToolOperation::Release
    );
    held && field == "task_id"
}

/// The texts of a failure and of a cancellation have shorter limits than those of a result.
#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_completion_depend_on_its_outcome() {
    let mut fixture = BoundsFixture::start().await;
    for (outcome, field, size) in [
        ("failed", "summary", MESSAGE),
        ("failed", "result", MESSAGE),
        ("canceled", "summary", REASON),
    ] {
        let whole = |more| {
            arguments_with(
                ToolOperation::Complete,
                Some(outcome),
                field,
                text_of_size(size, more),
            )
        };
        let (within, beyond) = (whole(0), whole(1));
        assert!(
            check_arguments(ToolOperation::Complete, &beyond).is_err(),
            "{outcome} {field}"
        );
        assert!(
            fixture
                .relay_accepts(ToolOperation::Complete, &beyond)
                .await
                .is_err()
        );
        assert_eq!(
            check_arguments(ToolOperation::Complete, &within),
            Ok(()),
            "{outcome} {field}"
        );
        assert_eq!(
            fixture
                .relay_accepts(ToolOperation::Complete, &within)
                .await,
            Ok(())
        );
    }
}
