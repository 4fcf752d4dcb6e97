//! The channels between the supervisor and the task of one attempt, made in one place.
//!
//! [`AttemptControl`] is the supervisor's handle, [`AttemptControlReceiver`] the task's. Orders are
//! one value: the task always sees the latest state of all of them, never a sequence. Answers are
//! queued, because each of them has to reach the agent.

use baton_daemon_core::lease_clock::LeaseClock;
use tokio::sync::{mpsc, watch};

use super::InputResponse;
use crate::clock::BootTime;

/// Answers on their way to the task of one attempt.
pub(crate) const ANSWER_QUEUE: usize = 64;

/// The order to stop an attempt. A later order can only bring SIGKILL forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StopRequest {
    pub(crate) kill_at: BootTime,
    /// The relay still accepts a result, so an agent may end its turn first.
    pub(crate) may_interrupt_turn: bool,
    /// The result is no longer wanted, so the check of the required files is skipped.
    pub(crate) result_unwanted: bool,
}

/// Everything that the supervisor currently orders and reports to the attempt's task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptOrders {
    pub(crate) stop: Option<StopRequest>,
    /// The lease as it was renewed last.
    pub(crate) lease: Option<LeaseClock>,
    /// The relay or the disk is slower than the child: the transcript is not read further.
    pub(crate) output_paused: bool,
    /// The agent has reported its outcome through a tool call: it needs no further turn.
    pub(crate) outcome_fixed: bool,
    /// Events that cover the transcript up to this position have reached the supervisor.
    pub(crate) received_position: u64,
    /// The transcript before this position is stored in frames and not needed again.
    pub(crate) consumed: u64,
    /// This many answers to the agent's requests are stored and may be written to its stdin.
    pub(crate) stored_answers: u64,
}

/// What [`AttemptControlReceiver::next_event`] waited for.
#[derive(Debug)]
pub(crate) enum ControlEvent {
    OrdersChanged,
    Answered(InputResponse),
}

/// The supervisor's handle on the task of a running attempt.
#[derive(Debug)]
pub(crate) struct AttemptControl {
    orders: watch::Sender<AttemptOrders>,
    answers: mpsc::Sender<InputResponse>,
    /// The limit of the lease that the shim has confirmed.
    lease_delivered: watch::Receiver<Option<BootTime>>,
}

/// The task's end of an [`AttemptControl`].
#[derive(Debug)]
pub(crate) struct AttemptControlReceiver {
    orders: watch::Receiver<AttemptOrders>,
    answers: mpsc::Receiver<InputResponse>,
    lease_delivered: watch::Sender<Option<BootTime>>,
    /// The stop order and the lease that the task acted on last.
    applied: AttemptOrders,
}

impl AttemptControl {
    /// `position` is where the task begins to read the transcript.
    pub(crate) fn new(lease: Option<LeaseClock>, position: u64) -> (Self, AttemptControlReceiver) {
        let first = AttemptOrders {
            lease,
            received_position: position,
            ..AttemptOrders::default()
        };
        let (orders, orders_receiver) = watch::channel(first);
        let (answers, answers_receiver) = mpsc::channel(ANSWER_QUEUE);
        let (delivery_sender, lease_delivered) = watch::channel(None);
        let control = Self {
            orders,
            answers,
            lease_delivered,
        };
        let receiver = AttemptControlReceiver {
            orders: orders_receiver,
            answers: answers_receiver,
            lease_delivered: delivery_sender,
            applied: first,
        };
        (control, receiver)
    }

    /// Orders the attempt to stop. A later order can only bring SIGKILL forward.
    pub(crate) fn stop(&self, stop: StopRequest) {
        self.update(|orders| {
            if orders.stop.is_none_or(|order| stop.kill_at < order.kill_at) {
                orders.stop = Some(stop);
            }
        });
    }

    pub(crate) fn renew(&self, lease: LeaseClock) {
        self.update(|orders| orders.lease = Some(lease));
    }

    /// Returns the answer when there is no room for it now.
    pub(crate) fn answer(&self, answer: InputResponse) -> Result<(), InputResponse> {
        self.answers
            .try_send(answer)
            .map_err(mpsc::error::TrySendError::into_inner)
    }

    pub(crate) fn set_output_paused(&self, paused: bool) {
        self.update(|orders| orders.output_paused = paused);
    }

    pub(crate) fn fix_outcome(&self) {
        self.update(|orders| orders.outcome_fixed = true);
    }

    pub(crate) fn set_received_position(&self, position: u64) {
        self.update(|orders| orders.received_position = position);
    }

    pub(crate) fn raise_consumed(&self, consumed: u64) {
        self.update(|orders| orders.consumed = orders.consumed.max(consumed));
    }

    pub(crate) fn raise_stored_answers(&self, count: u64) {
        self.update(|orders| orders.stored_answers = orders.stored_answers.max(count));
    }

    /// The limit of the lease that the shim has confirmed.
    pub(crate) fn delivered_limit(&self) -> Option<BootTime> {
        *self.lease_delivered.borrow()
    }

    /// A way to wait until the shim has this lease; `None` when it has it already.
    pub(crate) fn pending_lease_delivery(&self, lease: LeaseClock) -> Option<LeaseDelivery> {
        let limit = lease.limit();
        (self.delivered_limit() < Some(limit)).then(|| LeaseDelivery {
            delivered: self.lease_delivered.clone(),
            limit,
        })
    }

    /// Wakes the task only when something has changed.
    fn update(&self, change: impl FnOnce(&mut AttemptOrders)) {
        self.orders.send_if_modified(|orders| {
            let before = *orders;
            change(orders);
            *orders != before
        });
    }
}

impl AttemptControlReceiver {
    /// The orders as they are now. Does not mark them as seen, so that [`Self::next_event`]
    /// cannot miss a change that came after this read.
    pub(crate) fn orders(&self) -> AttemptOrders {
        *self.orders.borrow()
    }

    /// The orders as they are now, remembered for [`Self::stop_or_lease_changed`].
    pub(crate) fn apply_orders(&mut self) -> AttemptOrders {
        self.applied = self.orders();
        self.applied
    }

    /// Returns when any order has changed or an answer has come; never without a supervisor.
    /// Cancel safe.
    pub(crate) async fn next_event(&mut self) -> ControlEvent {
        tokio::select! {
            Ok(()) = self.orders.changed() => ControlEvent::OrdersChanged,
            Some(answer) = self.answers.recv() => ControlEvent::Answered(answer),
            else => std::future::pending().await,
        }
    }

    /// Returns when the stop order or the lease differs from what was last applied; never without
    /// a supervisor. Cancel safe.
    pub(crate) async fn stop_or_lease_changed(&mut self) {
        let AttemptOrders { stop, lease, .. } = self.applied;
        let differs = |orders: &AttemptOrders| orders.stop != stop || orders.lease != lease;
        if self.orders.wait_for(differs).await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns when the result is no longer wanted; never without a supervisor. Cancel safe.
    pub(crate) async fn result_unwanted(&mut self) -> StopRequest {
        let unwanted = |orders: &AttemptOrders| orders.stop.filter(|stop| stop.result_unwanted);
        let ordered = self.orders.wait_for(|orders| unwanted(orders).is_some());
        match ordered.await.ok().and_then(|orders| unwanted(&orders)) {
            Some(stop) => stop,
            None => std::future::pending().await,
        }
    }

    /// The shim has confirmed a lease with this limit.
    pub(crate) fn confirm_lease(&self, limit: Option<BootTime>) {
        self.lease_delivered.send_replace(limit);
    }

    /// For a connection to a shim that does not confirm leases by itself.
    pub(crate) fn lease_confirmations(&self) -> watch::Sender<Option<BootTime>> {
        self.lease_delivered.clone()
    }

    #[cfg(test)]
    pub(crate) fn try_next_answer(&mut self) -> Option<InputResponse> {
        self.answers.try_recv().ok()
    }
}

/// A lease on its way to a shim.
#[derive(Debug)]
pub(crate) struct LeaseDelivery {
    delivered: watch::Receiver<Option<BootTime>>,
    limit: BootTime,
}

impl LeaseDelivery {
    /// Completes when the shim has the lease. It never completes for an attempt whose task has
    /// ended: the supervisor learns of that by another event.
    pub(crate) async fn completed(mut self) {
        let limit = Some(self.limit);
        if self.delivered.wait_for(|has| *has >= limit).await.is_err() {
            std::future::pending().await
        }
    }
}
