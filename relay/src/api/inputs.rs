//! What agents ask and people answer: open inputs of the caller's tenant, and the answer to one of them.
//!
//! The relay keeps what the daemon sent as it is; here it is opened for people.

use baton_core::id::{AttemptId, InputId, TaskId, TenantId};
use baton_core::input::Input;
use baton_core::record::{Answer, AttemptRecord, InputKind, InputRecord, InputState, TaskRecord};
use baton_core::spec::TaskSpec;
use baton_proto::v1;
use baton_proto::v1::answer_request::Answer as Given;
use baton_proto::v1::inputs_server::Inputs;
use prost::Message;
use tonic::{Request, Response, Status};

use super::fault::{Fault, Thing};
use super::validate::{self, Why, invalid};
use super::{Api, actor, limits, paging, unary};
use crate::auth::Principal;
use crate::reader::{Reader, StoredTask};
use crate::records;
use crate::store::{Key, KeyRange, Kind, Page};
use crate::wire::timestamp;

#[tonic::async_trait]
impl Inputs for Api {
    async fn list_inputs(
        &self,
        request: Request<v1::ListInputsRequest>,
    ) -> Result<Response<v1::ListInputsResponse>, Status> {
        unary(request, |who, request| self.list_inputs_of(who, request)).await
    }

    async fn answer(
        &self,
        request: Request<v1::AnswerRequest>,
    ) -> Result<Response<v1::AnswerResponse>, Status> {
        unary(request, |who, request| self.answer_input(who, request)).await
    }
}

impl Api {
    async fn list_inputs_of(
        &self,
        who: Principal,
        request: v1::ListInputsRequest,
    ) -> Result<v1::ListInputsResponse, Fault> {
        let size = paging::page_size(request.page_size)?;
        let tasks = match request.task_id.as_str() {
            "" => {
                let tenant = who.tenant.clone();
                self.read(move |reader| live_tasks(reader, &tenant)).await?
            }
            id => vec![
                self.stored_task(&who.tenant, validate::id("task_id", id)?)
                    .await?,
            ],
        };
        let conditions = [
            request.task_id.as_bytes(),
            &[u8::from(request.include_closed)],
        ]
        .concat();
        let paging = self.paging(&who, "inputs", &conditions);
        let after = paging.id(&request.page_token)?;
        let shown = |(spec, record): &StoredTask| all_of(spec, record);
        let mut inputs: Vec<v1::Input> = tasks.iter().flat_map(shown).collect();
        inputs.retain(|input| request.include_closed || input.state() == v1::InputState::Open);
        inputs.retain(|input| after.is_none_or(|after| input.input_id > after.to_string()));
        inputs.sort_by(|one, other| one.input_id.cmp(&other.input_id));
        let more = inputs.len() > size;
        inputs.truncate(size);
        let last = inputs
            .last()
            .filter(|_| more)
            .map(|input| input.input_id.parse::<InputId>());
        let next = last
            .and_then(Result::ok)
            .map(|id| paging.token(id.0.as_bytes()));
        Ok(v1::ListInputsResponse {
            inputs,
            next_page_token: next.unwrap_or_default(),
        })
    }

    async fn answer_input(
        &self,
        who: Principal,
        request: v1::AnswerRequest,
    ) -> Result<v1::AnswerResponse, Fault> {
        let task: TaskId = validate::id("task_id", &request.task_id)?;
        let input: InputId = validate::id("input_id", &request.input_id)?;
        let given = validate::present("answer", request.answer.clone())?;
        let (approved, payload) = checked(&given, &request.tool_input_sha256)?;
        let (spec, record) = self.stored_task(&who.tenant, task).await?;
        let (attempt, asked) = find(&record, input).ok_or(Fault::NotFound(Thing::Input))?;
        refuse_stale(&request, &given, attempt, asked)?;
        let already_answered = asked.state != InputState::Open;
        let (tenant, by) = (who.tenant.clone(), actor(&who));
        let ask = move |request| Input::Answer {
            request,
            tenant,
            task,
            input,
            by,
            approved,
            payload: payload.into(),
        };
        let after = self.task_after(ask).await?;
        let (attempt, answered) = find(&after, input).ok_or(Fault::Internal)?;
        Ok(v1::AnswerResponse {
            input: Some(shown(&spec, &after, attempt, answered)),
            already_answered,
        })
    }
}

/// What the core keeps of an answer: the decision, and the words for the agent as the wire has them.
fn checked(given: &Given, digest: &[u8]) -> Result<(Option<bool>, Vec<u8>), Fault> {
    match given {
        Given::Permission(reply) => {
            validate::enumeration::<v1::PermissionScope>("permission.scope", reply.scope)?;
            validate::text("permission.message", &reply.message, limits::REASON)?;
            let decision = v1::PermissionDecision {
                scope: reply.scope,
                message: reply.message.clone(),
                tool_input_sha256: bytes::Bytes::copy_from_slice(digest),
                ..v1::PermissionDecision::default()
            };
            Ok((Some(reply.allow), decision.encode_to_vec()))
        }
        Given::Question(reply) => {
            validate::count("question.labels", reply.labels.len(), limits::ANSWER_LABELS)?;
            for label in &reply.labels {
                validate::not_blank("question.labels", label, limits::NAME)?;
            }
            validate::text("question.text", &reply.text, limits::ANSWER)?;
            if reply.labels.is_empty() && reply.text.trim().is_empty() {
                return Err(invalid("question.text", Why::Blank).into());
            }
            let answer = v1::QuestionAnswer {
                labels: reply.labels.clone(),
                text: reply.text.clone(),
                ..v1::QuestionAnswer::default()
            };
            Ok((None, answer.encode_to_vec()))
        }
    }
}

/// An answer is bound to what the answerer saw: the attempt, the kind and the exact tool input.
fn refuse_stale(
    request: &v1::AnswerRequest,
    given: &Given,
    attempt: &AttemptRecord,
    asked: &InputRecord,
) -> Result<(), Fault> {
    if !request.attempt_id.is_empty() {
        let seen: AttemptId = validate::id("attempt_id", &request.attempt_id)?;
        if seen != attempt.id {
            return Err(Fault::StaleAnswer);
        }
    }
    let fits = match (given, asked.kind) {
        (Given::Permission(_), InputKind::Permission) => {
            let shown = v1::PermissionRequest::decode(&*asked.payload).unwrap_or_default();
            request.tool_input_sha256.is_empty()
                || request.tool_input_sha256 == shown.tool_input_sha256
        }
        (Given::Question(_), InputKind::Question) => true,
        (Given::Permission(_), InputKind::Question)
        | (Given::Question(_), InputKind::Permission) => {
            return Err(invalid(
                "answer",
                Why::Conflict {
                    with: "the kind of the input",
                },
            )
            .into());
        }
    };
    if fits {
        Ok(())
    } else {
        Err(Fault::StaleAnswer)
    }
}

fn find(record: &TaskRecord, input: InputId) -> Option<(&AttemptRecord, &InputRecord)> {
    record.attempts.iter().rev().find_map(|attempt| {
        let found = attempt.inputs.iter().find(|known| known.id == input)?;
        Some((attempt, found))
    })
}

/// Open tasks of the tenant, as many as one list looks at.
fn live_tasks(reader: &Reader, tenant: &TenantId) -> Vec<StoredTask> {
    let range = KeyRange::of(&records::tenant_text(tenant), Kind::Live);
    let Ok(scan) = reader.store().scan(&range, &Page::first(limits::LIST_SCAN)) else {
        return Vec::new();
    };
    let waiting = scan.entries.iter().filter_map(|(key, bytes)| {
        let Key::Live { .. } = key else { return None };
        let record = records::decode_task(bytes).ok()?;
        record
            .attempts
            .iter()
            .any(|attempt| !attempt.inputs.is_empty())
            .then_some(record)
    });
    waiting
        .filter_map(|record| Some((reader.spec(tenant, record.task)?, record)))
        .collect()
}

/// What waits for a person now.
pub(super) fn open_of(spec: &TaskSpec, record: &TaskRecord) -> Vec<v1::Input> {
    let mut inputs = all_of(spec, record);
    inputs.retain(|input| input.state() == v1::InputState::Open);
    inputs
}

fn all_of(spec: &TaskSpec, record: &TaskRecord) -> Vec<v1::Input> {
    let pairs = record
        .attempts
        .iter()
        .flat_map(|a| a.inputs.iter().map(move |input| (a, input)));
    pairs
        .map(|(attempt, input)| shown(spec, record, attempt, input))
        .collect()
}

fn shown(
    spec: &TaskSpec,
    record: &TaskRecord,
    attempt: &AttemptRecord,
    input: &InputRecord,
) -> v1::Input {
    let (state, outcome, answer) = standing(attempt, input);
    let (scope, labels, text) = answer
        .map(|answer| words_of(input.kind, answer))
        .unwrap_or_default();
    v1::Input {
        input_id: input.id.to_string(),
        task_id: record.task.to_string(),
        attempt_id: attempt.id.to_string(),
        attempt_number: attempt.number,
        kind: kind(input.kind).into(),
        state: state.into(),
        outcome: outcome.into(),
        body: body(input),
        asked_at: Some(timestamp(input.asked)),
        expires_at: None,
        answered_at: answer.map(|answer| timestamp(answer.at)),
        answered_by: answer
            .map(|answer| answer.by.to_string())
            .unwrap_or_default(),
        scope,
        labels,
        text,
        goal: spec.goal.clone(),
        agent: spec.agent.clone(),
    }
}

fn kind(kind: InputKind) -> v1::InputKind {
    match kind {
        InputKind::Permission => v1::InputKind::Permission,
        InputKind::Question => v1::InputKind::Question,
    }
}

fn body(input: &InputRecord) -> Option<v1::input::Body> {
    let payload = &*input.payload;
    match input.kind {
        InputKind::Permission => v1::PermissionRequest::decode(payload)
            .ok()
            .map(v1::input::Body::Permission),
        InputKind::Question => v1::Question::decode(payload)
            .ok()
            .map(v1::input::Body::Question),
    }
}

/// An input that is open when its attempt ends is nobody's to answer any more.
fn standing<'a>(
    attempt: &AttemptRecord,
    input: &'a InputRecord,
) -> (v1::InputState, v1::InputOutcome, Option<&'a Answer>) {
    use v1::{InputOutcome as Outcome, InputState as Standing};
    let ended = attempt.state.end().is_some();
    match &input.state {
        InputState::Open if ended => (Standing::Closed, Outcome::Superseded, None),
        InputState::Open => (Standing::Open, Outcome::Unspecified, None),
        InputState::Answered(answer) => (Standing::Answered, outcome(answer), Some(answer)),
        InputState::Received(answer) => (Standing::Received, outcome(answer), Some(answer)),
        InputState::Withdrawn => (Standing::Closed, Outcome::Withdrawn, None),
        InputState::Expired => (Standing::Closed, Outcome::Expired, None),
    }
}

fn outcome(answer: &Answer) -> v1::InputOutcome {
    match answer.approved {
        Some(true) => v1::InputOutcome::Allowed,
        Some(false) => v1::InputOutcome::Denied,
        None => v1::InputOutcome::Answered,
    }
}

fn words_of(kind: InputKind, answer: &Answer) -> (i32, Vec<String>, String) {
    match kind {
        InputKind::Permission => {
            let said = v1::PermissionDecision::decode(&*answer.payload).unwrap_or_default();
            (said.scope, Vec::new(), said.message)
        }
        InputKind::Question => {
            let said = v1::QuestionAnswer::decode(&*answer.payload).unwrap_or_default();
            (0, said.labels, said.text)
        }
    }
}
