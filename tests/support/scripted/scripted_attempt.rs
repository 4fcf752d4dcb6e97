//! One attempt of a scripted daemon: numbers its frames and tracks the end of its output.

use baton_proto::v1::attempt_frame::Body;
use baton_proto::v1::{
    AttemptFrame, AttemptRef, DaemonFrame, Dispatch, LeaseToken, LifecyclePhase, OutputKind,
    PermissionRequest, Stream, TaskAccepted, TaskCanceled, TaskComplete, TaskError, TaskLifecycle,
    TaskRejected, TaskStarted, TerminationReceipt, daemon_frame,
};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

#[derive(Clone, Debug)]
pub struct ScriptedAttempt {
    pub attempt_ref: AttemptRef,
    pub dispatch: Dispatch,
    /// Number of the last control frame.
    pub control_seq: u64,
    /// End of the output.
    pub offset: u64,
    /// The value of `within_lease` on terminal frames.
    pub within_lease: bool,
    outgoing: mpsc::Sender<DaemonFrame>,
}

impl ScriptedAttempt {
    pub(crate) fn new(
        attempt_ref: AttemptRef,
        dispatch: Dispatch,
        outgoing: mpsc::Sender<DaemonFrame>,
    ) -> Self {
        Self {
            attempt_ref,
            dispatch,
            control_seq: 0,
            offset: 0,
            within_lease: true,
            outgoing,
        }
    }

    pub fn id(&self) -> &str {
        &self.attempt_ref.attempt_id
    }

    pub fn token(&self) -> LeaseToken {
        self.dispatch
            .token
            .clone()
            .expect("a dispatch contains its token")
    }

    /// Moves the attempt to another stream.
    pub(crate) fn move_to_stream(&mut self, outgoing: mpsc::Sender<DaemonFrame>) {
        self.outgoing = outgoing;
    }

    /// Drops its sender of the stream, which ends when its daemon has dropped its own.
    pub fn detach_stream(&mut self) {
        self.outgoing = mpsc::channel(1).0;
    }

    /// A frame of this attempt with a number that the test chooses.
    pub fn frame(&self, control_seq: u64, body: Body) -> AttemptFrame {
        AttemptFrame {
            r#ref: Some(self.attempt_ref.clone()),
            control_seq,
            within_lease: self.within_lease,
            body: Some(body),
            ..AttemptFrame::default()
        }
    }

    /// Sends any frame unchanged.
    pub async fn send_frame(&self, frame: AttemptFrame) {
        let frame = DaemonFrame {
            frame: Some(daemon_frame::Frame::Attempt(frame)),
        };
        self.outgoing.send(frame).await.expect("the stream is open");
    }

    /// Sends a control frame with the next number.
    pub async fn send(&mut self, body: Body) {
        self.control_seq += 1;
        self.send_frame(self.frame(self.control_seq, body)).await;
    }

    pub async fn accept(&mut self) {
        self.send(Body::Accepted(TaskAccepted::default())).await;
    }

    pub async fn reject(&mut self, rejected: TaskRejected) {
        self.send(Body::Rejected(rejected)).await;
    }

    pub async fn send_started(&mut self) {
        self.send(Body::Started(TaskStarted::default())).await;
    }

    pub async fn send_phase(&mut self, phase: LifecyclePhase) {
        self.send(Body::Lifecycle(TaskLifecycle {
            phase: phase.into(),
            ..TaskLifecycle::default()
        }))
        .await;
    }

    pub async fn send_tool_phase(&mut self, phase: LifecyclePhase, id: &str) {
        self.send(Body::Lifecycle(TaskLifecycle {
            phase: phase.into(),
            tool_call_id: id.to_owned(),
            tool_name: "bash".to_owned(),
            ..TaskLifecycle::default()
        }))
        .await;
    }

    /// Sends visible output.
    pub async fn send_output(&mut self, text: &str) {
        let stream = Stream {
            offset: self.offset,
            chunk: Bytes::copy_from_slice(text.as_bytes()),
            after_control_seq: self.control_seq,
            visible: true,
            kind: OutputKind::Text.into(),
            ..Stream::default()
        };
        self.offset += text.len() as u64;
        self.send_frame(self.frame(0, Body::Stream(stream))).await;
    }

    /// Asks for permission to use a tool and returns the id of the input.
    pub async fn ask_permission(&mut self) -> String {
        self.ask_permission_for(b"{\"command\":\"ls\"}").await
    }

    /// The same with these tool arguments.
    pub async fn ask_permission_for(&mut self, arguments: &[u8]) -> String {
        let input_id = uuid::Uuid::now_v7().to_string();
        let tool_input = Bytes::copy_from_slice(arguments);
        let digest: [u8; 32] = Sha256::digest(&tool_input).into();
        self.send(Body::PermissionRequest(PermissionRequest {
            input_id: input_id.clone(),
            tool_name: "bash".to_owned(),
            tool_input,
            tool_input_sha256: Bytes::copy_from_slice(&digest),
            ..PermissionRequest::default()
        }))
        .await;
        input_id
    }

    pub fn completion_body(&self, result: &str) -> Body {
        Body::Complete(TaskComplete {
            final_offset: self.offset,
            receipt: Some(receipt()),
            result: Bytes::copy_from_slice(result.as_bytes()),
            ..TaskComplete::default()
        })
    }

    pub async fn complete(&mut self, result: &str) {
        self.send(self.completion_body(result)).await;
    }

    pub async fn fail(&mut self, code: &str) {
        self.send(Body::Error(TaskError {
            final_offset: self.offset,
            receipt: Some(TerminationReceipt {
                exit_code: Some(1),
                ..receipt()
            }),
            failure_code: code.to_owned(),
            ..TaskError::default()
        }))
        .await;
    }

    pub async fn send_canceled(&mut self) {
        self.send(Body::Canceled(TaskCanceled {
            final_offset: self.offset,
            receipt: Some(receipt()),
            ..TaskCanceled::default()
        }))
        .await;
    }
}

/// A receipt for a process that ran and exited by itself, with no process left.
pub fn receipt() -> TerminationReceipt {
    TerminationReceipt {
        exit_code: Some(0),
        group_empty: true,
        prompt_written: Some(true),
        process_started: true,
        ..TerminationReceipt::default()
    }
}
