//! Test only: every bound of every tool, at its limit and one beyond it, against the schema's check and against a real relay that
//! is asked although the check would have refused. Made from the fields themselves, so none can be forgotten.

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

/// A relay's own seal, so no other text of any length is one.
const PAGE_TOKEN: &str = "page_token";

/// The longest there is, so that the longest that a tool takes is this agent's own.
fn agent_scope() -> String {
    text_of_size(NAME, 0)
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Values of one field that are just within its bound, and just beyond.
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

    /// Every value inside something larger.
    fn wrapped(self, wrap: impl Fn(Value) -> Value) -> Self {
        Self {
            within: self.within.into_iter().map(&wrap).collect(),
            beyond: self.beyond.into_iter().map(&wrap).collect(),
        }
    }
}

/// What is counted in bytes is filled with characters of two, what is counted in characters with the same: a bound that
/// counts the wrong thing is off by half.
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
            let loud = id.to_uppercase().replace('0', "A");
            vec![BoundaryValues::new(
                [id.clone()].map(Value::from),
                [loud, format!("{id}0")].map(Value::from),
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

/// Of one member at a time, beside what is required.
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

/// A value that nobody could object to; another one for each number.
fn valid_value(shape: &ArgumentShape, number: usize) -> Value {
    match shape {
        ArgumentShape::Text(_)
        | ArgumentShape::OptionalText(_)
        | ArgumentShape::NonBlankText(_)
        | ArgumentShape::Name(_)
        | ArgumentShape::Path => format!("p{number}").into(),
        ArgumentShape::Id => uuid::Uuid::now_v7().to_string().into(),
        ArgumentShape::Sha256 => "a".repeat(64).into(),
        ArgumentShape::OneOf(words) => words[number % words.len()].into(),
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

/// A relay in this process, and an agent of it that asks without looking at the schema.
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

    /// Whether the relay takes it: every other refusal than of its shape is about what there is, not about what was said.
    async fn relay_accepts(
        &mut self,
        call: ToolOperation,
        args: &McpArguments,
    ) -> Result<(), String> {
        self.prepare_lease(call).await;
        match self.agent.answer_call(call, args).await {
            Err(refusal) if refusal.status == INVALID_ARGUMENT => {
                Err(format!("{}: {}", refusal.code, refusal.what))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Holds a task where the call is about one, and none where it would get one.
    async fn prepare_lease(&mut self, call: ToolOperation) {
        let getting = matches!(
            call,
            ToolOperation::Start | ToolOperation::Claim | ToolOperation::PickUp
        );
        let held = self.agent.current_lease.borrow().is_some();
        if getting {
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

/// Arguments that are right, with one of them replaced.
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
async fn what_the_schema_takes_the_relay_takes_and_what_one_refuses_both_refuse() {
    let mut scene = BoundsFixture::start().await;
    let mut seen = 0;
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
                        scene.relay_accepts(tool.operation, &args).await,
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
                    let own = is_checked_locally(tool.operation, field.name);
                    let taken = scene.relay_accepts(tool.operation, &args).await;
                    assert!(own || taken.is_err(), "{at} beyond: the relay takes it");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 80, "{seen} bounds were tried");
}

/// A task that is held is named to the server, which knows it, and not to the relay.
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

/// The words of a failure and of a cancel are shorter than those of a result.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_task_has_the_bounds_of_its_outcome() {
    let mut scene = BoundsFixture::start().await;
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
            scene
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
            scene.relay_accepts(ToolOperation::Complete, &within).await,
            Ok(())
        );
    }
}
