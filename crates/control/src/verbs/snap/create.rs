//! Creating a snapshot, and the store that it begins with.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, MappedDevice, TableLine};
use cairn_format::snapshot::ChunkSize;
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_targets::snapshot::origin_claim;

use super::remove::Loss;
use super::store::{self, Wanted};
use super::{
    FILL_PERCENT, GROWTH_SECONDS, SnapWords, Step, log_undo_failure, origin_line, snapshot_line,
};
use crate::arguments::{bytes, device};
use crate::control::server::Caller;
use crate::names::{SnapName, real_of};
use crate::reach::Named;
use crate::state::{Record, Store};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

declare! {
    /// `snap create`
    SnapCreate = "snap_create" -> Done {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// The exception store: a blank file or block device, or a file to make (default:
        /// VOLUME@NAME.cow beside the state file)
        #[arg(long, value_name = "PATH", value_parser = device())]
        store: Option<String>,
        /// Size of a chunk in sectors (default: 32, or one block if that is larger)
        #[arg(long = "chunk", value_name = "SECTORS")]
        chunk_sectors: Option<u32>,
        /// Size of the file to make, like 10G (default: sparse, with room for every chunk)
        #[arg(long = "size", value_name = "SIZE", value_parser = bytes())]
        size_bytes: Option<u64>,
        /// Raise an event of the snapshot when its store is so full (default: 80)
        #[arg(long = "fill", value_name = "PERCENT")]
        fill_percent: Option<u64>,
        /// Make the file so much larger each time it is that full, like 1G
        #[arg(long = "grow", value_name = "SIZE", value_parser = bytes())]
        grow_bytes: Option<u64>,
    }
    |verb, verbs, caller| verbs.snap_create(&verb, caller)
}

/// The store of a snapshot to be.
pub(super) struct ChosenStore {
    /// As a table names it.
    pub argument: String,
    /// It is a path where nothing is yet.
    is_new: bool,
}

impl Verbs {
    /// `snap create`
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn snap_create(&self, params: &SnapCreate, caller: &dyn Caller) -> Outcome<()> {
        let snap = SnapName::parse(&params.name)?;
        let store = self.chosen_store(&snap, params.store.as_deref())?;
        let named = Named::volume(&snap.volume).with_device(Some(&store.argument));
        let changes = self.change_table(&named, "snap create", caller)?;
        let volume = self.ready(&snap.volume)?;
        self.refuse_marked(&volume)?;
        self.refuse_recorded(&snap.full())?;
        if self.world.volume(&snap.full()).is_ok() {
            let found = "a snapshot of this name";
            return Err(refused(ConfigKind::Busy, snap.full(), "name", found, "a new one"));
        }
        let percent = params.fill_percent.unwrap_or(FILL_PERCENT);
        if !(1..=100).contains(&percent) {
            return Err(wrong(snap.full(), "fill_percent", percent, "1 to 100"));
        }
        if params.grow_bytes.is_some_and(|bytes| bytes == 0 || !bytes.is_multiple_of(512)) {
            let found = params.grow_bytes.unwrap_or(0);
            return Err(wrong(snap.full(), "grow_bytes", found, "whole sectors, above 0"));
        }
        self.refuse_claimed_origin(&snap, &volume)?;
        let (mut words, made) = self.make_store(&snap, &volume, &store, params)?;
        words.fill_percent = percent;
        self.step(Step::StoreMade);
        let store = Store {
            snapshot: snap.name.clone(),
            argument: words.store.clone(),
            made,
            created_s: self.world.unix_time_s(),
            grow_bytes: params.grow_bytes,
        };
        let line = snapshot_line(&words, &real_of(&snap.volume));
        let before = changes.records_of(&[&snap.full(), &snap.volume, &real_of(&snap.volume)]);
        let inserted = self.insert(&changes, &snap, &words, line, store);
        if inserted.is_err() {
            let undone = self.take_out(&changes, &snap, before, Loss::Undone);
            if let Err(error) = undone {
                tracing::error!("{}: {error}", snap.volume);
                // Never live in another way than it is recorded.
                log_undo_failure(&snap.volume, self.assemble(&changes, &snap.volume));
            }
            if made && changes.is_sure() && changes.record_of(&snap.full()).table.is_none() {
                store::discard(&self.place(&words.store));
            }
        }
        inserted.inspect_err(|_| self.note_if_stuck(&snap.volume))?;
        self.step(Step::Done);
        self.keeper.poke();
        Ok(())
    }

    /// Refuses a snapshot of a volume whose devices another volume writes or claims.
    fn refuse_claimed_origin(&self, snap: &SnapName, volume: &Arc<MappedDevice>) -> Outcome<()> {
        if !self.is_first(snap) {
            // The origin is claimed already.
            return Ok(());
        }
        let disk: Arc<dyn Disk> = volume.clone();
        self.world.refuse_part(&snap.volume, &snap.full(), &origin_claim(&disk))
    }

    /// True if the volume is on its own table. Also then there may be `V@real`, which a verb left
    /// that failed half way.
    fn is_first(&self, snap: &SnapName) -> bool {
        !self.world.users_of(&real_of(&snap.volume)).contains(&snap.volume)
    }

    /// The store that a user named, or a free path beside the state file. Chosen before the turn,
    /// which then holds it.
    pub(super) fn chosen_store(&self, snap: &SnapName, said: Option<&str>) -> Outcome<ChosenStore> {
        let argument = match (said, &self.state) {
            (Some(argument), _) => argument.to_owned(),
            (None, Some(state)) => {
                self.world.argument_of(&store::default_path(state.path(), &snap.full())?)
            }
            // The turn is refused.
            (None, None) => String::new(),
        };
        Ok(ChosenStore { argument, is_new: said.is_none() })
    }

    /// An empty store, durable. True if it is a file that was made.
    pub(super) fn make_store(
        &self,
        snap: &SnapName,
        volume: &MappedDevice,
        store: &ChosenStore,
        params: &SnapCreate,
    ) -> Outcome<(SnapWords, bool)> {
        let argument = store.argument.clone();
        store::check_argument(&argument)?;
        if store.is_new && std::fs::symlink_metadata(self.place(&argument)).is_ok() {
            let (found, expected) = ("a file that was just made", "a free path (try again)");
            return Err(refused(ConfigKind::Busy, &argument, "path", found, expected));
        }
        let sectors = volume.sectors().0;
        let block = volume.limits().logical_block;
        let chunk = ChunkSize::from_table(params.chunk_sectors.unwrap_or(0), block);
        let chunk = chunk.map_err(|error| {
            ConfigError::new(ConfigKind::Argument, snap.full(), error.to_string())
        })?;
        let (fill_percent, wait_for_room_s) =
            (FILL_PERCENT, params.grow_bytes.map(|_| GROWTH_SECONDS));
        let words = SnapWords {
            sectors,
            store: argument.clone(),
            chunk: chunk.sectors(),
            fill_percent,
            wait_for_room_s,
        };
        let line = snapshot_line(&words, &real_of(&snap.volume));
        self.world.refuse_kept(&snap.full(), &TableLine::parse_all(&line)?)?;
        let made = store::prepare(&Wanted {
            path: self.place(&argument),
            argument,
            chunk,
            bytes: params.size_bytes,
            origin_sectors: sectors,
            grows: params.grow_bytes.is_some(),
            origin_layer: self.world.layer_in(volume.volume())?,
        })?;
        Ok((words, made))
    }

    /// Steps 2 and 3.
    fn insert(
        &self,
        changes: &Changes,
        snap: &SnapName,
        words: &SnapWords,
        line: String,
        store: Store,
    ) -> Outcome<()> {
        let (full, real) = (snap.full(), real_of(&snap.volume));
        let own = changes.own_table(&snap.volume).ok_or_else(|| {
            wrong(&snap.volume, "table", "none recorded", "that of a live volume")
        })?;
        let first = self.is_first(snap);
        let mut records = Vec::new();
        if first {
            records.push(Record { table: Some(own.clone()), ..changes.record_of(&real) });
            let table = Some(origin_line(words.sectors, &real));
            records.push(Record { table, ..changes.record_of(&snap.volume) });
        }
        let (table, store) = (Some(line.clone()), Some(store));
        records.push(Record { table, store, ..changes.record_of(&full) });
        changes.record_all(records)?;
        self.step(Step::Recorded);
        self.hold(&snap.volume)?;
        self.step(Step::Suspended);
        if first {
            self.bring_up_volume(&real, &own)?;
        }
        self.bring_up_volume(&full, &line)?;
        if first {
            self.world.load(&snap.volume, &origin_line(words.sectors, &real))?;
        }
        self.step(Step::Arranged);
        self.make_live(&snap.volume)?;
        self.step(Step::Resumed);
        self.exports.add_volume(&self.world, &full)
    }
}
