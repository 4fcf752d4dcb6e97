//! Submit: one task per idempotency key, within the bounds, or refused before anything is written.

use std::sync::Arc;

use crate::bounds;
use crate::core::{Core, Turn};
use crate::effects::{After, Reply, Write};
use crate::id::{AttemptId, TaskId};
use crate::input::{Prior, Submit};
use crate::live::Live;
use crate::record::{
    AttemptRecord, Counters, EndState, EventKind, IdempotencyRecord, TaskRecord, TaskState,
    Timeline, TraceIds,
};
use crate::reject::{Full, Rejection};
use crate::spec::{DispatchPolicy, TaskSpec};
use crate::time::{Mint, Wall};
use crate::timers::{Fact, TimerSet};

impl Core {
    pub(crate) fn submit(&mut self, submit: Submit, turn: &mut Turn<'_>) {
        match self.prior(&submit) {
            Ok(Some(prior)) => return self.submit_again(&submit, &prior, turn),
            Ok(None) => {}
            Err(code) => return turn.refuse(submit.request, code),
        }
        if let Err(code) = self.admit(&submit.spec) {
            return turn.refuse(submit.request, code);
        }
        let live = self.open_task(&submit, turn);
        let record = self.keep(live, turn);
        turn.reply(
            submit.request,
            After::Task(submit.task),
            Reply::Submitted {
                record,
                created: true,
            },
        );
    }

    /// A new task with its first attempt in line. It was admitted.
    pub(crate) fn open_task(&mut self, submit: &Submit, turn: &mut Turn<'_>) -> Box<Live> {
        let spec = Arc::clone(&submit.spec);
        turn.write(Write::PutSpec {
            task: submit.task,
            spec: Arc::clone(&spec),
        });
        if let Some(key) = &spec.idempotency_key {
            let record = IdempotencyRecord {
                task: submit.task,
                digest: submit.digest,
            };
            self.keys
                .insert((spec.tenant.clone(), key.clone()), record.clone());
            turn.write(Write::PutIdempotency {
                tenant: spec.tenant.clone(),
                key: key.clone(),
                record,
            });
        }
        let record = new_record(submit.task, &spec, turn.now.wall, turn.mint);
        let mut live = Box::new(Live::new(spec, Arc::new(record), TimerSet::default()));
        live.note(EventKind::Submitted, None);
        self.add_attempt(&mut live, false, turn);
        live
    }

    /// What is known of this key: live tasks are ours to know, finished ones the store's. One that cannot be read may stand for a
    /// task: another one would be the second.
    pub(crate) fn prior(&self, submit: &Submit) -> Result<Option<Prior>, Rejection> {
        let key = submit.spec.idempotency_key.as_ref();
        let Some(key) = key.filter(|_| !mutant!(KeyIgnored)) else {
            return Ok(None);
        };
        if let Some(known) = self.keys.get(&(submit.spec.tenant.clone(), key.clone())) {
            return Ok(Some(Prior {
                task: known.task,
                digest: known.digest,
                finished: None,
            }));
        }
        let stored = submit.prior.as_ref().map_err(|_| Rejection::Unreadable)?;
        Ok(stored.as_ref().map(|prior| Prior {
            task: prior.task,
            digest: prior.digest,
            finished: prior.finished.clone(),
        }))
    }

    fn submit_again(&self, submit: &Submit, prior: &Prior, turn: &mut Turn<'_>) {
        if prior.digest != submit.digest && !mutant!(ConflictIgnored) {
            return turn.refuse(submit.request, Rejection::IdempotencyConflict);
        }
        let live = self.tasks.get(&prior.task).map(|live| live.shared());
        match live.or_else(|| prior.finished.clone()) {
            Some(record) => {
                turn.reply(
                    submit.request,
                    After::Task(prior.task),
                    Reply::Submitted {
                        record,
                        created: false,
                    },
                );
            }
            None => turn.refuse(submit.request, Rejection::UnknownTask),
        }
    }

    pub(crate) fn admit(&self, spec: &TaskSpec) -> Result<(), Rejection> {
        self.has_room_for(spec)?;
        match spec.dispatch_policy {
            DispatchPolicy::Queue => Ok(()),
            DispatchPolicy::FailFast if self.could_place(spec) => Ok(()),
            DispatchPolicy::FailFast => Err(Rejection::NoDaemon),
        }
    }

    /// The bounds on open tasks, for whatever opens one.
    pub(crate) fn has_room_for(&self, spec: &TaskSpec) -> Result<(), Rejection> {
        if self.tasks.len() >= self.config.max_open && !mutant!(BoundIgnored) {
            return Err(Rejection::QueueFull(Full::Tasks));
        }
        self.open.room_for(spec, &self.config)?;
        if self.open.tasks_of(&spec.tenant) >= self.config.max_open_per_tenant {
            return Err(Rejection::TenantQueueFull(Full::Tasks));
        }
        Ok(())
    }

    pub(crate) fn add_attempt(&mut self, live: &mut Live, asked: bool, turn: &mut Turn<'_>) {
        let id = AttemptId(turn.mint.id());
        self.add_attempt_as(id, live, asked, turn);
    }

    /// Attempt N+1, queued. The one place that makes attempts; the id is new, which is what fences the old one.
    pub(crate) fn add_attempt_as(
        &mut self,
        id: AttemptId,
        live: &mut Live,
        asked: bool,
        turn: &mut Turn<'_>,
    ) {
        let previous = live
            .record()
            .newest()
            .map(|newest| (newest.id, newest.number));
        let reused = previous.filter(|_| mutant!(AttemptIdReused));
        let id = reused.map_or(id, |(earlier, _)| earlier);
        let number = previous.map_or(1, |(_, number)| number + 1);
        let mut attempt = AttemptRecord::queued(id, number, span_id(turn.mint.id()), turn.now.wall);
        attempt.previous = previous.map(|(id, _)| id);
        attempt.asked = asked;
        attempt.fresh = live.record().newest().is_some_and(begins_anew);
        let record = live.record_mut();
        if let Some(last) = record.attempts.last_mut() {
            last.successor = Some(id);
            // What a person had to say holds until somebody says something else.
            attempt.resume = last.resume.take();
            bounds::shrink_earlier(last);
        }
        record.attempts.push(attempt);
        record.retry = None;
        record.attention = None;
        live.retry_at = None;
        live.written_seq = 0;
        live.timers = TimerSet::default();
        let limits = Live::limits(&live.spec, &self.config);
        live.timers.on_fact(&Fact::Queued, turn.now.at, &limits);
        if self.queue_stands_still(live) {
            live.timers.on_fact(&Fact::Paused, turn.now.at, &limits);
        }
        live.note(EventKind::Queued, None);
        self.line_up(live);
    }
}

/// What was given back without a try is still to be begun anew.
fn begins_anew(last: &AttemptRecord) -> bool {
    let end = last.state.end();
    last.fresh && end.is_some_and(|end| end.state == EndState::Released)
}

fn new_record(task: TaskId, spec: &TaskSpec, now: Wall, mint: &mut dyn Mint) -> TaskRecord {
    TaskRecord {
        tenant: spec.tenant.clone(),
        task,
        revision: 0,
        state: TaskState::Pending,
        created: now,
        updated: now,
        ended: None,
        attempts: Vec::with_capacity(1),
        cancel: None,
        attention: None,
        retry: None,
        counters: Counters::default(),
        paused: None,
        retry_stop: None,
        checkpoints: 0,
        checkpointed: 0,
        timeline: Timeline::default(),
        trace: trace_ids(spec, mint),
    }
}

/// The caller's trace goes on; without one a trace begins here.
fn trace_ids(spec: &TaskSpec, mint: &mut dyn Mint) -> TraceIds {
    let root_span = span_id(mint.id());
    match spec.traceparent.as_deref().and_then(parse_traceparent) {
        Some((trace_id, parent, sampled)) => TraceIds {
            trace_id,
            root_span,
            parent_span: Some(parent),
            sampled,
        },
        None => TraceIds {
            trace_id: *mint.id().as_bytes(),
            root_span,
            parent_span: None,
            sampled: true,
        },
    }
}

/// The second half of a fresh id: that is where its randomness is.
fn span_id(id: uuid::Uuid) -> [u8; 8] {
    (id.as_u64_pair().1 | 1).to_be_bytes()
}

/// `00-<32 hex>-<16 hex>-<2 hex>`; anything else, and all-zero ids, count as absent.
fn parse_traceparent(text: &str) -> Option<([u8; 16], [u8; 8], bool)> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let shaped = version == "00" && parts.next().is_none() && flags.len() == 2;
    let lower = |part: &str, len| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !shaped || !lower(trace, 32) || !lower(span, 16) || !lower(flags, 2) {
        return None;
    }
    let trace_id = u128::from_str_radix(trace, 16).ok().filter(|id| *id != 0)?;
    let span_id = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some((
        trace_id.to_be_bytes(),
        span_id.to_be_bytes(),
        flags & 1 == 1,
    ))
}
