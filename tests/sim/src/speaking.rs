//! What an attempt says on its way from its transcript over the daemon's outbox and the disk to a stream; and the judge of what leaves.

use baton_core::id::AttemptId;
use baton_core::input::{FrameBody, FrameRef};
use baton_core::time::Wall;
use baton_daemon_core::outbox::{Leaves, Record};

use crate::ghosts::Said;
use crate::held::{Held, Word, leaves};
use crate::links::Up;
use crate::outputs::Chunk;
use crate::world::{Event, World};

impl World {
    /// It comes to this, and whoever is there tells it.
    pub(crate) fn say(&mut self, index: usize, attempt: AttemptId, body: FrameBody) {
        if let Some(held) = self.daemons[index].held.get_mut(&attempt) {
            held.write_down(body);
        }
        self.fold(index, attempt);
    }

    pub(crate) fn fold_all(&mut self, index: usize) {
        let attempts: Vec<AttemptId> = self.daemons[index].held.keys().copied().collect();
        for attempt in attempts {
            self.fold(index, attempt);
        }
    }

    /// The daemon reads on in the transcript, if it is there and the shim lets it.
    pub(crate) fn fold(&mut self, index: usize, attempt: AttemptId) {
        if self.is_stopped(index) || self.daemons[index].down {
            return;
        }
        let (wall, limit) = (self.wall(), self.options.outbox_limit);
        let held = self.daemons[index].held.get_mut(&attempt);
        let Some(held) = held.filter(|held| held.reachable) else {
            return;
        };
        held.fold(wall);
        assert!(
            held.outbox.held() <= limit,
            "S13: {attempt} has {} bytes of output in memory",
            held.outbox.held()
        );
        self.store(index, attempt);
    }

    /// Hands what is new to the disk, which takes it at once or later.
    fn store(&mut self, index: usize, attempt: AttemptId) {
        let slow = self.options.slow_outbox && !self.healing && self.rng.chance(20);
        let Some(held) = self.daemons[index].held.get_mut(&attempt) else {
            return;
        };
        let was_idle = held.disk.is_idle();
        let entries = held.outbox.log_mut().take();
        held.disk.take(entries);
        if held.disk.is_idle() {
            return self.flush(index, attempt);
        }
        if slow && was_idle {
            let at = self.now + self.rng.between(1, 3_000);
            return self.at(
                at,
                Event::Store {
                    daemon: index,
                    attempt,
                },
            );
        }
        if was_idle {
            self.stored(index, attempt);
        }
    }

    /// The disk has written, and syncs where something urgent went in; a kill may come in between.
    pub(crate) fn stored(&mut self, index: usize, attempt: AttemptId) {
        let slow = self.options.slow_outbox && !self.healing && self.rng.chance(50);
        let held = self.daemons[index].held.get_mut(&attempt);
        let Some(held) = held.filter(|held| !held.disk.is_idle()) else {
            return;
        };
        held.disk.finish_sync();
        held.disk.write();
        if !slow {
            held.disk.finish_sync();
        }
        held.outbox.log_mut().on_durable(held.disk.durable());
        let syncing = !held.disk.is_idle();
        if !syncing && held.outbox.log().wants_new_file(held.outbox.held()) {
            let image = held.outbox.image();
            held.disk.replace(image);
            held.outbox.log_mut().on_durable(held.disk.durable());
            self.counts.images += 1;
        }
        if syncing {
            let at = self.now + self.rng.between(1, 200);
            self.at(
                at,
                Event::Store {
                    daemon: index,
                    attempt,
                },
            );
        }
        self.flush(index, attempt);
    }

    /// Puts on the stream what may leave.
    pub(crate) fn flush(&mut self, index: usize, attempt: AttemptId) {
        if self.is_stopped(index) {
            return;
        }
        let daemon = &self.daemons[index];
        let (Some(conn), true, false) = (daemon.conn, daemon.welcomed, daemon.down) else {
            return;
        };
        let records = self.leaving(index, attempt);
        let Some(held) = self.daemons[index].held.get(&attempt) else {
            return;
        };
        let (re, token, restored) = (held.re, held.token.clone(), held.restored);
        let said: Vec<Said> = records
            .iter()
            .filter_map(|record| said(re, record))
            .collect();
        self.doubled(index, conn, &said);
        let mut said = said.into_iter();
        for record in records {
            if !matches!(record, Record::Control { .. }) {
                self.send_up(conn, Up::Output(Box::new(Chunk { re, record })));
                continue;
            }
            let Some(said) = said.next() else {
                continue;
            };
            let proof = (!restored && self.rng.chance(50)).then(|| token.clone());
            self.saw_said(index, &said);
            self.daemons[index].past.said(said.clone());
            let nth = said.nth;
            let frame = Box::new(said.frame(self.conns[conn].session, proof));
            let ghost = false;
            self.send_up(conn, Up::Said { frame, nth, ghost });
        }
    }

    fn leaving(&mut self, index: usize, attempt: AttemptId) -> Vec<Record<Word, bool, Wall>> {
        let (now, kept) = (self.now, self.options.disk_outbox);
        let (mut leaving, mut muted) = (Vec::new(), 0);
        let held = self.daemons[index].held.get_mut(&attempt);
        let Some(held) = held.filter(|held| held.reachable) else {
            return leaving;
        };
        while let Some(record) = held.outbox.next_unsent() {
            if held.is_muted(now) {
                muted = 1;
                break;
            }
            assert!(
                !held.alive || now < held.rights.until,
                "S14: {attempt} speaks at {now}, and its lease was over at {}",
                held.rights.until
            );
            if kept {
                judge_stored(held, record);
            }
            if let Record::Control { seq, body, .. } = record {
                held.spoken.insert(*seq, body.nth);
            }
            leaving.push(record.clone());
            held.outbox.mark_sent();
        }
        self.counts.muted += muted;
        leaving
    }
}

/// Nothing leaves before the disk has it: a daemon, or a machine, that ended now would leave somebody who knows of it.
fn judge_stored(held: &Held, record: &Record<Word, bool, Wall>) {
    let Record::Control { seq, body, .. } = record else {
        return;
    };
    let leaves = leaves(&body.body);
    assert!(
        held.disk.knows(*seq, leaves),
        "outbox: frame {seq} of {} leaves before it is {}",
        held.re.attempt,
        match leaves {
            Leaves::Written => "written",
            Leaves::Synced => "synced",
        }
    );
}

fn said(re: FrameRef, record: &Record<Word, bool, Wall>) -> Option<Said> {
    let Record::Control {
        seq,
        observed_at,
        body,
    } = record
    else {
        return None;
    };
    Some(Said {
        re,
        control_seq: *seq,
        observed: *observed_at,
        body: body.body.clone(),
        nth: Some(body.nth),
    })
}
