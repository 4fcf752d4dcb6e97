//! Helpers that send daemon messages and read what daemons receive.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{CoreHarness, DispatchedAttempt, TestDaemon};
use crate::ids::{AttemptId, DaemonId, InstanceId, SessionId, TenantScope, TokenId};
use crate::io::effects::{
    AttemptSettlement, DaemonMessage, Delivery, LeaseRenewal, SettlementVerdict,
};
use crate::io::rejection::Rejection;
use crate::io::session_input::{
    ActiveAttempt, ActiveAttemptState, AttemptFrame, DaemonHello, FrameBody, HeartbeatMessage,
    LeaseExtension, SessionInput,
};
use crate::io::stored_lookup::TaskLookup;
use crate::record::LifecyclePhase;
use crate::time::IdSource;

impl CoreHarness {
    /// Connects a daemon with four slots that can run every task of these tests.
    pub(in crate::tests) fn connect_daemon(&mut self, n: u128) -> TestDaemon {
        let machine = TestDaemon {
            daemon: DaemonId(Uuid::from_u128(n)),
            session: SessionId(self.ids.new_id()),
            instance: InstanceId(Uuid::from_u128(n << 8)),
            boot: "boot-1",
            slots: 4,
        };
        self.connect(&machine, Vec::new());
        machine
    }

    pub(in crate::tests) fn connect(
        &mut self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
    ) -> Vec<AttemptSettlement> {
        self.connect_with(machine, active, |_| {})
    }

    pub(in crate::tests) fn connect_with(
        &mut self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
        change: impl FnOnce(&mut DaemonHello),
    ) -> Vec<AttemptSettlement> {
        self.open(machine, active, change);
        let welcome = self.deliveries.iter().rev().find_map(|send| match send {
            Delivery::ToSession {
                session,
                message: DaemonMessage::Welcome { settlements, .. },
            } if *session == machine.session => Some(settlements.clone()),
            _ => None,
        });
        self.send_first_heartbeat(machine);
        welcome.expect("each Hello has a Welcome")
    }

    /// Sends the first heartbeat, which shows that the daemon has read Welcome. Its answer is
    /// discarded.
    pub(in crate::tests) fn send_first_heartbeat(&mut self, machine: &TestDaemon) {
        let known = self.core.fleet().roster().get(machine.daemon);
        let heartbeat = HeartbeatMessage {
            seq: 0,
            received_ack_seq: None,
            renewals: Vec::new(),
            free_slots: machine.slots,
            draining: known.is_some_and(|daemon| daemon.draining),
            unfit: false,
            load: None,
        };
        self.send_input(SessionInput::Heartbeat {
            session: machine.session,
            heartbeat,
        });
        let answers = |send: &Delivery| {
            matches!(
                send,
                Delivery::ToSession {
                    message: DaemonMessage::HeartbeatAck { seq: 0, .. },
                    ..
                }
            )
        };
        self.deliveries.retain(|send| !answers(send));
    }

    /// Sends Hello without a check of the answer.
    pub(in crate::tests) fn open(
        &mut self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
        change: impl FnOnce(&mut DaemonHello),
    ) {
        let mut hello = self.hello(machine, active);
        change(&mut hello);
        self.send_input(SessionInput::Opened {
            session: machine.session,
            hello: Box::new(hello),
        });
    }

    /// The Hello of a daemon.
    pub(in crate::tests) fn hello(
        &self,
        machine: &TestDaemon,
        active: Vec<ActiveAttempt>,
    ) -> DaemonHello {
        DaemonHello {
            daemon: machine.daemon,
            scope: TenantScope::All,
            token: TokenId(Uuid::from_u128(9)),
            instance: machine.instance,
            boot_id: machine.boot.into(),
            name: format!("daemon-{}", machine.daemon.0.as_u128()).into(),
            version: "1".into(),
            platform: crate::record::DaemonPlatform::default(),
            slots: machine.slots,
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            agents: vec!["claude".into()],
            workspaces: Vec::new(),
            draining: false,
            active,
        }
    }

    /// A session id for a test that opens the stream itself.
    pub(in crate::tests) fn new_session(&mut self) -> SessionId {
        SessionId(self.ids.new_id())
    }

    /// Connects the same daemon on a new stream that lists these attempts.
    pub(in crate::tests) fn reconnect(
        &mut self,
        machine: &mut TestDaemon,
        active: &[(&DispatchedAttempt, ActiveAttemptState)],
    ) -> Vec<SettlementVerdict> {
        machine.session = SessionId(self.ids.new_id());
        let active = active
            .iter()
            .map(|(work, state)| self.active(work, *state))
            .collect();
        self.connect(machine, active)
            .into_iter()
            .map(|settlement| settlement.verdict)
            .collect()
    }

    pub(in crate::tests) fn active(
        &self,
        work: &DispatchedAttempt,
        state: ActiveAttemptState,
    ) -> ActiveAttempt {
        ActiveAttempt {
            frame_ref: work.frame_ref,
            proof: Some(work.token.clone()),
            state,
            control_seq: work.seq,
            output_end: 0,
            lookup: TaskLookup::from_finished(self.store.finished(work.frame_ref.task)),
        }
    }

    pub(in crate::tests) fn disconnect(&mut self, machine: &TestDaemon) {
        self.send_input(SessionInput::Closed {
            session: machine.session,
        });
    }

    pub(in crate::tests) fn beat(&mut self, machine: &TestDaemon, works: &[&DispatchedAttempt]) {
        let renewals = works
            .iter()
            .map(|work| (work.frame_ref.attempt, work.token.clone()))
            .collect();
        let heartbeat = HeartbeatMessage {
            seq: 1,
            received_ack_seq: None,
            renewals,
            free_slots: 0,
            draining: false,
            unfit: false,
            load: None,
        };
        self.send_input(SessionInput::Heartbeat {
            session: machine.session,
            heartbeat,
        });
    }

    /// Asks for a lease extension and returns the results.
    pub(in crate::tests) fn extend_leases(
        &mut self,
        machine: &TestDaemon,
        works: &[&DispatchedAttempt],
        granted_ms: u64,
    ) -> Vec<(AttemptId, LeaseRenewal)> {
        let attempts = works
            .iter()
            .map(|work| (work.frame_ref.attempt, work.token.clone()));
        self.send_input(SessionInput::ExtendLeases(LeaseExtension {
            session: machine.session,
            request: 1,
            attempts: attempts.collect(),
            granted_ms,
        }));
        let results = self
            .take_messages(machine)
            .into_iter()
            .find_map(|message| match message {
                DaemonMessage::ExtensionAck { results, .. } => Some(results),
                _ => None,
            });
        results.expect("each request has an answer")
    }

    /// Takes the dispatches since the last call.
    pub(in crate::tests) fn dispatches(&mut self) -> Vec<DispatchedAttempt> {
        std::mem::take(&mut self.dispatched)
    }

    pub(in crate::tests) fn dispatch(&mut self) -> DispatchedAttempt {
        let mut all = self.dispatches();
        assert_eq!(all.len(), 1, "one dispatch expected");
        all.remove(0)
    }

    /// Sends the next frame of an attempt.
    pub(in crate::tests) fn frame(&mut self, work: &mut DispatchedAttempt, body: FrameBody) {
        work.seq += 1;
        self.replay(work, work.seq, body);
    }

    pub(in crate::tests) fn replay(
        &mut self,
        work: &DispatchedAttempt,
        control_seq: u64,
        body: FrameBody,
    ) {
        let (session, re) = (work.session, work.frame_ref);
        let frame = AttemptFrame {
            session,
            frame_ref: re,
            control_seq,
            observed: self.now.wall,
            proof: None,
            body,
            workspace: None,
        };
        self.send_input(SessionInput::Frame(Box::new(frame)));
    }

    pub(in crate::tests) fn phase(&mut self, work: &mut DispatchedAttempt, phase: LifecyclePhase) {
        self.frame(
            work,
            FrameBody::Phase {
                phase,
                message: None,
                deadline: None,
            },
        );
    }

    /// Takes the only dispatch and lets its attempt be accepted, confirmed and started.
    pub(in crate::tests) fn take_started(&mut self) -> DispatchedAttempt {
        let mut work = self.dispatch();
        self.frame(&mut work, FrameBody::Accepted);
        self.frame(&mut work, FrameBody::Started);
        work
    }

    /// Messages to a daemon since the last look, but for acks and publications.
    pub(in crate::tests) fn take_messages(&mut self, machine: &TestDaemon) -> Vec<DaemonMessage> {
        let (own, rest): (Vec<Delivery>, Vec<Delivery>) = std::mem::take(&mut self.deliveries)
            .into_iter()
            .partition(|send| matches!(send, Delivery::ToSession { session, .. } if *session == machine.session));
        self.deliveries = rest;
        let messages = own.into_iter().filter_map(|send| match send {
            Delivery::ToSession { message, .. } => Some(message),
            _ => None,
        });
        messages.collect()
    }

    pub(in crate::tests) fn rejections(&mut self, machine: &TestDaemon) -> Vec<Rejection> {
        let codes = self
            .take_messages(machine)
            .into_iter()
            .filter_map(|message| match message {
                DaemonMessage::FrameRejected { code, .. } => Some(code),
                _ => None,
            });
        codes.collect()
    }
}
