//! Tests of the store on a real disk, and their shared fixture: a directory, a sync that can be
//! blocked or made to fail, and the failures passed to the fatal hook.

mod crash;
mod damage;
mod dump;
mod durability;
mod key;
mod migration;
mod scan;
mod sled_damaged_page;
mod sled_unchanged_files;
mod startup;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use uuid::Uuid;

use super::{
    CommitSeq, FatalHook, JournalAppendError, KeyText, OpenedStore, RecordKey, Store, StoreChange,
    StoreConfig, StoreFailure, StoreOpenError,
};

const DEADLINE: Duration = Duration::from_secs(20);

/// What the next syncs do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SyncBehavior {
    #[default]
    Pass,
    Wait,
    Fail,
}

#[derive(Debug, Default)]
struct SyncGate {
    syncs: Mutex<SyncBehavior>,
    changed: Condvar,
    /// Whether a sync ever had to wait.
    sync_blocked: Mutex<bool>,
    sync_arrived: Condvar,
}

impl SyncGate {
    fn set(&self, syncs: SyncBehavior) {
        *self.syncs.lock().unwrap() = syncs;
        self.changed.notify_all();
    }

    /// Returns once a sync waits at the gate.
    fn wait_for_blocked_sync(&self) {
        let blocked = self.sync_blocked.lock().unwrap();
        drop(
            self.sync_arrived
                .wait_while(blocked, |blocked| !*blocked)
                .unwrap(),
        );
    }

    fn sync(&self) -> io::Result<()> {
        let waits = |syncs: &mut SyncBehavior| {
            if *syncs == SyncBehavior::Wait {
                *self.sync_blocked.lock().unwrap() = true;
                self.sync_arrived.notify_all();
            }
            *syncs == SyncBehavior::Wait
        };
        match *self
            .changed
            .wait_while(self.syncs.lock().unwrap(), waits)
            .unwrap()
        {
            SyncBehavior::Fail => Err(io::Error::other("injected disk failure")),
            SyncBehavior::Pass | SyncBehavior::Wait => Ok(()),
        }
    }
}

#[derive(Debug)]
struct StoreFixture {
    dir: TempDir,
    gate: Arc<SyncGate>,
    fatal: Arc<Mutex<Vec<StoreFailure>>>,
}

impl StoreFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            dir,
            gate: Arc::default(),
            fatal: Arc::default(),
        }
    }

    fn config(&self) -> StoreConfig {
        let (gate, fatal) = (Arc::clone(&self.gate), Arc::clone(&self.fatal));
        let mut config = StoreConfig::new(self.dir.path().join("store"), Uuid::now_v7());
        config.on_fatal = FatalHook::new(move |what| fatal.lock().unwrap().push(what.clone()));
        config.sync =
            Arc::new(move |file| gate.sync().and_then(|()| Ok(rustix::fs::fdatasync(file)?)));
        config
    }

    /// Applies nothing before a close, so that a test can examine the journal.
    fn config_without_apply(&self) -> StoreConfig {
        StoreConfig {
            apply_after: Duration::from_secs(3600),
            ..self.config()
        }
    }

    fn open(&self) -> OpenedStore {
        Store::open(self.config()).unwrap()
    }

    fn open_refused(&self) -> StoreOpenError {
        match Store::open(self.config()) {
            Err(refusal) => refusal,
            // Print only the recovery, because the opened store may be large.
            Ok(opened) => panic!("the start must be refused: {:?}", opened.recovery),
        }
    }

    /// Ends like a crash: `last` is written and flushed, but its sync fails. So it is never
    /// acknowledged, and nothing is applied, truncated or marked after that.
    fn crash(&self, opened: OpenedStore, last: Vec<StoreChange>) {
        let OpenedStore {
            store, mut journal, ..
        } = opened;
        self.gate.set(SyncBehavior::Fail);
        let seq = journal.append(last).unwrap();
        assert!(
            wait(&store, seq).is_err(),
            "a failed sync must not acknowledge anything"
        );
        assert!(journal.close().is_err());
        self.gate.set(SyncBehavior::Pass);
    }

    fn sled(&self) -> PathBuf {
        self.dir.path().join("store/sled")
    }

    /// Changes sled's trees directly, without the store.
    fn edit_sled_trees(&self, change: impl FnOnce(&sled::Tree, &sled::Tree)) {
        let db = open_raw(&self.sled());
        change(
            &db.open_tree("records").unwrap(),
            &db.open_tree("journal").unwrap(),
        );
        db.flush().unwrap();
    }
}

fn open_raw(dir: &std::path::Path) -> sled::Db {
    for _ in 0..800 {
        match sled::open(dir) {
            Err(sled::Error::Io(error)) if error.to_string().contains("acquire lock") => {
                super::sled::store_paths::pause();
            }
            other => return other.unwrap(),
        }
    }
    panic!("sled's lock did not become free");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

/// Waits for durability; an error if the store has stopped.
fn wait(store: &Store, seq: CommitSeq) -> Result<(), super::StoreStopped> {
    runtime().block_on(async {
        tokio::time::timeout(DEADLINE, store.wait_durable(seq))
            .await
            .expect("durable within the deadline")
    })
}

fn commit(opened: &mut OpenedStore, changes: Vec<StoreChange>) -> CommitSeq {
    let seq = opened.journal.append(changes).unwrap();
    wait(&opened.store, seq).unwrap();
    seq
}

fn tenant(name: &str) -> KeyText {
    KeyText::new(name).unwrap()
}

fn done(number: u128) -> RecordKey {
    RecordKey::Done {
        tenant: tenant("acme"),
        task: Uuid::from_u128(number),
    }
}

fn put(number: u128, body: &[u8]) -> StoreChange {
    StoreChange::Put(done(number), body.to_vec())
}

fn body(store: &Store, number: u128) -> Option<Vec<u8>> {
    store.get(&done(number)).unwrap().map(|body| body.to_vec())
}

/// Bytes that vary with their position, so that misplaced pieces are detected.
fn patterned_bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at / 251) as u8 ^ (at as u8).wrapping_mul(31) ^ seed)
        .collect()
}
