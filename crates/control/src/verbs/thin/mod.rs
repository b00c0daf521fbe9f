//! `cairn thin`: the volumes of thin pools, made, snapshotted, compared, rolled back, renamed and
//! removed while they are served.
//!
//! ```text
//!   V: thin @P 3 ---- snapshot ---->  V: thin @P 3      V@mon: thin @P 4
//!   V: thin @P 3 ---- rollback ---->  V: thin @P 5 (a snapshot of 4; 3 is deleted, or kept)
//! ```
//!
//! A pool knows its volumes by id. Their names are in the state file. The record of a name has the
//! id, and two numbers that tell the volume from a later one of the same id: the pool's transaction
//! id and its count of snapshots when the volume was created. In a pool that `pool create` made,
//! every creation raises the transaction id in the commit that creates the volume, so that no two
//! volumes have the same. The start drops a name whose volume does not exist any more, with a
//! notice. A volume without a name shows as `thin-ID`.
//!
//! A snapshot is a volume like any other, `V@NAME`: writable, and independent of `V`.
//!
//! # Orders, and what a crash between two steps leaves
//! Create and snapshot: 0. the table is built, and its claims are checked: with an external origin
//! that another volume writes, the next start would serve only one of the two; 1. recorded, with
//! the transaction id and the count of snapshots that the pool has; 2. created in the pool, which
//! raises its transaction id in the same commit and refuses if its counters are not those of the
//! record; 3. brought up; then the answer.
//! - Between 1 and 2: a name without a volume, and the old transaction id: the start drops the
//!   name.
//! - After 2: the volume, and the new transaction id. The record names this volume and no later
//!   one. A snapshot is of the moment of step 2, and has every write that was acknowledged before.
//!
//! Rollback: 1. a snapshot of the snapshot in the pool; 2. `V` suspended, its new table loaded;
//! 3. recorded; 4. resumed; 5. the former device of `V` is deleted, or brought up under its own
//!    name.
//! - Before 3: `V` is unchanged. After 3: `V` has the snapshot's content. A crash may leave a
//!   volume without a name, `thin-ID`, which can be removed: the new snapshot, or the former device
//!   of `V`.
//!
//! Remove: 1. the volume taken down; 2. recorded; 3. deleted in the pool, durably.
//! - Before 2: the volume. Between 2 and 3: a volume without a name, `thin-ID`.
//!
//! Rename: 1. the volumes taken down; 2. recorded, all of them at once; 3. brought up. A volume
//! without a name: 1. the table is built, and its claims are checked; 2. recorded; 3. brought up.
//!
//! A step that fails without a crash is undone before the refusal, the state file last.

mod create;
mod diff;
pub mod list;
mod names;
mod remove;
mod rename;
mod rollback;
#[cfg(test)]
mod tests;

use cairn_block::ConfigKind;
use cairn_format::thin::DeviceId;
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_targets::thin::ThinDevice;

pub use create::{ThinCreate, ThinSnapshot};
pub use diff::ThinDiff;
pub use list::ThinList;
pub use remove::ThinRemove;
pub use rename::ThinRename;
pub use rollback::ThinRollback;

use crate::live_pool::LivePool;
use crate::names::parent_of;
use crate::state::{Record, Thin};
use crate::thin_line::ThinLine;
use crate::verbs::{Changes, Verbs};
use crate::world::World;

impl Thin {
    /// True if this is the volume that was named.
    fn is(&self, device: &ThinDevice) -> bool {
        let Thin { id, transaction_id, creation_time, .. } = *self;
        (id, transaction_id, creation_time)
            == (device.id, device.transaction_id, device.creation_time)
    }

    fn of_device(pool: &str, device: &ThinDevice, created_s: Option<u64>) -> Thin {
        Thin {
            pool: pool.to_owned(),
            id: device.id,
            transaction_id: device.transaction_id,
            creation_time: device.creation_time,
            created_s,
        }
    }
}

/// At the start, when the pool is up: why a recorded name stands for nothing any more, if so.
///
/// # Errors
/// The pool that the table names is none.
pub fn lost_name(world: &World, record: &Record) -> Outcome<Option<String>> {
    let (Some(thin), None) = (&record.thin, &record.configured) else { return Ok(None) };
    let line = record.table.as_deref().and_then(ThinLine::of_table);
    if line.is_none_or(|line| (&line.pool, line.id) != (&thin.pool, thin.id)) {
        return Ok(None);
    }
    let pool = LivePool::of(&world.names(), &thin.pool)?;
    Ok(match pool.device(thin.id)? {
        None => Some(format!("pool {} has no volume {} any more", pool.name, thin.id)),
        Some(device) if thin.is(&device) => None,
        Some(_) => Some(format!("volume {} of pool {} is another one now", thin.id, pool.name)),
    })
}

impl Verbs {
    /// The thin volume of this name, as its live table has it.
    fn thin_line(&self, name: &str) -> Outcome<ThinLine> {
        let volume = self.world.volume(name)?;
        ThinLine::of_volume(&volume).ok_or_else(|| {
            let table = volume.live_table();
            let found = table.as_ref().and_then(|table| table.lines().first());
            let found = found.map_or("none".to_owned(), |line| format!("'{}'", line.name));
            wrong(name, "table", found, "one line of thin")
        })
    }

    /// Refuses a name that something has already.
    fn refuse_taken(&self, changes: &Changes, name: &str) -> Outcome<()> {
        let record = changes.record_of(name);
        let taken = self.world.volume(name).is_ok();
        if taken || record.table.is_some() || record.configured.is_some() {
            let found = "a volume of this name";
            return Err(refused(ConfigKind::Busy, name, "name", found, "a new one"));
        }
        Ok(())
    }

    /// Refuses a snapshot's name if its volume is not of the same pool.
    fn refuse_stray(&self, name: &str, pool: &str) -> Outcome<()> {
        let Some(parent) = parent_of(name) else { return Ok(()) };
        match self.thin_line(parent)?.pool {
            same if same == pool => Ok(()),
            other => {
                let found = format!("'{name}', and {parent} is of pool {other}");
                Err(wrong(name, "name", found, format!("that of a volume of pool {pool}")))
            }
        }
    }

    /// Refuses to take a volume down that somebody uses: another volume, or a client.
    fn refuse_thin_users(&self, name: &str) -> Outcome<()> {
        self.world.refuse_users(name)?;
        self.exports.refuse_clients(name, "none")
    }

    /// Refuses to take away, past its pool, a volume that `thin` made.
    ///
    /// # Errors
    /// It is one.
    pub(crate) fn refuse_thin(&self, changes: &Changes, name: &str, verb: &str) -> Outcome<()> {
        if changes.record_of(name).thin.is_none() {
            return Ok(());
        }
        let (found, expected) = ("a volume of a pool", "none (cairn thin remove deletes it)");
        Err(refused(ConfigKind::Busy, name, verb, found, expected))
    }

    /// Refuses a table for a volume that `thin` made that would make its name a lie.
    ///
    /// # Errors
    /// The table is not of the same volume of the pool.
    pub(crate) fn refuse_other_thin(
        &self,
        changes: &Changes,
        name: &str,
        table: &str,
    ) -> Outcome<()> {
        let Some(thin) = changes.record_of(name).thin else { return Ok(()) };
        let line = ThinLine::of_table(table);
        if line.is_some_and(|line| (line.pool, line.id) == (thin.pool.clone(), thin.id)) {
            return Ok(());
        }
        let expected = format!("one line of thin @{} {}", thin.pool, thin.id);
        Err(wrong(name, "load", "another table", expected))
    }
}

impl Changes {
    /// The names of a pool's volumes that are recorded.
    fn thin_records(&self, pool: &str) -> Vec<(String, Thin)> {
        let named = |record: &Record| {
            let thin = record.thin.as_ref().filter(|thin| thin.pool == pool)?;
            record.table.is_some().then(|| (record.name.clone(), thin.clone()))
        };
        self.records().values().filter_map(named).collect()
    }

    /// The number for a new volume: the one asked for, or the lowest that is free.
    ///
    /// # Errors
    /// It is in use, or too large, or there is none.
    fn new_id(&self, pool: &LivePool, wanted: Option<u64>) -> Outcome<u32> {
        let mut taken: Vec<u32> = pool.devices()?.iter().map(|device| device.id).collect();
        taken.extend(self.thin_records(&pool.name).iter().map(|(_, thin)| thin.id));
        // Free or not, such a number names its volume again when what is recorded of it goes.
        let configured = |record: &Record| ThinLine::of_table(record.configured.as_deref()?);
        let records = self.records();
        let configured = records.values().filter_map(configured);
        taken.extend(configured.filter(|line| line.pool == pool.name).map(|line| line.id));
        let Some(wanted) = wanted else {
            taken.sort_unstable();
            taken.dedup();
            let gap = (0..).zip(&taken).find(|(free, id)| free != *id);
            let free = gap.map_or(taken.len() as u32, |(free, _)| free);
            let expected = format!("fewer than {}", DeviceId::MAX.get() + 1);
            let all = || wrong(&pool.name, "volumes", taken.len(), expected);
            return Some(free).filter(|id| *id <= DeviceId::MAX.get()).ok_or_else(all);
        };
        let id = DeviceId::new(wanted).map(DeviceId::get).map_err(|_| {
            wrong(&pool.name, "id", wanted, format!("a number from 0 to {}", DeviceId::MAX))
        })?;
        if taken.contains(&id) {
            let found = format!("volume {id} of the pool, or of a table that is configured");
            return Err(refused(ConfigKind::Busy, &pool.name, "id", found, "one not in use"));
        }
        Ok(id)
    }
}
