//! `pool grow` and `pool trim`: a larger pool while it is in use, and discards of its free blocks.

use std::sync::Arc;

use cairn_block::{NewTable, TableLine};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_targets::spec::words_of;
use serde::{Deserialize, Serialize};

use super::LivePool;
use crate::arguments::{bytes, is_path};
use crate::control::server::Caller;
use crate::reach::Named;
use crate::state::Record;
use crate::verbs::snap::store::grow;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

/// The target of a pool.
pub(super) const POOL: &str = "thin-pool";

/// The line of a pool's table.
pub(super) struct PoolLine(pub(super) TableLine);

/// True if `longer` is the table of the same pool with more data.
pub fn is_growth(table: &str, longer: &str) -> bool {
    let (Some(now), Some(then)) = (PoolLine::of_table(table), PoolLine::of_table(longer)) else {
        return false;
    };
    let is_same = ["metadata", "data", "block_sectors"]
        .into_iter()
        .all(|argument| now.argument(argument) == then.argument(argument));
    is_same && now.0.len < then.0.len
}

/// The same for the inactive table of a record.
fn is_growth_of(record: &Record) -> bool {
    let (Some(table), Some(waiting)) = (&record.table, &record.inactive) else { return false };
    is_growth(table, waiting)
}

declare! {
    /// `pool grow`
    PoolGrow = "pool_grow" -> Done {
        /// The pool
        name: String,
        /// The new size of the data file, like 100G
        #[arg(long = "data-size", value_name = "SIZE", value_parser = bytes())]
        data_bytes: Option<u64>,
        /// The new size of the metadata file
        #[arg(long = "metadata-size", value_name = "SIZE", value_parser = bytes())]
        metadata_bytes: Option<u64>,
    }
    |verb, verbs, caller| verbs.pool_grow(&verb, caller)
}

declare! {
    /// `pool trim`
    PoolTrim = "pool_trim" -> Trimmed {
        /// The pool
        name: String,
    }
    |verb, verbs, _| {
        let trimmed_bytes = verbs.pool_trim(&verb.name)?;
        Ok(Trimmed { trimmed_bytes })
    }
}

/// What a trim did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Trimmed {
    /// Free blocks that the data device was told of.
    pub trimmed_bytes: u64,
}

impl PoolLine {
    pub(super) fn of_table(text: &str) -> Option<PoolLine> {
        let [line] = <[TableLine; 1]>::try_from(TableLine::parse_all(text).ok()?).ok()?;
        let line = Some(PoolLine(line)).filter(|line| line.0.target == POOL)?;
        line.argument("low_water_blocks").is_some().then_some(line)
    }

    pub(super) fn of(record: &Record) -> Outcome<PoolLine> {
        let text = record.table.as_deref().unwrap_or_default();
        let refused = || wrong(&record.name, "table", format!("'{text}'"), "one line of thin-pool");
        PoolLine::of_table(text).ok_or_else(refused)
    }

    /// The word of an argument that a pool's line must have.
    fn argument(&self, name: &str) -> Option<&str> {
        words_of(&self.0)?.1.argument(name)
    }

    fn metadata(&self) -> &str {
        self.argument("metadata").unwrap_or_default()
    }

    fn data(&self) -> &str {
        self.argument("data").unwrap_or_default()
    }

    /// The values of an option, if it stands.
    pub(super) fn option(&self, word: &str) -> Option<Vec<&str>> {
        let (spec, words) = words_of(&self.0)?;
        words.option(spec, word).map(<[&str]>::to_vec)
    }

    fn text(&self) -> String {
        self.0.to_string()
    }
}

/// Refuses a pool whose metadata must not change: a resume would bring it up with its old size.
fn refuse_unchangeable(pool: &LivePool, line: &PoolLine) -> Outcome<()> {
    let figures = pool.figures()?;
    let found = match figures.mode {
        "failed" => "failed",
        _ if figures.needs_check => "its metadata needs a check",
        _ if line.option("read_only").is_some() => "read_only",
        _ => return Ok(()),
    };
    Err(wrong(&pool.name, "mode", found, "a pool that can be changed"))
}

impl Verbs {
    /// `pool grow`: makes files as long as the caller says, and the pool as large as its devices.
    ///
    /// # Errors
    /// The pool is unchanged, unless the message says otherwise; a file may be longer.
    pub fn pool_grow(&self, params: &PoolGrow, caller: &dyn Caller) -> Outcome<()> {
        let name = &params.name;
        let changes = self.change_table(&Named::volume(name), "pool grow", caller)?;
        let pool = self.pool(name)?;
        let mut line = PoolLine::of(&changes.record_of(name))?;
        refuse_unchangeable(&pool, &line)?;
        self.drop_growth(&changes, name)?;
        self.ready(name)?;
        let before = changes.record_of(name);
        self.lengthen(line.metadata(), "--metadata-size", params.metadata_bytes)?;
        self.lengthen(line.data(), "--data-size", params.data_bytes)?;
        self.step(Step::StoreMade);
        let block = pool.figures()?.block.0;
        let sectors = self.data_sectors(&line)? / block * block;
        line.0.len.0 = sectors.max(line.0.len.0);
        self.swap_for_longer(&changes, &pool, before, line.text())?;
        // A commit may have failed since: then the pool is live with its old size.
        refuse_unchangeable(&self.pool(name)?, &line)?;
        self.step(Step::Done);
        Ok(())
    }

    /// Steps 2 to 4. A message may come until the former table has ended, and once the new one
    /// serves. So the new one takes over in between how the last message had zeros handled; its
    /// text says what it began with.
    fn swap_for_longer(
        &self,
        changes: &Changes,
        pool: &LivePool,
        before: Record,
        table: String,
    ) -> Outcome<()> {
        let name = before.name.clone();
        let waiting = Record { inactive: Some(table.clone()), ..before.clone() };
        let after = Record { table: Some(table.clone()), ..before.clone() };
        // Otherwise only the metadata grows; the table is the same.
        let longer = is_growth_of(&waiting);
        self.world.load(&name, &table)?;
        if let Err(error) = if longer { changes.record_all(vec![waiting]) } else { Ok(()) } {
            log_undo_failure(&name, self.world.clear(&name));
            return Err(error);
        }
        self.step(Step::Recorded);
        let volume = self.world.volume(&name)?;
        let loaded = volume.inactive_table();
        let decided = |new_table| match new_table {
            NewTable::Started => loaded.iter().for_each(|loaded| pool.hand_detect_to(loaded)),
            NewTable::Refused => {}
        };
        let resumed = self.make_live_with(&name, decided);
        let is_live = match (&loaded, &volume.live_table()) {
            (Some(loaded), Some(live)) => Arc::ptr_eq(loaded, live) && !volume.is_suspended(),
            _ => false,
        };
        match resumed {
            Err(error) if !is_live => Err(self.go_back(changes, before, error)),
            // Live, though writes may be lost: the pool has grown. If it can't be changed, it may
            // not have: the next start finds out.
            resumed => {
                self.step(Step::Resumed);
                let can_change = refuse_unchangeable(&self.pool(&name)?, &PoolLine::of(&before)?);
                let has_grown = longer && can_change.is_ok();
                let recorded = if has_grown { changes.record_all(vec![after]) } else { Ok(()) };
                resumed.and(recorded)
            }
        }
    }

    /// Drops the inactive table that a crash during a growth left.
    fn drop_growth(&self, changes: &Changes, name: &str) -> Outcome<()> {
        let record = changes.record_of(name);
        if !is_growth_of(&record) {
            return Ok(());
        }
        changes.record_all(vec![Record { inactive: None, ..record }])?;
        self.world.clear(name)
    }

    fn lengthen(&self, argument: &str, option: &str, bytes: Option<u64>) -> Outcome<()> {
        let Some(bytes) = bytes else { return Ok(()) };
        if !is_path(argument) {
            let expected = "none: grow the device itself, then the pool without this option";
            return Err(wrong(argument, option, bytes, expected));
        }
        grow(argument, &self.place(argument), option, bytes).map(drop)
    }

    /// The size of the data device now.
    pub(super) fn data_sectors(&self, line: &PoolLine) -> Outcome<u64> {
        let disk = self.world.open(line.data())?;
        disk.refresh()?;
        Ok(disk.sectors().0)
    }

    /// `pool trim`: answers how many bytes of free blocks the data device was told of.
    ///
    /// # Errors
    /// The data device takes no discards, or failed; nothing else is changed.
    pub fn pool_trim(&self, name: &str) -> Outcome<u64> {
        let pool: LivePool = self.pool(name)?;
        if self.world.read_only() {
            return Err(wrong(name, "access", "a read-only server", "a writable one"));
        }
        // Not under the lock of changes: it takes its time, and changes nothing that is recorded.
        let trimmed = pool.ask_at_length(&self.world, async |env, pool| pool.trim(env).await);
        Ok(trimmed?.to_bytes())
    }
}
