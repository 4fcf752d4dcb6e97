//! The start of a relay: opens the stores, recovers the core, loads or creates credentials and
//! starts the dispatcher.

use std::io;
use std::path::Path;
use std::sync::Arc;

use baton_core::Core;
use baton_core::config::Config;
use baton_core::ids::{Incarnation, RelayEpoch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use super::RelayError;
use crate::api::Api;
use crate::api::operator::export::DataTransfers;
use crate::api::operator::tokens as api_tokens;
use crate::api::request::streams::LiveStreamLimits;
use crate::archive;
use crate::auth::{TokenTable, bootstrap};
use crate::body_files::BodyFiles;
use crate::config::RelayConfig;
use crate::dispatcher::{DispatchLoop, DispatchLoopParts, Dispatcher, PublishTargets};
use crate::id_source::{OrderedIds, SystemIdSource};
use crate::open_inputs::OpenInputIndex;
use crate::output::{OutputConfig, OutputLog};
use crate::output_sealer::OutputSealer;
use crate::reader::RecordReader;
use crate::retention;
use crate::session::{FrameEncoder, HelloAdmission, SessionContext};
use crate::space;
use crate::store::{FatalHook, MetaKey, OpenedStore, RecordKey, Store, StoreChange, StoreConfig};
use crate::task_watchers::{TaskWatchers, WATCHERS_PER_TENANT};
use crate::telemetry::Telemetry;

/// A relay whose dispatcher runs and which does not serve connections yet.
pub(super) struct BootedRelay {
    pub(super) api: Api,
    pub(super) output: OutputLog,
    /// Ends when `finish` is cancelled, or when the store can no longer be written.
    pub(super) dispatch_task: JoinHandle<()>,
    pub(super) finish: CancellationToken,
    pub(super) telemetry: Telemetry,
    pub(super) retention_parts: retention::RetentionParts,
    pub(super) space_guard: space::SpaceGuard,
}

/// The opened store, output log and body files.
struct OpenedData {
    opened: OpenedStore,
    output: OutputLog,
    bodies: BodyFiles,
}

/// Boots the relay. An import cancels `restart`, and then `stop`, so that the relay boots again
/// with other data.
pub(super) async fn boot(
    config: &RelayConfig,
    guard: space::SpaceGuard,
    stop: &CancellationToken,
    restart: &CancellationToken,
) -> Result<BootedRelay, RelayError> {
    let telemetry = Telemetry::start(config.otlp_endpoint.as_deref(), &config.clock)?;
    telemetry.add("disk_full_restarts", "", config.restart_count);
    let OpenedData {
        opened,
        output,
        bodies,
    } = open_data(config).await?;
    let reader = RecordReader::new(opened.store.clone(), bodies.clone(), &telemetry);
    let settings = core_config(config, &opened);
    let targets = publish_targets(&telemetry, &output);
    let (watchers, inbox) = (targets.watchers.clone(), targets.inbox.clone());
    let finish = CancellationToken::new();
    let RecoveredDispatcher {
        dispatch_loop: dispatch,
        dispatcher,
        ids,
    } = recover(config, &settings, opened, &reader, bodies.clone(), targets)?;
    let dispatch_task = tokio::spawn(dispatch.run(finish.clone()));
    let tokens = load_credentials(config, &reader, &dispatcher).await?;
    if settings.inherited_suspension_ms > 0 {
        forget_inherited(&dispatcher).await?;
    }
    let encoder = FrameEncoder {
        incarnation: settings.incarnation,
        epoch: settings.epoch,
    };
    let session_context = SessionContext {
        dispatcher: dispatcher.clone(),
        reader: reader.clone(),
        output: output.clone(),
        clock: config.clock.clone(),
        encoder: Arc::new(encoder),
        telemetry: telemetry.clone(),
        token_table: tokens.clone(),
        admission: HelloAdmission::new(config.hello_rates),
        stop: stop.clone(),
    };
    let api = Api {
        dispatcher,
        reader,
        watchers,
        open_inputs: inbox,
        output: output.clone(),
        token_table: tokens,
        clock: config.clock.clone(),
        ids,
        config: Arc::new(settings),
        session_context,
        stream_limits: LiveStreamLimits::new(
            config.network.live_streams_per_token,
            WATCHERS_PER_TENANT,
        ),
        started_at: config.clock.now().wall,
        stop: stop.clone(),
        transfers: DataTransfers::new(&config.data_dir, restart.clone()),
        space: guard.space(),
    };
    let guard = guard.run_first_checks(&space_guard_parts(&api)).await;
    log_unreadable(&api.reader);
    Ok(BootedRelay {
        retention_parts: retention_parts(&api, bodies, &telemetry),
        api,
        output,
        dispatch_task,
        finish,
        telemetry,
        space_guard: guard,
    })
}

/// The recipients of committed changes.
fn publish_targets(telemetry: &Telemetry, output: &OutputLog) -> PublishTargets {
    PublishTargets {
        watchers: TaskWatchers::default(),
        inbox: OpenInputIndex::default(),
        telemetry: telemetry.clone(),
        sealer: OutputSealer::start(output.clone()),
    }
}

/// The parts of the relay that the space guard controls.
pub(super) fn space_guard_parts(api: &Api) -> space::SpaceParts {
    space::SpaceParts {
        dispatcher: api.dispatcher.clone(),
        output: api.output.clone(),
        telemetry: api.session_context.telemetry.clone(),
    }
}

/// Deletes the mark of inherited data. The core's first write of this run has stored the
/// suspension before; after a crash in between, the next start begins the suspension again.
async fn forget_inherited(dispatcher: &Dispatcher) -> Result<(), RelayError> {
    let delete = StoreChange::Delete(RecordKey::Meta(MetaKey::Inherited));
    let written = dispatcher.write_records(vec![delete]).await;
    written.map_err(|_| RelayError::Stopped)
}

fn retention_parts(
    api: &Api,
    bodies: BodyFiles,
    telemetry: &Telemetry,
) -> retention::RetentionParts {
    retention::RetentionParts {
        dispatcher: api.dispatcher.without_lookup_counts(),
        reader: api.reader.without_lookup_counts(),
        bodies,
        output: api.output.clone(),
        telemetry: telemetry.clone(),
        clock: api.clock.clone(),
    }
}

fn log_unreadable(reader: &RecordReader) {
    let unreadable = reader.unreadable_records().count();
    if unreadable > 0 {
        warn!(
            unreadable,
            "unreadable records were skipped; `baton verify` lists them"
        );
    }
}

/// The dispatch loop with the recovered core, not yet running.
struct RecoveredDispatcher {
    dispatch_loop: DispatchLoop,
    dispatcher: Dispatcher,
    ids: OrderedIds,
}

fn recover(
    config: &RelayConfig,
    settings: &Config,
    opened: OpenedStore,
    reader: &RecordReader,
    bodies: BodyFiles,
    targets: PublishTargets,
) -> Result<RecoveredDispatcher, RelayError> {
    let records = reader.recover()?;
    for (_, record) in &records.tasks {
        targets.inbox.index_record(record);
    }
    let newest = reader
        .newest_task_id()
        .max(records.scheduler.newest_suspended_task());
    let ids = OrderedIds::starting_above(newest.map(|task| task.0), config.clock.clone());
    let mut id_source = SystemIdSource { ids: ids.clone() };
    let now = config.clock.now();
    let (core, first) = Core::recover(records, settings.clone(), now, &mut id_source);
    let (dispatch, dispatcher) = DispatchLoop::new(DispatchLoopParts {
        core,
        initial_effects: first,
        journal: opened.journal,
        reader: reader.clone(),
        bodies,
        clock: config.clock.clone(),
        id_source: Box::new(id_source),
        publish_targets: targets,
    });
    Ok(RecoveredDispatcher {
        dispatch_loop: dispatch,
        dispatcher,
        ids,
    })
}

fn core_config(config: &RelayConfig, opened: &OpenedStore) -> Config {
    let (incarnation, epoch) = (opened.incarnation, opened.relay_epoch);
    info!(recovery = ?opened.recovery, relay_epoch = epoch, %incarnation, "store open");
    let usual = Config::new(Incarnation(incarnation), RelayEpoch(epoch));
    Config {
        max_open_tasks: config.max_open_tasks,
        max_open_tasks_per_tenant: config.max_open_tasks_per_tenant,
        // Imported data may lack leases that were granted after its export. No successor starts
        // until the longest possible grant has run out.
        inherited_suspension_ms: if opened.inherited {
            usual.longest_grant_ms()
        } else {
            0
        },
        ..usual
    }
}

/// Opens the data on a blocking thread, because recovery may take long.
async fn open_data(config: &RelayConfig) -> Result<OpenedData, RelayError> {
    let config = config.clone();
    let opened = tokio::task::spawn_blocking(move || open_data_blocking(&config));
    opened.await.map_err(|_| RelayError::Stopped)?
}

fn open_data_blocking(config: &RelayConfig) -> Result<OpenedData, RelayError> {
    let data: &Path = &config.data_dir;
    let unusable = |source| RelayError::Data {
        path: data.to_owned(),
        source,
    };
    archive::settle_import(data)?;
    let mut store = StoreConfig::new(data.join("store"), Uuid::now_v7());
    store.accept_loss = config.accept_loss;
    store.on_fatal = fatal_hook(config);
    let opened = Store::open(store)?;
    let abort = Arc::new(|error: &io::Error| {
        tracing::error!(%error, "output cannot be written; aborting the relay");
        std::process::abort();
    });
    let mut output = OutputConfig::new(data.join("output"));
    output.retention_bytes = config.retention.max_output_bytes;
    output.retention_age = config.retention.max_age;
    let wall_ms = config.clock.now().wall.0;
    let (output, recovery) = OutputLog::open(output, wall_ms, abort)?;
    info!(?recovery, "output log open");
    let bodies = BodyFiles::open(data.join("bodies")).map_err(unusable)?;
    Ok(OpenedData {
        opened,
        output,
        bodies,
    })
}

/// The reaction to a failed write of the store. Only a new start can determine what was
/// written. If the disk is full, the process restarts itself, whatever error sled reported. Any
/// other failure aborts the process, so that its supervisor notices.
fn fatal_hook(config: &RelayConfig) -> FatalHook {
    let (restart, data, listen) = (
        config.restart_hook.clone(),
        config.data_dir.clone(),
        config.listen,
    );
    FatalHook::new(move |fatal| {
        if let Some(restart) = &restart
            && (fatal.disk_full || space::is_bare(&data))
        {
            restart.call(listen);
        }
        std::process::abort();
    })
}

/// Loads all tokens, and creates the first ones if needed.
async fn load_credentials(
    config: &RelayConfig,
    reader: &RecordReader,
    dispatcher: &Dispatcher,
) -> Result<TokenTable, RelayError> {
    let known = api_tokens::load_tokens(reader)?;
    let tokens = TokenTable::load(known, config.clock.clone());
    let wall = config.clock.now().wall;
    let fresh =
        bootstrap::make_missing_tokens(config.bootstrap_tokens, &config.data_dir, &tokens, wall);
    let fresh = fresh.map_err(|source| RelayError::Data {
        path: config.data_dir.clone(),
        source,
    })?;
    if !fresh.is_empty() {
        let changes = fresh.iter().map(api_tokens::token_change).collect();
        dispatcher
            .write_records(changes)
            .await
            .map_err(|_| RelayError::Stopped)?;
    }
    for record in fresh {
        info!(name = record.name, role = %record.role, "local token created");
        tokens.insert(record);
    }
    Ok(tokens)
}
