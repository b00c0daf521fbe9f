//! Deleting volumes of a pool, with a name or without.

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, refused, wrong};

use super::names::{Spot, nameless};
use crate::control::server::Caller;
use crate::live_pool::LivePool;
use crate::names::parent_of;
use crate::reach::Named;
use crate::state::Record;
use crate::thin_line::ThinLine;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

declare! {
    /// `thin remove`
    ThinRemove = "thin_remove" -> Done {
        /// The volume; the pool may be left out where there is a volume of this name
        #[arg(value_name = "[POOL/]VOLUME")]
        name: String,
    } flags {
        /// Disconnect the clients that use it
        force,
    }
    |verb, verbs, caller| verbs.remove_thin(&verb.name, verb.force, caller)
}

impl Verbs {
    /// `thin remove`
    ///
    /// # Errors
    /// The volume is there as before.
    pub fn remove_thin(&self, name: &str, force: bool, caller: &dyn Caller) -> Outcome<()> {
        match Spot::parse(name)? {
            Spot::Named { pool, name } => self.remove_named(&name, pool.as_deref(), force, caller),
            Spot::Nameless { pool, id } => self.remove_nameless(&pool, id, caller),
        }
    }

    fn remove_named(
        &self,
        name: &str,
        said: Option<&str>,
        force: bool,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let changes =
            self.change_table(&Named::volume(name).with_pools(), "thin remove", caller)?;
        self.refuse_connected(name, force)?;
        let record = self.thin_record(&changes, name)?;
        let line = self.thin_line(name)?;
        let pool = self.pool_of_line(name, &line, said)?;
        self.ready(&pool.name)?;
        self.refuse_snapshots_left(&changes, name)?;
        self.world.refuse_users(name)?;
        self.refuse_to_wait_beneath(name)?;
        let mut cleared = record.clone();
        cleared.clear();
        let gone = self.discard_volume(name).and_then(|()| {
            self.step(Step::Arranged);
            let before = changes.record_gone(&self.exports, vec![cleared])?;
            self.step(Step::Recorded);
            let deleted = pool.delete(&self.world, line.id);
            if deleted.is_err() {
                log_undo_failure(name, changes.record_back(&self.exports, vec![record], &before));
            }
            deleted
        });
        if gone.is_err() {
            log_undo_failure(name, self.show_again(name, &line));
        }
        gone?;
        self.step(Step::Pooled);
        self.step(Step::Done);
        Ok(())
    }

    /// What is recorded of a volume that these verbs may take away.
    pub(super) fn thin_record(&self, changes: &Changes, name: &str) -> Outcome<Record> {
        self.world.volume(name)?;
        let record = changes.record_of(name);
        if record.thin.is_none() || record.configured.is_some() {
            let found = "a volume with a table of its own";
            let expected = "one made by cairn thin (cairn remove takes others away)";
            return Err(wrong(name, "volume", found, expected));
        }
        Ok(record)
    }

    pub(super) fn show_again(&self, name: &str, line: &ThinLine) -> Outcome<()> {
        if self.world.volume(name).is_ok() { Ok(()) } else { self.show(name, line) }
    }

    /// Refuses if the volume has snapshots, whose names would lead nowhere.
    fn refuse_snapshots_left(&self, changes: &Changes, name: &str) -> Outcome<()> {
        let left = changes.thin_family(name);
        if left.is_empty() {
            return Ok(());
        }
        let found = format!("snapshots of it ({})", left.join(", "));
        let expected = "none (remove or rename them first)";
        Err(refused(ConfigKind::Busy, name, "snapshots", found, expected))
    }

    fn remove_nameless(&self, pool: &str, id: u32, caller: &dyn Caller) -> Outcome<()> {
        let changes = self.change_table(&Named::volume(pool), "thin remove", caller)?;
        let pool: LivePool = self.pool(pool)?;
        self.ready(&pool.name)?;
        self.nameless_device(&changes, &pool, id)?;
        pool.delete(&self.world, id)?;
        self.step(Step::Pooled);
        self.step(Step::Done);
        Ok(())
    }

    /// The device of a volume without a name.
    pub(super) fn nameless_device(
        &self,
        changes: &Changes,
        pool: &LivePool,
        id: u32,
    ) -> Outcome<cairn_targets::thin::ThinDevice> {
        let shown = format!("{}/{}", pool.name, nameless(id));
        let serves = |line: ThinLine| (line.pool, line.id) == (pool.name.clone(), id);
        let served = self
            .world
            .volumes()
            .into_iter()
            .find(|volume| ThinLine::of_volume(volume).is_some_and(serves));
        let served = served.map(|volume| volume.volume().to_owned());
        let mut recorded = changes.thin_records(&pool.name).into_iter();
        let recorded = recorded.find(|(_, thin)| thin.id == id);
        if let Some(name) = served.or_else(|| recorded.map(|(name, _)| name)) {
            let found = format!("one with a name, '{name}'");
            return Err(refused(ConfigKind::Busy, shown, "volume", found, "one without"));
        }
        let device = pool.device(id)?;
        device.ok_or_else(|| {
            let detail = "the pool has no volume of this id; cairn thin list shows them";
            ConfigError::new(ConfigKind::Argument, shown, detail)
        })
    }
}

impl Changes {
    /// The names of a volume's snapshots in pools.
    pub(super) fn thin_family(&self, volume: &str) -> Vec<String> {
        let own = |record: &&Record| {
            record.thin.is_some()
                && record.table.is_some()
                && parent_of(&record.name) == Some(volume)
        };
        let records = self.records();
        let own = records.values().filter(own);
        let mut names: Vec<String> = own.map(|record| record.name.clone()).collect();
        names.sort();
        names
    }
}
