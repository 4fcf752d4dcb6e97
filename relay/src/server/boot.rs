//! From a data directory to a running dispatcher: opens the stores, recovers the core, loads and makes credentials.

use std::io;
use std::path::Path;
use std::sync::Arc;

use baton_core::Core;
use baton_core::config::Config;
use baton_core::id::{Incarnation, RelayEpoch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::RelayError;
use crate::api::streams::LiveStreams;
use crate::api::transfer::Transfers;
use crate::api::{Api, tokens as api_tokens};
use crate::archive;
use crate::auth::{Tokens, bootstrap};
use crate::bodies::Bodies;
use crate::config::RelayConfig;
use crate::dispatcher::{Audience, Dispatcher, Loop, Parts};
use crate::inbox::Inbox;
use crate::mint::{Ids, SystemMint};
use crate::output::{OutputConfig, OutputLog};
use crate::reader::Reader;
use crate::retention;
use crate::sealer::Sealer;
use crate::session::{Admission, Shell, Stamp};
use crate::space;
use crate::store::{Change, FatalHook, Key, MetaKey, Opened, Store, StoreConfig};
use crate::telemetry::Telemetry;
use crate::watch::{WATCHERS_PER_TENANT, Watchers};

/// A relay whose dispatcher runs and which listens to nobody yet.
pub(super) struct Booted {
    pub(super) api: Api,
    pub(super) output: OutputLog,
    /// Ends when `finish` is cancelled, or by itself when the store can no longer be written.
    pub(super) dispatching: JoinHandle<()>,
    pub(super) finish: CancellationToken,
    pub(super) telemetry: Telemetry,
    /// What retention works on.
    pub(super) retained: retention::Parts,
    pub(super) guard: space::Guard,
}

/// What lies on disk, opened.
struct Disk {
    opened: Opened,
    output: OutputLog,
    bodies: Bodies,
}

/// `again` is cancelled, before `stop`, when the relay is to start anew with other data.
pub(super) async fn boot(
    config: &RelayConfig,
    guard: space::Guard,
    stop: &CancellationToken,
    again: &CancellationToken,
) -> Result<Booted, RelayError> {
    let telemetry = Telemetry::start(config.otlp.as_deref(), &config.clock)?;
    telemetry.add("disk_full_restarts", "", config.restarts);
    let Disk {
        opened,
        output,
        bodies,
    } = on_disk(config).await?;
    let reader = Reader::new(opened.store.clone(), bodies.clone(), &telemetry);
    let settings = settings(config, &opened);
    let audience = audience(&telemetry, &output);
    let (watchers, inbox) = (audience.watchers.clone(), audience.inbox.clone());
    let finish = CancellationToken::new();
    let Recovered {
        dispatch,
        dispatcher,
        ids,
    } = recover(config, &settings, opened, &reader, bodies.clone(), audience)?;
    let dispatching = tokio::spawn(dispatch.run(finish.clone()));
    let tokens = credentials(config, &reader, &dispatcher).await?;
    if settings.inherited_hold_ms > 0 {
        forget_inherited(&dispatcher).await?;
    }
    let stamp = Stamp {
        incarnation: settings.incarnation,
        epoch: settings.epoch,
    };
    let shell = Shell {
        dispatcher: dispatcher.clone(),
        reader: reader.clone(),
        output: output.clone(),
        clock: config.clock.clone(),
        stamp: Arc::new(stamp),
        telemetry: telemetry.clone(),
        tokens: tokens.clone(),
        admission: Admission::new(config.hello_rates),
        stop: stop.clone(),
    };
    let api = Api {
        dispatcher,
        reader,
        watchers,
        inbox,
        output: output.clone(),
        tokens,
        clock: config.clock.clone(),
        ids,
        config: Arc::new(settings),
        shell,
        streams: LiveStreams::new(config.network.live_streams_per_token, WATCHERS_PER_TENANT),
        started_at: config.clock.now().wall,
        stop: stop.clone(),
        transfers: Transfers::new(&config.data, again.clone()),
        space: guard.space(),
    };
    let guard = guard.begin(&watched(&api)).await;
    say_unreadable(&api.reader);
    Ok(Booted {
        retained: retained(&api, bodies, &telemetry),
        api,
        output,
        dispatching,
        finish,
        telemetry,
        guard,
    })
}

/// Who hears what became durable.
fn audience(telemetry: &Telemetry, output: &OutputLog) -> Audience {
    Audience {
        watchers: Watchers::default(),
        inbox: Inbox::default(),
        telemetry: telemetry.clone(),
        sealer: Sealer::start(output.clone()),
    }
}

/// Whom the guard of the disk's space tells.
pub(super) fn watched(api: &Api) -> space::Parts {
    space::Parts {
        dispatcher: api.dispatcher.clone(),
        output: api.output.clone(),
        telemetry: api.shell.telemetry.clone(),
    }
}

/// Behind the core's own write of the hold, which is the first of this run: a crash in between begins it again.
async fn forget_inherited(dispatcher: &Dispatcher) -> Result<(), RelayError> {
    let known = Change::Delete(Key::Meta(MetaKey::Inherited));
    let forgotten = dispatcher.write(vec![known]).await;
    forgotten.map_err(|_| RelayError::Stopped)
}

fn retained(api: &Api, bodies: Bodies, telemetry: &Telemetry) -> retention::Parts {
    retention::Parts {
        dispatcher: api.dispatcher.uncounted(),
        reader: api.reader.uncounted(),
        bodies,
        output: api.output.clone(),
        telemetry: telemetry.clone(),
        clock: api.clock.clone(),
    }
}

fn say_unreadable(reader: &Reader) {
    let unreadable = reader.unreadables().count();
    if unreadable > 0 {
        warn!(
            unreadable,
            "records could not be read and were passed over; `baton verify` lists them"
        );
    }
}

/// The loop that owns the core, not yet running.
struct Recovered {
    dispatch: Loop,
    dispatcher: Dispatcher,
    ids: Ids,
}

fn recover(
    config: &RelayConfig,
    settings: &Config,
    opened: Opened,
    reader: &Reader,
    bodies: Bodies,
    audience: Audience,
) -> Result<Recovered, RelayError> {
    let records = reader.recover()?;
    for (_, record) in &records.tasks {
        audience.inbox.note(record);
    }
    let newest = reader.newest_task_id().max(records.scheduler.newest_held());
    let ids = Ids::above(newest.map(|task| task.0), config.clock.clone());
    let mut mint = SystemMint { ids: ids.clone() };
    let now = config.clock.now();
    let (core, first) = Core::recover(records, settings.clone(), now, &mut mint);
    let (dispatch, dispatcher) = Loop::new(Parts {
        core,
        first,
        journal: opened.journal,
        reader: reader.clone(),
        bodies,
        clock: config.clock.clone(),
        mint: Box::new(mint),
        audience,
    });
    Ok(Recovered {
        dispatch,
        dispatcher,
        ids,
    })
}

fn settings(config: &RelayConfig, opened: &Opened) -> Config {
    let (incarnation, epoch) = (opened.incarnation, opened.relay_epoch);
    info!(recovery = ?opened.recovery, relay_epoch = epoch, %incarnation, "store open");
    let usual = Config::new(Incarnation(incarnation), RelayEpoch(epoch));
    Config {
        max_open: config.max_open,
        max_open_per_tenant: config.max_open_per_tenant,
        // What is not known here may have been a grant: wait until the longest that it can have been is over.
        inherited_hold_ms: if opened.inherited {
            usual.longest_grant_ms()
        } else {
            0
        },
        ..usual
    }
}

/// Opening blocks for as long as recovery takes.
async fn on_disk(config: &RelayConfig) -> Result<Disk, RelayError> {
    let config = config.clone();
    let opened = tokio::task::spawn_blocking(move || open(&config));
    opened.await.map_err(|_| RelayError::Stopped)?
}

fn open(config: &RelayConfig) -> Result<Disk, RelayError> {
    let data: &Path = &config.data;
    let unusable = |source| RelayError::Data {
        path: data.to_owned(),
        source,
    };
    archive::settle(data)?;
    let mut store = StoreConfig::new(data.join("store"), Uuid::now_v7());
    store.accept_loss = config.accept_loss;
    store.on_fatal = on_fatal(config);
    let opened = Store::open(store)?;
    let abort = Arc::new(|error: &io::Error| {
        tracing::error!(%error, "output cannot be written; stopping");
        std::process::abort();
    });
    let mut output = OutputConfig::new(data.join("output"));
    output.retention_bytes = config.retention.output_bytes;
    output.retention_age = config.retention.age;
    let wall_ms = config.clock.now().wall.0;
    let (output, recovery) = OutputLog::open(output, wall_ms, abort)?;
    info!(?recovery, "output log open");
    let bodies = Bodies::open(data.join("bodies")).map_err(unusable)?;
    Ok(Disk {
        opened,
        output,
        bodies,
    })
}

/// After a failed write only a start finds out what is really there. The process starts itself again where a full disk was the
/// reason, whatever sled made of it; anything else is for a supervisor to see.
fn on_fatal(config: &RelayConfig) -> FatalHook {
    let (restart, data, listen) = (config.restart.clone(), config.data.clone(), config.listen);
    FatalHook::new(move |fatal| {
        if let Some(restart) = &restart
            && (fatal.disk_full || space::is_bare(&data))
        {
            restart.call(listen);
        }
        std::process::abort();
    })
}

/// Every known token, and the first ones where there are none.
async fn credentials(
    config: &RelayConfig,
    reader: &Reader,
    dispatcher: &Dispatcher,
) -> Result<Tokens, RelayError> {
    let known = api_tokens::load(reader)?;
    let tokens = Tokens::load(known, config.clock.clone());
    let wall = config.clock.now().wall;
    let fresh = bootstrap::prepare(config.bootstrap, &config.data, &tokens, wall);
    let fresh = fresh.map_err(|source| RelayError::Data {
        path: config.data.clone(),
        source,
    })?;
    if !fresh.is_empty() {
        let changes = fresh.iter().map(api_tokens::put).collect();
        dispatcher
            .write(changes)
            .await
            .map_err(|_| RelayError::Stopped)?;
    }
    for record in fresh {
        info!(name = record.name, role = %record.role, "local token made");
        tokens.insert(record);
    }
    Ok(tokens)
}
