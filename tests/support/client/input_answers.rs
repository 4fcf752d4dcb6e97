//! Inputs of agents, as a client lists and answers them.

use baton_proto::v1::answer_request::Answer;
use baton_proto::v1::input::Body;
use baton_proto::v1::{
    AnswerRequest, Input, ListInputsRequest, PermissionReply, QuestionReply, TaskEventKind,
};

use crate::client::test_client::TestClient;
use crate::wait::wait_within;

impl TestClient {
    /// Open inputs of a task.
    pub async fn open_inputs(&self, task_id: &str) -> Vec<Input> {
        let request = ListInputsRequest {
            task_id: task_id.to_owned(),
            ..ListInputsRequest::default()
        };
        let mut inputs = self.inputs();
        let listed = wait_within("a list of inputs", inputs.list_inputs(request)).await;
        listed.expect("inputs can be listed").into_inner().inputs
    }

    /// Open inputs, after `count` have been asked.
    pub async fn wait_for_inputs(&self, task_id: &str, count: usize) -> Vec<Input> {
        let mut watch = self.watch(task_id).await;
        for _ in 0..count {
            watch.wait_for_kind(TaskEventKind::InputAsked).await;
        }
        self.open_inputs(task_id).await
    }

    pub async fn answer_input(&self, input: &Input, answer: Answer) {
        let request = AnswerRequest {
            task_id: input.task_id.clone(),
            input_id: input.input_id.clone(),
            answer: Some(answer),
            ..AnswerRequest::default()
        };
        let mut inputs = self.inputs();
        let given = wait_within("an answer to Answer", inputs.answer(request)).await;
        given.expect("the answer is accepted");
    }

    pub async fn answer_permission(&self, input: &Input, allow: bool) {
        let reply = PermissionReply {
            allow,
            message: "because".to_owned(),
            ..PermissionReply::default()
        };
        self.answer_input(input, Answer::Permission(reply)).await;
    }

    /// Answers every input of a task until it ends: allows permissions and chooses the last
    /// option of questions.
    pub async fn answer_all(&self, task_id: &str) {
        let mut watch = self.watch(task_id).await;
        loop {
            let event = wait_within("the next event of the task", watch.next()).await;
            let Some(event) = event.expect("the watch does not fail") else {
                return;
            };
            if event.kind() != TaskEventKind::InputAsked {
                continue;
            }
            for input in self.open_inputs(task_id).await {
                match &input.body {
                    Some(Body::Question(question)) => {
                        let reply = QuestionReply {
                            labels: question
                                .options
                                .last()
                                .map(|last| last.label.clone())
                                .into_iter()
                                .collect(),
                            ..QuestionReply::default()
                        };
                        self.answer_input(&input, Answer::Question(reply)).await;
                    }
                    Some(Body::Permission(_)) | None => self.answer_permission(&input, true).await,
                }
            }
        }
    }
}
