//! Test only: every bound of every tool, at its limit and one beyond it, against the schema's check and against a real relay that
//! is asked although the check would have refused. Made from the fields themselves, so none can be forgotten.

use baton_contract::bounds::{MESSAGE, NAME, REASON, Size};
use baton_daemon::Clock;
use baton_proto::v1::{CreateTokenRequest, Role};
use baton_proto::verbs::{Call, tools};
use baton_relay::auth::bootstrap::ADMIN_TOKEN_FILE;
use baton_relay::config::RelayConfig;
use baton_relay::server;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::alone::Alone;
use super::answer::INVALID;
use super::fields::{Args, Field, Shape};
use super::inputs::{check, fields_of};
use super::session::Session;
use crate::client::Relay;
use crate::discovery::RelayArgs;

/// A relay's own seal, so no other text of any length is one.
const SEALED: &str = "page_token";

/// The longest there is, so that the longest that a tool takes is this agent's own.
fn scope() -> String {
    filled(NAME, 0).as_str().unwrap_or_default().to_owned()
}

/// Values of one field that are just within its bound, and just beyond.
struct Edge {
    within: Vec<Value>,
    beyond: Vec<Value>,
}

impl Edge {
    fn of(within: impl Into<Vec<Value>>, beyond: impl Into<Vec<Value>>) -> Self {
        Self {
            within: within.into(),
            beyond: beyond.into(),
        }
    }

    /// Every value inside something larger.
    fn inside(self, wrap: impl Fn(Value) -> Value) -> Self {
        Self {
            within: self.within.into_iter().map(&wrap).collect(),
            beyond: self.beyond.into_iter().map(&wrap).collect(),
        }
    }
}

/// What is counted in bytes is filled with characters of two, what is counted in characters with the same: a bound that
/// counts the wrong thing is off by half.
fn filled(size: Size, more: usize) -> Value {
    let most = size.most();
    let text = match size {
        Size::Bytes(_) => format!("{}{}", "é".repeat(most / 2), "x".repeat(most % 2 + more)),
        Size::Chars(_) => "é".repeat(most + more),
    };
    text.into()
}

fn edges(shape: &Shape) -> Vec<Edge> {
    match shape {
        Shape::Text(size) | Shape::Maybe(size) | Shape::Words(size) => {
            vec![Edge::of([filled(*size, 0)], [filled(*size, 1)])]
        }
        Shape::Name(size) => {
            let name = |length: usize| Value::from("x".repeat(length));
            vec![Edge::of(
                [name(size.most())],
                [name(size.most() + 1), "A b".into()],
            )]
        }
        Shape::Id => {
            let id = uuid::Uuid::now_v7().to_string();
            let loud = id.to_uppercase().replace('0', "A");
            vec![Edge::of(
                [id.clone()].map(Value::from),
                [loud, format!("{id}0")].map(Value::from),
            )]
        }
        Shape::Path => {
            let path = |length: usize| Value::from("p".repeat(length));
            let most = baton_contract::PATH_BYTES_MAX;
            vec![Edge::of([path(most)], [path(most + 1), "../x".into()])]
        }
        Shape::Sha256 => {
            let digest = |length: usize| Value::from("a".repeat(length));
            vec![Edge::of([digest(64)], [digest(63), digest(65)])]
        }
        Shape::Number { least, most } => {
            let below = least.checked_sub(1).filter(|below| *below > 0);
            let beyond = below
                .into_iter()
                .chain(most.checked_add(1))
                .map(Value::from);
            vec![Edge::of(
                [(*least).into(), (*most).into()],
                beyond.collect::<Vec<_>>(),
            )]
        }
        Shape::List { of, most } => {
            let some = |count: usize| (0..count).map(|n| plain(of, n)).collect::<Value>();
            let long = Edge::of([some(*most)], [some(most + 1)]);
            let entries = edges(of)
                .into_iter()
                .map(|edge| edge.inside(|one| json!([one])));
            entries.chain([long]).collect()
        }
        Shape::Object(fields) => edges_of_members(fields),
        Shape::Labels => edges_of_labels(),
        Shape::OneOf(_) | Shape::Flag => Vec::new(),
    }
}

/// Of one member at a time, beside what is required.
fn edges_of_members(fields: &[Field]) -> Vec<Edge> {
    let of_field = |field: &Field| {
        let name = field.name;
        let rest = required(fields);
        let edges = edges(&field.shape).into_iter();
        edges
            .map(|edge| {
                edge.inside(|value| {
                    let mut whole = rest.clone();
                    whole.insert(name.to_owned(), value);
                    Value::Object(whole)
                })
            })
            .collect::<Vec<_>>()
    };
    fields.iter().flat_map(of_field).collect()
}

fn edges_of_labels() -> Vec<Edge> {
    let many = |count: usize| -> Value {
        let pairs = (0..count).map(|n| (format!("k{n}"), Value::from("v")));
        Value::Object(pairs.collect())
    };
    let one = |key: usize, value: usize| json!({"k".repeat(key): "v".repeat(value)});
    vec![
        Edge::of([many(64)], [many(65)]),
        Edge::of([one(63, 1)], [one(64, 1), json!({"a b": ""})]),
        Edge::of([one(1, 256)], [one(1, 257), json!({"a": "\n"})]),
    ]
}

/// A value that nobody could object to; another one for each number.
fn plain(shape: &Shape, number: usize) -> Value {
    match shape {
        Shape::Text(_) | Shape::Maybe(_) | Shape::Words(_) | Shape::Name(_) | Shape::Path => {
            format!("p{number}").into()
        }
        Shape::Id => uuid::Uuid::now_v7().to_string().into(),
        Shape::Sha256 => "a".repeat(64).into(),
        Shape::OneOf(words) => words[number % words.len()].into(),
        Shape::Number { least, .. } => (*least).into(),
        Shape::Flag => true.into(),
        Shape::List { of, .. } => json!([plain(of, number)]),
        Shape::Object(fields) => {
            let mut whole = required(fields);
            for value in whole.values_mut().filter(|value| value.is_string()) {
                *value = format!("p{number}").into();
            }
            Value::Object(whole)
        }
        Shape::Labels => json!({}),
    }
}

fn required(fields: &[Field]) -> Map<String, Value> {
    let required = fields.iter().filter(|field| field.required);
    required
        .map(|field| (field.name.to_owned(), plain(&field.shape, 0)))
        .collect()
}

/// A relay in this process, and an agent of it that asks without looking at the schema.
struct Scene {
    agent: Alone,
    _relay: server::Relay,
    _dir: TempDir,
}

impl Scene {
    async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let config = RelayConfig::new(data.clone(), "127.0.0.1:0".parse().unwrap());
        let relay = server::start(config).await.unwrap();
        let url = format!("http://{}", relay.address());
        let admin = std::fs::read_to_string(data.join(ADMIN_TOKEN_FILE)).unwrap();
        let admin = Relay::connect(&url, admin.trim(), None).await.unwrap();
        let request = CreateTokenRequest {
            name: "ada".to_owned(),
            role: Role::Agent.into(),
            agent_scope: scope(),
            ..CreateTokenRequest::default()
        };
        let made = admin.operator().create_token(request).await.unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, made.into_inner().secret.unwrap().value).unwrap();
        let args = RelayArgs {
            relay: Some(url),
            token_file: Some(token),
            ..RelayArgs::default()
        };
        let session = Session::without_signals();
        Self {
            agent: Alone::new(args, None, Clock::boot(), session),
            _relay: relay,
            _dir: dir,
        }
    }

    /// Whether the relay takes it: every other refusal than of its shape is about what there is, not about what was said.
    async fn takes(&mut self, call: Call, args: &Args) -> Result<(), String> {
        self.stand(call).await;
        match self.agent.answer(call, args).await {
            Err(refusal) if refusal.status == INVALID => {
                Err(format!("{}: {}", refusal.code, refusal.what))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Holds a task where the call is about one, and none where it would get one.
    async fn stand(&mut self, call: Call) {
        let getting = matches!(call, Call::Start | Call::Claim | Call::PickUp);
        let held = self.agent.held.borrow().is_some();
        if getting {
            self.agent.held.send_replace(None);
        } else if !held {
            let Value::Object(goal) = json!({"goal": "x", "agent_scope": scope()}) else {
                unreachable!()
            };
            let started = self.agent.answer(Call::Start, &Args(goal)).await;
            started.expect("a task can be started");
        }
    }
}

/// Arguments that are right, with one of them replaced.
fn with(call: Call, outcome: Option<&str>, name: &str, value: Value) -> Args {
    let mut whole = required(fields_of(call));
    if call == Call::Start {
        whole.insert("agent_scope".to_owned(), scope().into());
    }
    if let Some(outcome) = outcome {
        whole.insert("outcome".to_owned(), outcome.into());
    }
    whole.insert(name.to_owned(), value);
    Args(whole)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_schema_takes_the_relay_takes_and_what_one_refuses_both_refuse() {
    let mut scene = Scene::open().await;
    let mut seen = 0;
    for (_, tool) in tools() {
        for field in fields_of(tool.call) {
            let outcome = (field.name == "failure_code").then_some("failed");
            for edge in edges(&field.shape) {
                let at = format!("{} of {}", field.name, tool.name);
                for value in edge.within.into_iter().filter(|_| field.name != SEALED) {
                    let args = with(tool.call, outcome, field.name, value);
                    assert_eq!(check(tool.call, &args), Ok(()), "{at} within");
                    assert_eq!(scene.takes(tool.call, &args).await, Ok(()), "{at} within");
                }
                for value in edge.beyond {
                    let args = with(tool.call, outcome, field.name, value);
                    assert!(check(tool.call, &args).is_err(), "{at} beyond");
                    let own = is_own(tool.call, field.name);
                    let taken = scene.takes(tool.call, &args).await;
                    assert!(own || taken.is_err(), "{at} beyond: the relay takes it");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 80, "{seen} bounds were tried");
}

/// A task that is held is named to the server, which knows it, and not to the relay.
fn is_own(call: Call, field: &str) -> bool {
    let held = matches!(
        call,
        Call::Progress | Call::Checkpoint | Call::Block | Call::Complete | Call::Release
    );
    held && field == "task_id"
}

/// The words of a failure and of a cancel are shorter than those of a result.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_task_has_the_bounds_of_its_outcome() {
    let mut scene = Scene::open().await;
    for (outcome, field, size) in [
        ("failed", "summary", MESSAGE),
        ("failed", "result", MESSAGE),
        ("canceled", "summary", REASON),
    ] {
        let whole = |more| with(Call::Complete, Some(outcome), field, filled(size, more));
        let (within, beyond) = (whole(0), whole(1));
        assert!(check(Call::Complete, &beyond).is_err(), "{outcome} {field}");
        assert!(scene.takes(Call::Complete, &beyond).await.is_err());
        assert_eq!(check(Call::Complete, &within), Ok(()), "{outcome} {field}");
        assert_eq!(scene.takes(Call::Complete, &within).await, Ok(()));
    }
}
